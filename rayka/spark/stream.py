"""A topic in micro-batches, each DataFrame passed to a sink, with a checkpoint on disk.

A batch's number and offsets are written to disk before it runs, and its commit after the sink has returned. After a
crash the last batch may run again, with the same number and the same records. A sink writes each record exactly once if
it ignores a number that it has already seen, or replaces what it wrote with this number.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from rayka.client.consumer.range_reader import COLUMNS
from rayka.client.consumer.topic_offsets import TopicOffsets, believed_bounds, isolation_of
from rayka.client.forms import Closing
from rayka.errors import RaykaError
from rayka.ranges.batches import MicroBatches, OnDataLoss, StreamSettings, behind, up_to
from rayka.ranges.checkpoint import Checkpoint, PlannedBatch
from rayka.ranges.losses import Bounds, DataLoss
from rayka.ranges.plan import OffsetRange, Positions, split
from rayka.spark.read import read_splits
from rayka.spark.running import KeepingSink, RunningBatch, Sink, run_batch
from rayka.spark.sessions import ray_cluster_of
from rayka.spark.values.decoding import Decoding
from rayka.storage.files import RealFiles
from rayka.types import IsolationLevel

logger = logging.getLogger(__name__)

_KEPT_PROGRESS = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of one batch.

    `offsets` is the number of offsets that it read, `behind` the number after it. With `on_data_loss="skip"`, `losses`
    names records that were lost before the stream had read them, and those that were deleted while the batch ran: it
    may have read some of these. If their look-up fails, the next batch reports them.
    """

    batch_id: int
    offsets: int
    behind: int
    duration_s: float
    ranges: tuple[OffsetRange, ...]
    losses: tuple[DataLoss, ...] = ()

    def __str__(self) -> str:
        rate = self.offsets / max(self.duration_s, 1e-9)
        return (
            f"batch {self.batch_id}: {self.offsets:,} offsets in {self.duration_s:.2f} s ({rate:,.0f}/s),"
            f" {self.behind:,} behind{''.join(f'; lost: {each}' for each in self.losses)}"
        )


