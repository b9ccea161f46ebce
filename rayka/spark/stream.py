"""A topic in micro-batches, each DataFrame given to a sink, with a checkpoint on disk.

A batch's number and offsets are on disk before it runs, and that it is done after its sink has returned. So
after a crash the last batch may run again, but with the same number and the same records: a sink that
ignores a number which it has seen, or replaces what it wrote under it, has each record exactly once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from rayka.client.offset_ranges import OffsetRange, Places, find_topics, plan_ranges, split
from rayka.client.range_reader import COLUMNS
from rayka.spark.checkpoint import Checkpoint, PlannedBatch
from rayka.spark.decoding import Decoding
from rayka.spark.read import read_splits
from rayka.spark.sessions import ray_cluster_of
from rayka.types import IsolationLevel, TopicPartition

logger = logging.getLogger(__name__)

Sink = Callable[[DataFrame, int], object]
_KEPT_PROGRESS = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch that is done. `offsets` counts what it read, `behind` what there was beyond it; times in seconds."""

    batch_id: int
    offsets: int
    behind: int
    duration_s: float
    ranges: tuple[OffsetRange, ...]

    def __str__(self) -> str:
        rate = self.offsets / max(self.duration_s, 1e-9)
        return (
            f"batch {self.batch_id}: {self.offsets:,} offsets in {self.duration_s:.2f} s ({rate:,.0f}/s),"
            f" {self.behind:,} behind"
        )


@dataclass(frozen=True, slots=True)
class _Source:
    topics: Sequence[str] | str | None
    pattern: str | None
    starting: Places
    columns: Sequence[str]
    values: Decoding | None
    isolation: IsolationLevel
    max_offsets_per_trigger: int | None
    min_partitions: int


class Stream:
    """Runs one batch after the other: `process_available()` up to what there is now, `run()` on and on.

    `progress` has the last batches; str() of one is a line for people. A context manager that ends with `close`.
    """

    def __init__(self, spark: SparkSession, source: _Source, checkpoint: Checkpoint, sink: Sink) -> None:
        self.progress: deque[Progress] = deque(maxlen=_KEPT_PROGRESS)
        self._spark = spark
        self._cluster = ray_cluster_of(spark).join()
        self._source = source
        self._checkpoint = checkpoint
        self._sink = sink
        self._last = checkpoint.last()
        self._stopping = threading.Event()

    def process_available(self) -> list[Progress]:
        """Process everything that there is at this moment, in as many batches as it takes, and return."""
        done = []
        target = self._latest()
        while not self._stopping.is_set() and (progress := self._next(target)) is not None:
            done.append(progress)
        return done

    def run(self, interval_s: float = 1.0) -> None:
        """Process batches until `stop`, at most one every `interval_s`; an error of the sink ends it."""
        while not self._stopping.is_set():
            started = time.monotonic()
            self._next(self._latest())
            self._stopping.wait(max(0.0, started + interval_s - time.monotonic()))

    def stop(self) -> None:
        """Let `run` return after the batch that is running. From any thread, or from the sink."""
        self._stopping.set()

    def close(self) -> None:
        """Stop, and let go of the checkpoint."""
        self.stop()
        self._checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self, latest: Mapping[TopicPartition, OffsetRange]) -> Progress | None:
        """Run the batch that was left undone, or plan one up to `latest` and run it; None if there is nothing new."""
        batch = self._last
        if batch is None or self._checkpoint.is_done(batch):
            batch = self._plan(latest)
            if batch is None:
                return None
            self._checkpoint.plan(batch)
            self._last = batch
        return self._process(batch, latest)

    def _process(self, batch: PlannedBatch, latest: Mapping[TopicPartition, OffsetRange]) -> Progress:
        started = time.monotonic()
        source = self._source
        splits = split(batch.ranges, source.min_partitions)
        self._sink(read_splits(self._spark, splits, source.columns, source.values, source.isolation), batch.batch_id)
        self._checkpoint.commit(batch)
        ends = {each.topic_partition: each.end_offset for each in batch.ranges}
        behind = sum(each.end_offset - ends.get(partition, each.start_offset) for partition, each in latest.items())
        progress = Progress(
            batch.batch_id, sum(map(len, batch.ranges)), max(behind, 0), time.monotonic() - started, batch.ranges
        )
        self.progress.append(progress)
        logger.info("%s", progress)
        return progress

    def _plan(self, latest: Mapping[TopicPartition, OffsetRange]) -> PlannedBatch | None:
        ranges = tuple(_limit(list(self._pending(latest)), self._source.max_offsets_per_trigger))
        if not any(map(len, ranges)):
            return None
        return PlannedBatch(0 if self._last is None else self._last.batch_id + 1, ranges)

    def _pending(self, latest: Mapping[TopicPartition, OffsetRange]) -> Iterator[OffsetRange]:
        """What was not planned yet; a partition that is new is read from its beginning."""
        planned = {} if self._last is None else {each.topic_partition: each.end_offset for each in self._last.ranges}
        for partition, each in latest.items():
            start = planned.pop(partition, each.start_offset)
            yield OffsetRange(*partition, start, max(start, each.end_offset))
        for partition, position in planned.items():
            yield OffsetRange(*partition, position, position)

    def _latest(self) -> dict[TopicPartition, OffsetRange]:
        """Every partition with its end, from where to begin if it has not been read yet."""
        source = self._source
        topics = find_topics(self._cluster, source.topics, source.pattern)
        starting = source.starting if self._last is None else "earliest"
        ranges = plan_ranges(self._cluster, topics, starting, "latest", source.isolation)
        return {each.topic_partition: each for each in ranges}


def stream_topic(
    spark: SparkSession,
    topics: str | Iterable[str] | None = None,
    *,
    checkpoint: str | os.PathLike[str],
    sink: Sink,
    pattern: str | None = None,
    starting: Places = "earliest",
    columns: Sequence[str] = COLUMNS,
    values: Decoding | None = None,
    max_offsets_per_trigger: int | None = None,
    min_partitions: int = 1,
    read_committed: bool = True,
) -> Stream:
    """A stream whose batches go to `sink(df, batch_id)`; start it with `process_available()` or `run()`.

    The first batch ever begins at `starting`, later ones, also after a restart, where the one before them ended:
    the directory `checkpoint` knows. Each has at most `max_offsets_per_trigger` offsets, divided among
    the partitions by how much each has. The other arguments are those of `read_topic`.
    """
    isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    named = topics if topics is None or isinstance(topics, str) else list(topics)
    source = _Source(named, pattern, starting, columns, values, isolation, max_offsets_per_trigger, min_partitions)
    held = Checkpoint(checkpoint)
    try:
        return Stream(spark, source, held, sink)
    except BaseException:
        held.close()
        raise


def _limit(ranges: Sequence[OffsetRange], max_offsets: int | None) -> Iterator[OffsetRange]:
    """At most `max_offsets` in all (but at least one, if there are any), in proportion to what each partition has."""
    total = sum(map(len, ranges))
    left = total if max_offsets is None else min(max(max_offsets, 1), total)
    for each in ranges:
        part = -(-left * len(each) // total) if total else 0
        total -= len(each)
        left -= part
        yield OffsetRange(*each.topic_partition, each.start_offset, each.start_offset + part)
