"""ListOffsets 0-11 and OffsetForLeaderEpoch 0-4."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rayka.errors import ErrorCode
from rayka.gateway.handlers.responses import NO_THROTTLE
from rayka.gateway.server.request import Call
from rayka.types import (
    NO_LEADER_EPOCH,
    EpochEndOffset,
    EpochQuery,
    IsolationLevel,
    OffsetAnswer,
    OffsetQuery,
    OffsetSpec,
    TopicPartition,
)

# The first version that may ask for each timestamp with a meaning of its own.
_FIRST_WITH = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}


async def handle_list_offsets(call: Call) -> Any:
    """Find offsets by timestamp. Version 0 answers with offsets of segments, however little they say of records."""
    queries = [
        OffsetQuery(TopicPartition(topic.name, partition.partition_index), *_asked(call, partition))
        for topic in call.request.topics
        for partition in topic.partitions
    ]
    found = iter(await _list_offsets(call, queries))
    types = call.types
    return types.ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            types.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _partition_response(call, partition.partition_index, next(found)) for partition in topic.partitions
                ),
            )
            for topic in call.request.topics
        ),
    )


def _asked(call: Call, partition: Any) -> tuple[int, int, int | None]:
    """Timestamp, leader epoch and, in version 0, how many offsets; the log's end is as old as the question."""
    if call.version:
        return partition.timestamp, getattr(partition, "current_leader_epoch", NO_LEADER_EPOCH), None
    is_now = partition.timestamp >= call.broker.now_ms()
    timestamp = int(OffsetSpec.LATEST) if is_now else partition.timestamp
    return timestamp, NO_LEADER_EPOCH, max(partition.max_num_offsets, 0)


async def _list_offsets(call: Call, queries: list[OffsetQuery]) -> list[OffsetAnswer]:
    """Ask the leaders for all queries that this version allows."""
    times = Counter(query.topic_partition for query in queries)
    answers = [_refusal(call.version, query, times[query.topic_partition]) for query in queries]
    level = call.field("isolation_level", 0)
    if level not in (0, 1):
        answers = [OffsetAnswer(ErrorCode.INVALID_REQUEST)] * len(queries)
    allowed = [query for query, refusal in zip(queries, answers, strict=True) if refusal is None]
    found = iter(await call.broker.partitions.list_offsets(allowed, IsolationLevel(level)) if allowed else ())
    return [next(found) if answer is None else answer for answer in answers]


def _refusal(version: int, query: OffsetQuery, times: int) -> OffsetAnswer | None:
    if times > 1:
        return OffsetAnswer(ErrorCode.INVALID_REQUEST)
    if version < _FIRST_WITH.get(query.timestamp, 0):  # type: ignore[call-overload]
        return OffsetAnswer(ErrorCode.UNSUPPORTED_VERSION)
    return None


def _partition_response(call: Call, partition: int, answer: OffsetAnswer) -> Any:
    return call.types.ListOffsetsPartitionResponse(
        partition_index=partition,
        error_code=_error(call.version, answer.error),
        old_style_offsets=answer.offsets,
        timestamp=answer.timestamp,
        offset=answer.offset,
        leader_epoch=answer.leader_epoch,
    )


def _error(version: int, error: int) -> int:
    """Clients before version 5 do not know OFFSET_NOT_AVAILABLE (KIP-207)."""
    is_unknown = error == ErrorCode.OFFSET_NOT_AVAILABLE and version < 5
    return int(ErrorCode.LEADER_NOT_AVAILABLE) if is_unknown else error


async def handle_offset_for_leader_epoch(call: Call) -> Any:
    """Find where leader epochs ended (KIP-101, KIP-320)."""
    queries = [
        EpochQuery(
            TopicPartition(topic.topic, partition.partition),
            partition.leader_epoch,
            getattr(partition, "current_leader_epoch", NO_LEADER_EPOCH),
        )
        for topic in call.request.topics
        for partition in topic.partitions
    ]
    found = iter(await call.broker.partitions.epoch_end_offsets(queries) if queries else ())
    types = call.types
    return types.OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            types.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _epoch_response(call, partition.partition, next(found)) for partition in topic.partitions
                ),
            )
            for topic in call.request.topics
        ),
    )


def _epoch_response(call: Call, partition: int, answer: EpochEndOffset) -> Any:
    return call.types.EpochEndOffset(
        error_code=answer.error,
        partition=partition,
        leader_epoch=answer.leader_epoch,
        end_offset=answer.end_offset,
    )