@dataclass(frozen=True, slots=True)
class _Frames:
    """How a batch becomes a DataFrame."""

    columns: Sequence[str]
    values: Decoding | None
    min_partitions: int
    isolation: IsolationLevel
    on_data_loss: OnDataLoss

    def read(self, spark: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The records of a batch."""
        splits = split(ranges, self.min_partitions)
        return read_splits(spark, splits, self.columns, self.values, self.isolation, self.on_data_loss)


class TopicStream(Closing):
    """Runs one batch after the other: `process_available()` up to the current end, `run()` until it is stopped.

    `progress` has the last batches; str() of one is a line for people. The end of a `with` block calls `close`.
    """

    def __init__(self, spark: SparkSession, batches: MicroBatches, frames: _Frames, sink: Sink) -> None:
        self.progress: deque[Progress] = deque(maxlen=_KEPT_PROGRESS)
        self._spark = spark
        self._batches = batches
        self._frames = frames
        self._sink = sink
        self._stopping = threading.Event()
        self._used_sinks: set[KeepingSink] = set()
        self._unreported: tuple[DataLoss, ...] = ()
        self._unchecked: tuple[OffsetRange, ...] = ()

    def process_available(self) -> list[Progress]:
        """Process all records that exist now, in as many batches as needed, and return. What comes later is left."""
        done = []
        first = bounds = believed_bounds(self._batches)
        while not self._stopping.is_set() and (progress := self._process_next(bounds)) is not None:
            done.append(progress)
            if progress.losses:  # else a topic that is gone would be planned again, as a new one
                bounds = up_to(first, believed_bounds(self._batches))
        return done

    def run(self, interval_s: float = 1.0) -> None:
        """Process batches until `stop`, at most one every `interval_s`; an error of the sink ends it."""
        while not self._stopping.is_set():
            started = time.monotonic()
            self._process_next(believed_bounds(self._batches))
            self._stopping.wait(max(0.0, started + interval_s - time.monotonic()))

    def stop(self) -> None:
        """Make `run` return after the current batch. From any thread, or from the sink."""
        self._stopping.set()

    def close(self) -> None:
        """Stop, and release the checkpoint and the resources of sinks, even if one of them fails to close."""
        self.stop()
        with ExitStack() as closing:
            closing.callback(self._batches.close)
            while self._used_sinks:
                closing.callback(self._used_sinks.pop().release, self._batches.stream_id)

    def _process_next(self, bounds: Bounds) -> Progress | None:
        started_s = time.monotonic()
        batch = self._batches.next(bounds)
        if batch is None:
            return None
        self._report(batch, self._batches.losses)
        try:
            self._give(batch)
        except Exception:
            if not self._deleted_since(batch.ranges):
                raise
            message = "batch %d runs again without records that were deleted meanwhile"
            logger.warning(message, batch.batch_id, exc_info=True)
            return None if self._stopping.is_set() else self._process_next(believed_bounds(self._batches))
        read = (*self._unchecked, *batch.ranges)
        deleted = self._deleted_since(read)
        self._report(batch, deleted or ())
        self._batches.commit(batch)
        self._unchecked = read if deleted is None else ()
        losses, self._unreported = self._unreported, ()
        offsets, duration_s = sum(map(len, batch.ranges)), time.monotonic() - started_s
        progress = Progress(batch.batch_id, offsets, behind(batch, bounds), duration_s, batch.ranges, losses)
        self.progress.append(progress)
        logger.info("%s", progress)
        return progress

    def _deleted_since(self, ranges: Sequence[OffsetRange]) -> Sequence[DataLoss] | None:
        """What was deleted of ranges that were read; None if the look-up failed."""
        try:
            return self._batches.deleted_since(ranges)
        except RaykaError:
            logger.warning("cannot tell whether records were deleted while they were read", exc_info=True)
            return None

    def _report(self, batch: PlannedBatch, losses: Sequence[DataLoss]) -> None:
        """Log losses, and keep them for the `Progress` of this batch, which may have to run again before."""
        for loss in losses:
            logger.warning("batch %d: %s", batch.batch_id, loss)
        self._unreported = (*self._unreported, *losses)

    def _give(self, batch: PlannedBatch) -> None:
        running = RunningBatch(self._batches.stream_id, batch.ranges)
        try:
            with run_batch(running):
                self._sink(self._frames.read(self._spark, batch.ranges), batch.batch_id)
        finally:
            self._used_sinks.update(running.sinks)


def stream_topic(
    spark: SparkSession,
    topics: str | Iterable[str] | None = None,
    *,
    checkpoint: str | os.PathLike[str],
    sink: Sink,
    pattern: str | None = None,
    starting: Positions = "earliest",
    columns: Sequence[str] = COLUMNS,
    values: Decoding | None = None,
    max_offsets_per_trigger: int | None = None,
    min_partitions: int = 1,
    read_committed: bool = True,
    on_data_loss: OnDataLoss = "fail",
) -> TopicStream:
    """A stream whose batches go to `sink(df, batch_id)`; start it with `process_available()` or `run()`.

    A new stream starts at `starting`, as that is at this call; each batch starts where the one before it ended, also
    after a restart: the directory `checkpoint` remembers. A batch has at most `max_offsets_per_trigger` offsets,
    divided among the partitions by how much each has. Where records are gone before they were read (deleted by
    retention, or with their topic), or a log ends before the offset up to which it was read, the stream fails, or with
    `on_data_loss="skip"` continues with what is there and reports what was lost in `Progress.losses`, with a batch that
    may have no records. The other arguments are those of `read_topic`.

    Raises INVALID_REQUEST if the checkpoint is in use.
    """
    settings = StreamSettings(starting, max_offsets_per_trigger, on_data_loss)
    offsets = TopicOffsets(ray_cluster_of(spark).join().admin(), topics, pattern, isolation_of(read_committed))
    batches = MicroBatches(offsets, Checkpoint(checkpoint, RealFiles()), settings, uuid.uuid4().hex)
    frames = _Frames(columns, values, min_partitions, offsets.isolation, on_data_loss)
    return TopicStream(spark, batches, frames, sink)
