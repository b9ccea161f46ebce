"""A topic without an end, cut into batches: each is planned on disk, done, and committed, one after the other.

A batch that was planned and not committed comes again after a restart, with the same number and offsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from rayka.client.closing import Closing
from rayka.client.cluster import Cluster
from rayka.ranges.checkpoint import Checkpoint, PlannedBatch
from rayka.ranges.plan import OffsetRange, Places, find_topics, plan_ranges
from rayka.types import IsolationLevel, TopicPartition

Ends: TypeAlias = Mapping[TopicPartition, OffsetRange]
"""Every partition with its end, and where to begin if it has not been read yet."""


@dataclass(frozen=True, slots=True)
class EndlessRead:
    """What is read; `starting` is where the first batch ever begins, `max_offsets` bounds each batch."""

    topics: str | tuple[str, ...] | None
    pattern: str | None = None
    starting: Places = "earliest"
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    max_offsets: int | None = None

    @classmethod
    def of(
        cls,
        topics: str | Iterable[str] | None,
        pattern: str | None,
        starting: Places,
        read_committed: bool,
        max_offsets: int | None,
    ) -> Self:
        """From the arguments of a reader."""
        named = topics if topics is None or isinstance(topics, str) else tuple(topics)
        isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        return cls(named, pattern, starting, isolation, max_offsets)


class MicroBatches(Closing):
    """The batches of one checkpoint directory, which this process holds until `close`."""

    def __init__(self, cluster: Cluster, read: EndlessRead, directory: str | os.PathLike[str]) -> None:
        self.read = read
        self._cluster = cluster
        self._checkpoint = Checkpoint(directory)
        try:
            self._last = self._checkpoint.last()
        except BaseException:
            self._checkpoint.close()
            raise

    def latest(self) -> Ends:
        """What there is now, topics and partitions that are new included."""
        topics = find_topics(self._cluster, self.read.topics, self.read.pattern)
        starting = self.read.starting if self._last is None else "earliest"
        ranges = plan_ranges(self._cluster, topics, starting, "latest", self.read.isolation)
        return {each.topic_partition: each for each in ranges}

    def next(self, ends: Ends) -> PlannedBatch | None:
        """The batch that was left undone, else a new one up to `ends`; None if there is nothing new."""
        if self._last is not None and not self._checkpoint.is_done(self._last):
            return self._last
        ranges = tuple(_limit(list(self._pending(ends)), self.read.max_offsets))
        if not any(map(len, ranges)):
            return None
        batch = PlannedBatch(0 if self._last is None else self._last.batch_id + 1, ranges)
        self._checkpoint.plan(batch)
        self._last = batch
        return batch

    def commit(self, batch: PlannedBatch) -> None:
        """The batch is done."""
        self._checkpoint.commit(batch)

    def close(self) -> None:
        """Let another process have the checkpoint."""
        self._checkpoint.close()

    def _pending(self, ends: Ends) -> Iterator[OffsetRange]:
        """What was not planned yet; a partition that is new is read from its beginning."""
        planned = {} if self._last is None else {each.topic_partition: each.end_offset for each in self._last.ranges}
        for partition, each in ends.items():
            start = planned.pop(partition, each.start_offset)
            yield OffsetRange(*partition, start, max(start, each.end_offset))
        for partition, position in planned.items():
            yield OffsetRange(*partition, position, position)


def behind(batch: PlannedBatch, ends: Ends) -> int:
    """How many offsets there are after a batch, up to `ends`."""
    done = {each.topic_partition: each.end_offset for each in batch.ranges}
    left = (each.end_offset - done.get(partition, each.start_offset) for partition, each in ends.items())
    return sum(max(0, offsets) for offsets in left)


def _limit(ranges: Sequence[OffsetRange], max_offsets: int | None) -> Iterator[OffsetRange]:
    """At most `max_offsets` in all (but at least one, if there are any), in proportion to what each partition has."""
    total = sum(map(len, ranges))
    left = total if max_offsets is None else min(max(max_offsets, 1), total)
    for each in ranges:
        part = -(-left * len(each) // total) if total else 0
        total -= len(each)
        left -= part
        yield OffsetRange(*each.topic_partition, each.start_offset, each.start_offset + part)
