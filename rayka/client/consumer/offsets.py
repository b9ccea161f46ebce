"""Looking up offsets by time, with retries while leaders change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Self

from rayka.errors import ErrorCode, RaykaError, may_pass
from rayka.gateway.ports import Broker
from rayka.metadata.image import MetadataImage
from rayka.types import NO_OFFSET, IsolationLevel, OffsetAnswer, OffsetQuery, TopicPartition

UNKNOWN_FOR_S = 2.0
"""How long a partition may be unknown before it is taken for one that does not exist."""


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after the requested time. `timestamp` is in ms since the epoch."""

    offset: int
    timestamp: int
    leader_epoch: int

    @classmethod
    def of(cls, answer: OffsetAnswer) -> Self | None:
        """What a look-up has found; None if no record is as late."""
        return None if answer.offset == NO_OFFSET else cls(answer.offset, answer.timestamp, answer.leader_epoch)


def require_timestamps(timestamps: Mapping[TopicPartition, int]) -> None:
    """Raises INVALID_REQUEST for what is not a number of ms since the epoch."""
    for topic_partition, timestamp in timestamps.items():
        if not isinstance(timestamp, int) or timestamp < 0:
            message = f"timestamp of {topic_partition} must be ms, not {timestamp!r}"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)


async def look_up(
    broker: Broker,
    timestamps: Mapping[TopicPartition, int],
    isolation: IsolationLevel,
    *,
    timeout_ms: int,
    retry_backoff_ms: int,
) -> dict[TopicPartition, OffsetAnswer]:
    """The offset of each partition's timestamp (ms) or `OffsetSpec`; errors that may pass are retried.

    Raises the error of the first partition that has one, naming it.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    answers: dict[TopicPartition, OffsetAnswer] = {}
    left = dict(timestamps)
    while left:
        queries = [OffsetQuery(topic_partition, timestamp) for topic_partition, timestamp in left.items()]
        for query, answer in zip(queries, await broker.partitions.list_offsets(queries, isolation), strict=True):
            if answer.error == ErrorCode.NONE:
                answers[query.topic_partition] = answer
                del left[query.topic_partition]
            else:
                _require_patience(broker, query.topic_partition, answer, loop.time() - started_s, timeout_ms / 1000)
        if left:
            await asyncio.sleep(retry_backoff_ms / 1000)
    return {topic_partition: answers[topic_partition] for topic_partition in timestamps}


def absence(image: MetadataImage, topic_partition: TopicPartition) -> str | None:
    """A sentence about the topic or partition that does not exist, for an error; None if both exist."""
    topic = image.topics.get(topic_partition.topic)
    if topic is None:
        return f"topic {topic_partition.topic} does not exist"
    if not 0 <= topic_partition.partition < len(topic.partitions):
        return f"topic {topic.name} has no partition {topic_partition.partition}; it has {len(topic.partitions)}"
    return None


def _require_patience(
    broker: Broker, topic_partition: TopicPartition, answer: OffsetAnswer, waited_s: float, timeout_s: float
) -> None:
    code = ErrorCode(answer.error)
    patience_s = min(timeout_s, UNKNOWN_FOR_S) if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else timeout_s
    if not may_pass(code) or waited_s >= patience_s:
        reason = f"no offset of {topic_partition} after {waited_s:.1f} s"
        raise RaykaError(code, absence(broker.image, topic_partition) or reason)
