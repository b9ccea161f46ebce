"""AddPartitionsToTxn 0-5, AddOffsetsToTxn 0-4 and EndTxn 0-5.

Versions 4 and later of AddPartitionsToTxn come from brokers: many transactions at once, and verification (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rayka.coordinator.groups.spec import OFFSETS_TOPIC
from rayka.coordinator.transactions.requests import AddPartitionsRequest, EndTxnRequest, ProducerIdResponse
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE
from rayka.gateway.handlers.transactions.producer_ids import known_error, longest_wait_ms, with_producer_id
from rayka.gateway.server.request import Call
from rayka.metadata.topics import INTERNAL_TOPICS
from rayka.types import TopicPartition

_FIRST_BATCHED: Final = 4
_FIRST_WITH_FENCED: Final = 2
_FIRST_WITH_EPOCH_BUMP: Final = 5
_VERSION_2: Final = 2


async def handle_add_partitions(call: Call) -> Any:
    """Add partitions to transactions, or verify that they are in them."""
    types, request = call.types, call.request
    if call.version < _FIRST_BATCHED:
        call.pending.connection.affinity.follow_transaction(request.v3_and_below_transactional_id)
        errors = await _add(
            call,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
        )
        return types.AddPartitionsToTxnResponse(
            throttle_time=NO_THROTTLE,
            results_by_topic_v3_and_below=_results(call, request.v3_and_below_topics, errors),
        )
    transactions = request.transactions
    answers = await asyncio.gather(
        *(
            _add(call, one.transactional_id, one.producer_id, one.producer_epoch, one.topics, one.verify_only)
            for one in transactions
        )
    )
    return types.AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.NONE,
        results_by_transaction=tuple(
            types.AddPartitionsToTxnResult(
                transactional_id=one.transactional_id, topic_results=_results(call, one.topics, errors)
            )
            for one, errors in zip(transactions, answers, strict=True)
        ),
    )


async def _add(
    call: Call,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    topics: Iterable[Any],
    is_verify_only: bool = False,
) -> Mapping[TopicPartition, ErrorCode]:
    """All partitions are added or, if one may not be, none."""
    partitions = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
    faults = {one: fault for one in partitions if (fault := _fault(call, one)) is not ErrorCode.NONE}
    if faults:
        return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | faults
    request = AddPartitionsRequest(
        transactional_id,
        producer_id,
        producer_epoch,
        tuple(partitions),
        is_verify_only,
        _VERSION_2 if call.version >= _FIRST_BATCHED else 0,
        longest_wait_ms(call),
    )
    return dict(zip(partitions, await _errors(call, request), strict=True))


def _fault(call: Call, partition: TopicPartition) -> ErrorCode:
    """Why a partition can't be added. Only brokers add those of internal topics, for offsets of groups."""
    if call.version < _FIRST_BATCHED and partition.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    is_known = call.broker.image.partition(partition) is not None
    return ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _errors(call: Call, request: AddPartitionsRequest) -> Sequence[ErrorCode]:
    try:
        errors = (await call.broker.transactions.execute(request)).errors
    except RaykaError as error:
        errors = (error.code,) * len(request.partitions)
    return [known_error(call, error, _FIRST_WITH_FENCED) for error in errors]


def _results(call: Call, topics: Iterable[Any], errors: Mapping[TopicPartition, ErrorCode]) -> tuple[Any, ...]:
    types = call.types
    return tuple(
        types.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                types.AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=errors[TopicPartition(topic.name, number)]
                )
                for number in topic.partitions
            ),
        )
        for topic in topics
    )


async def handle_add_offsets(call: Call) -> Any:
    """Add the partition of `__consumer_offsets` that has a group's offsets."""
    request = call.request
    call.pending.connection.affinity.follow_transaction(request.transactional_id)
    partition = TopicPartition(OFFSETS_TOPIC, call.broker.groups.partition_of(request.group_id))
    if not request.group_id:
        error = ErrorCode.INVALID_GROUP_ID
    else:
        addition = AddPartitionsRequest(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            (partition,),
            max_wait_ms=longest_wait_ms(call),
        )
        (error,) = await _errors(call, addition)
    return call.types.AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=error)


async def handle_end(call: Call) -> Any:
    """Commit or abort. From version 5 on the response has the producer id and epoch for the next transaction."""
    request = call.request
    call.pending.connection.affinity.follow_transaction(request.transactional_id)
    ending = EndTxnRequest(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        _VERSION_2 if call.version >= _FIRST_WITH_EPOCH_BUMP else 0,
    )
    try:
        answer = await with_producer_id(call, ending)
    except RaykaError as error:
        answer = ProducerIdResponse(error.code)
    return call.types.EndTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=known_error(call, answer.error, _FIRST_WITH_FENCED),
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )
