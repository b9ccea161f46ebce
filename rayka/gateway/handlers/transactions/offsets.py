"""TxnOffsetCommit 0-6: offsets that count when the transaction commits. From version 6 on by topic id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rayka.coordinator.groups.requests import CommittedOffset, TxnOffsetCommitRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.groups.offset_commit import committed_offset, requested_partitions
from rayka.gateway.handlers.responses import NO_THROTTLE
from rayka.gateway.server.request import Call
from rayka.types import TransactionSupport

_FIRST_WITH_LOADING: Final = 2
_FIRST_BY_ID: Final = 6
_FIRST_WITH_ABORTABLE: Final = 4
_FIRST_THAT_ADDS: Final = 5


async def handle(call: Call) -> Any:
    """Commit offsets in a transaction, each of which may be refused on its own."""
    requested = list(requested_partitions(call, by_id=call.version >= _FIRST_BY_ID))
    existing = [committed_offset(one.topic, one.partition) for one in requested if one.topic and not one.error]
    committed = iter(await _commit(call, existing))
    errors = iter([one.error or next(committed) for one in requested])
    return call.types.TxnOffsetCommitResponse(throttle_time=NO_THROTTLE, topics=tuple(_topics(call, errors)))


def _topics(call: Call, errors: Iterator[ErrorCode]) -> Iterator[Any]:
    types = call.types
    for topic in call.request.topics:
        yield types.TxnOffsetCommitResponseTopic(
            name=getattr(topic, "name", ""),
            topic_id=getattr(topic, "topic_id", None),
            partitions=tuple(
                types.TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=next(errors)
                )
                for partition in topic.partitions
            ),
        )


def _support(version: int) -> TransactionSupport:
    if version >= _FIRST_THAT_ADDS:
        return TransactionSupport.ADD_PARTITIONS
    return TransactionSupport.ABORTABLE_ERRORS if version >= _FIRST_WITH_ABORTABLE else TransactionSupport.VERIFY


async def _commit(call: Call, offsets: Sequence[CommittedOffset]) -> Sequence[ErrorCode]:
    """An error for each offset."""
    if not offsets:
        return ()
    request = TxnOffsetCommitRequest(
        call.request.group_id,
        tuple(offsets),
        call.request.transactional_id,
        call.request.producer_id,
        call.request.producer_epoch,
        _support(call.version),
        call.field("generation_id", -1),
        call.field("member_id", ""),
        call.field("group_instance_id", None),
    )
    try:
        errors: Sequence[ErrorCode] = (await call.broker.groups.execute(request)).errors
    except RaykaError as error:
        errors = [error.code] * len(offsets)
    return [_for_version(error, call.version) for error in errors]


def _for_version(error: ErrorCode, version: int) -> ErrorCode:
    """The error in this version: old clients do not expect a coordinator that loads here (KAFKA-7296)."""
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _FIRST_WITH_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error
