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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from rayka.client.closing import Closing
from rayka.client.consumer.range_reader import COLUMNS
from rayka.ranges.batches import EndlessRead, Ends, MicroBatches, behind
from rayka.ranges.plan import OffsetRange, Places, split
from rayka.spark.decoding import Decoding
from rayka.spark.read import read_splits
from rayka.spark.sessions import ray_cluster_of

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
class _Frames:
    """How a batch becomes a DataFrame."""

    columns: Sequence[str]
    values: Decoding | None
    min_partitions: int


class Stream(Closing):
    """Runs one batch after the other: `process_available()` up to what there is now, `run()` on and on.

    `progress` has the last batches; str() of one is a line for people. A context manager that ends with `close`.
    """

    def __init__(self, spark: SparkSession, batches: MicroBatches, frames: _Frames, sink: Sink) -> None:
        self.progress: deque[Progress] = deque(maxlen=_KEPT_PROGRESS)
        self._spark = spark
        self._batches = batches
        self._frames = frames
        self._sink = sink
        self._stopping = threading.Event()

    def process_available(self) -> list[Progress]:
        """Process everything that there is at this moment, in as many batches as it takes, and return."""
        done = []
        ends = self._batches.latest()
        while not self._stopping.is_set() and (progress := self._process_next(ends)) is not None:
            done.append(progress)
        return done

    def run(self, interval_s: float = 1.0) -> None:
        """Process batches until `stop`, at most one every `interval_s`; an error of the sink ends it."""
        while not self._stopping.is_set():
            started = time.monotonic()
            self._process_next(self._batches.latest())
            self._stopping.wait(max(0.0, started + interval_s - time.monotonic()))

    def stop(self) -> None:
        """Let `run` return after the batch that is running. From any thread, or from the sink."""
        self._stopping.set()

    def close(self) -> None:
        """Stop, and let go of the checkpoint."""
        self.stop()
        self._batches.close()

    def _process_next(self, ends: Ends) -> Progress | None:
        started = time.monotonic()
        batch = self._batches.next(ends)
        if batch is None:
            return None
        frames, isolation = self._frames, self._batches.read.isolation
        splits = split(batch.ranges, frames.min_partitions)
        self._sink(read_splits(self._spark, splits, frames.columns, frames.values, isolation), batch.batch_id)
        self._batches.commit(batch)
        duration_s = time.monotonic() - started
        progress = Progress(batch.batch_id, sum(map(len, batch.ranges)), behind(batch, ends), duration_s, batch.ranges)
        self.progress.append(progress)
        logger.info("%s", progress)
        return progress


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
    read = EndlessRead.of(topics, pattern, starting, read_committed, max_offsets_per_trigger)
    batches = MicroBatches(ray_cluster_of(spark).join(), read, checkpoint)
    return Stream(spark, batches, _Frames(columns, values, min_partitions), sink)
