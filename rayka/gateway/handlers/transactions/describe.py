"""ListTransactions 0-2, DescribeTransactions 0, DescribeProducers 0 and WriteTxnMarkers 1-2, for tools (KIP-664)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from rayka.coordinator.transactions.requests import (
    DescribedTransaction,
    DescribeTransactionRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE
from rayka.gateway.server.request import Call
from rayka.gateway.wire.codec import EPOCH, MILLISECOND
from rayka.types import ActiveProducers, TopicPartition, TxnMarker


async def handle_list(call: Call) -> Any:
    """The transactional ids of this node's coordinators, by state, producer id, age and pattern; tools ask all."""
    request = ListTransactionsRequest(
        tuple(call.request.state_filters),
        tuple(call.request.producer_id_filters),
        call.field("duration_filter", -1),
        call.field("transactional_id_pattern", None),
        call.broker.now_ms(),
    )
    error, answers = ErrorCode.NONE, []
    try:
        answers = await call.broker.transactions.execute_all(request, call.broker.node_id)
    except RaykaError as refusal:
        error = refusal.code
    return call.types.ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        unknown_state_filters=answers[0].unknown_states if answers else (),
        transaction_states=tuple(_listed(call, answers)),
    )


def _listed(call: Call, answers: Iterable[ListTransactionsResponse]) -> Iterable[Any]:
    for answer in answers:
        for one in answer.transactions:
            yield call.types.TransactionState(
                transactional_id=one.transactional_id, producer_id=one.producer_id, transaction_state=one.state
            )


async def handle_describe(call: Call) -> Any:
    """Transactional ids, each with its open transaction."""
    transactional_ids = dict.fromkeys(call.request.transactional_ids)
    described = await asyncio.gather(*(_describe(call, each) for each in transactional_ids))
    return call.types.DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE, transaction_states=tuple(_state(call, one) for one in described)
    )


async def _describe(call: Call, transactional_id: str) -> DescribedTransaction:
    try:
        return (await call.broker.transactions.execute(DescribeTransactionRequest(transactional_id))).transaction
    except RaykaError as error:
        return DescribedTransaction(transactional_id, error.code)


def _state(call: Call, one: DescribedTransaction) -> Any:
    types = call.types
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in one.partitions:
        topics[topic].append(partition)
    return types.TransactionState(
        error_code=one.error,
        transactional_id=one.transactional_id,
        transaction_state=one.state,
        transaction_timeout=one.timeout_ms * MILLISECOND,
        transaction_start_time=EPOCH + one.start_ms * MILLISECOND,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        topics=tuple(types.TopicData(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items()),
    )


async def handle_producers(call: Call) -> Any:
    """What the leaders of partitions remember of their producers; of a partition that is repeated, once."""
    types = call.types
    asked: dict[str, dict[int, None]] = defaultdict(dict)
    for topic in call.request.topics:
        asked[topic.name].update(dict.fromkeys(topic.partition_indexes))
    partitions = [TopicPartition(name, number) for name, numbers in asked.items() for number in numbers]
    answers = dict(zip(partitions, await call.broker.partitions.describe_producers(partitions), strict=True))
    return types.DescribeProducersResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            types.TopicResponse(
                name=name,
                partitions=tuple(_producers(call, number, answers[TopicPartition(name, number)]) for number in numbers),
            )
            for name, numbers in asked.items()
        ),
    )


def _producers(call: Call, partition: int, answer: ActiveProducers) -> Any:
    return call.types.PartitionResponse(
        partition_index=partition,
        error_code=answer.error,
        error_message=None,
        active_producers=tuple(call.types.ProducerState(**producer._asdict()) for producer in answer.producers),
    )


async def handle_write_markers(call: Call) -> Any:
    """End transactions in partitions; an operator ends with it those that no coordinator knows any more."""
    types = call.types
    answers = await asyncio.gather(*(_write_marker(call, one) for one in call.request.markers))
    return types.WriteTxnMarkersResponse(
        markers=tuple(
            types.WritableTxnMarkerResult(
                producer_id=one.producer_id,
                topics=tuple(
                    types.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            types.WritableTxnMarkerPartitionResult(
                                partition_index=number, error_code=errors[TopicPartition(topic.name, number)]
                            )
                            for number in topic.partition_indexes
                        ),
                    )
                    for topic in one.topics
                ),
            )
            for one, errors in zip(call.request.markers, answers, strict=True)
        )
    )


async def _write_marker(call: Call, one: Any) -> dict[TopicPartition, ErrorCode]:
    partitions = tuple(TopicPartition(topic.name, number) for topic in one.topics for number in topic.partition_indexes)
    marker = TxnMarker(
        one.producer_id,
        one.producer_epoch,
        one.coordinator_epoch,
        one.transaction_result,
        getattr(one, "transaction_version", 0),
        partitions,
    )
    return dict(zip(partitions, await call.broker.partitions.write_txn_marker(marker), strict=True))
