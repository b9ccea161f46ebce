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
    """Find offsets by timestamp. Version 0 answers with a list of offsets."""
    queries = [
        OffsetQuery(
            TopicPartition(topic.name, partition.partition_index),
            partition.timestamp,
            getattr(partition, "current_leader_epoch", NO_LEADER_EPOCH),
        )
        for topic in call.request.topics
        for partition in topic.partitions
    ]
    answers = await _list_offsets(call, queries)
    offsets = await _old_style_offsets(call, queries, answers) if call.version == 0 else [()] * len(queries)
    found = iter(zip(answers, offsets, strict=True))
    types = call.types
    return types.ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            types.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _partition_response(call, partition.partition_index, *next(found)) for partition in topic.partitions
                ),
            )
            for topic in call.request.topics
        ),
    )


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


async def _old_style_offsets(
    call: Call, queries: list[OffsetQuery], answers: list[OffsetAnswer]
) -> list[tuple[int, ...]]:
    """For version 0, offsets from which to read the records from a time on: the one asked for, and below it
    the earliest, in descending order, at most `max_num_offsets`. After the last record stands the end."""
    ends, starts = [
        await call.broker.partitions.list_offsets(
            [OffsetQuery(query.topic_partition, spec) for query in queries], IsolationLevel.READ_UNCOMMITTED
        )
        for spec in (OffsetSpec.LATEST, OffsetSpec.EARLIEST)
    ]
    limits = [max(partition.max_num_offsets, 0) for topic in call.request.topics for partition in topic.partitions]
    offsets: list[tuple[int, ...]] = []
    for answer, end, start, limit in zip(answers, ends, starts, limits, strict=True):
        found = {end.offset if answer.offset < 0 else answer.offset, start.offset}
        offsets.append(() if answer.error else tuple(sorted(found, reverse=True))[:limit])
    return offsets


def _partition_response(call: Call, partition: int, answer: OffsetAnswer, offsets: tuple[int, ...]) -> Any:
    return call.types.ListOffsetsPartitionResponse(
        partition_index=partition,
        error_code=answer.error,
        old_style_offsets=offsets,
        timestamp=answer.timestamp,
        offset=answer.offset,
        leader_epoch=answer.leader_epoch,
    )


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
