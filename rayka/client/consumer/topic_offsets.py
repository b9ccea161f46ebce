"""The partitions of a bounded read or a stream of micro-batches, and their offsets, from a cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence

from rayka.client.admin.admin import Admin
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import MicroBatches
from rayka.ranges.losses import Bounds
from rayka.ranges.plan import TopicIds
from rayka.types import IsolationLevel, OffsetSpec, TopicPartition

_TIMEOUT_MS = 30_000
_PATIENCE_S = 10.0
_RETRY_S = 0.1


class TopicOffsets:
    """Topics by name, or all whose whole name matches a pattern. Raises INVALID_REQUEST unless one of both is given."""

    def __init__(
        self,
        admin: Admin,
        topics: str | Iterable[str] | None,
        pattern: str | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> None:
        if (topics is None) == (pattern is None):
            raise RaykaError(ErrorCode.INVALID_REQUEST, "give either topics or a pattern")
        self.isolation = isolation
        self._admin = admin
        self._topics = [topics] if isinstance(topics, str) else list(topics or ())
        self._pattern = None if pattern is None else re.compile(pattern)

    def topic_ids(self, *, existing_only: bool = False) -> TopicIds:
        """The partitions that there are now.

        Raises INVALID_REQUEST without a name, and UNKNOWN_TOPIC_OR_PARTITION for one that does not exist, unless
        `existing_only`.
        """
        if self._pattern is None and not self._topics:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "give at least one topic")
        found = self._admin.describe_topics(None if existing_only or self._pattern is not None else self._topics)
        return {
            TopicPartition(topic.name, partition.partition): topic.topic_id
            for topic in found
            if self._is_wanted(topic.name)
            for partition in topic.partitions
        }

    def _is_wanted(self, name: str) -> bool:
        return name in self._topics if self._pattern is None else self._pattern.fullmatch(name) is not None

    def list_offsets(self, timestamps: Mapping[TopicPartition, int], /) -> Mapping[TopicPartition, int]:
        """The offset of each timestamp (ms) or `OffsetSpec`; -1 for a time after the last record."""
        if not timestamps:
            return {}
        found = self._admin.list_offsets(dict(timestamps.items()), isolation=self.isolation, timeout_ms=_TIMEOUT_MS)
        return {partition: answer.offset for partition, answer in found.items()}

    def high_watermarks(self, partitions: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """Where the logs end for readers of uncommitted records."""
        found = self._admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), timeout_ms=_TIMEOUT_MS)
        return {partition: answer.offset for partition, answer in found.items()}

    def earliest(self, partition: TopicPartition) -> int:
        """The log start offset of a partition."""
        return self.list_offsets({partition: OffsetSpec.EARLIEST})[partition]


def isolation_of(read_committed: bool) -> IsolationLevel:
    """The isolation level that the argument of a reader stands for."""
    return IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED


def believed_bounds(batches: MicroBatches) -> Bounds:
    """The offsets that there are now. A loss that is not certain is believed when it is still there after some
    seconds: a new leader tells a low end until it knows what its followers have."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while batches.doubts(bounds := batches.bounds()) and time.monotonic() < deadline_s:
        time.sleep(_RETRY_S)
    return bounds
