"""An endless topic, block by block, with a checkpoint of the blocks that are done."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.consumer.range_reader import COLUMNS, RangeReader, TopicDeleted
from rayka.client.consumer.topic_offsets import TopicOffsets, believed_bounds, isolation_of
from rayka.client.forms import Closing
from rayka.client.joined import RayCluster
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import MicroBatches, OnDataLoss, StreamSettings
from rayka.ranges.checkpoint import Checkpoint, PlannedBatch
from rayka.ranges.plan import OffsetRange, Positions
from rayka.storage.columns.read import SCHEMA, require_columns
from rayka.storage.files import RealFiles

logger = logging.getLogger(__name__)

_BLOCK_OFFSETS = 100_000
_BLOCK_BYTES = 128 * 1024 * 1024


def iter_topic(
    topics: str | Iterable[str] | None = None,
    *,
    checkpoint: str | os.PathLike[str],
    pattern: str | None = None,
    starting: Positions = "earliest",
    columns: Sequence[str] = COLUMNS,
    max_offsets_per_block: int = _BLOCK_OFFSETS,
    max_bytes_per_block: int = _BLOCK_BYTES,
    poll_interval_s: float = 0.2,
    idle_timeout_s: float | None = None,
    read_committed: bool = True,
    on_data_loss: OnDataLoss = "fail",
    namespace: str = DEFAULT_NAMESPACE,
) -> TopicBlocks:
    """The records of topics as Arrow tables, endlessly, as they arrive.

    With a new checkpoint it starts at `starting`, as resolved by this call. Requesting the next block commits the last
    one to the directory `checkpoint`: by then the program has processed it. After a restart, a block that was returned
    but not committed comes again with the same records. A block has at most `max_offsets_per_block` offsets and
    `max_bytes_per_block` bytes, or the records of one table of the leader (up to about 32 MB) if those are more.
    Iteration ends after `idle_timeout_s` without new records, or when the iterator is closed. `on_data_loss` is as for
    `rayka.spark.stream_topic`; a block that only reports a loss is empty.
    """
    require_columns(columns)
    ray_cluster = RayCluster.here(namespace)
    offsets = TopicOffsets(ray_cluster.join().admin(), topics, pattern, isolation_of(read_committed))
    reader = ray_cluster.reader(columns, offsets.isolation, on_data_loss)
    block_reader = BlockReader(reader, columns, max_bytes_per_block)
    settings = StreamSettings(starting, max_offsets_per_block, on_data_loss)
    batches = MicroBatches(offsets, Checkpoint(checkpoint, RealFiles()), settings, uuid.uuid4().hex)
    blocks = TopicBlocks(batches, block_reader, poll_interval_s, idle_timeout_s)
    ray_cluster.keep_for(blocks)
    return blocks


class BlockReader:
    """Reads the ranges of a block into one table, of at most `max_bytes`. Raises INVALID_REQUEST if that is nothing."""

    def __init__(self, reader: RangeReader, columns: Sequence[str], max_bytes: int) -> None:
        self._reader = reader
        self._columns = columns
        if max_bytes < 1:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"max_bytes_per_block must be 1 or more, not {max_bytes}")
        self._max_bytes = max_bytes
        self._read: list[list[pa.RecordBatch]] = []
        self._first = 0

    def fit(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Read, and cut the ranges off where the bytes are enough. Each time another partition is read first."""
        try:
            return self._fit(ranges)
        except BaseException:
            self._read = []  # no block has what was read so far
            raise

    def _fit(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        self._read = [[] for _ in ranges]
        self._first = (self._first + 1) % len(ranges)
        left = self._max_bytes
        fitting = list(ranges)
        for index in (*range(self._first, len(ranges)), *range(self._first)):
            end_offset, left = self._read_range(index, ranges[index], left)
            fitting[index] = ranges[index].between(ranges[index].start_offset, end_offset)
        return fitting

    def table(self, batch: PlannedBatch) -> pa.Table:
        """The records of a batch: those that `fit` has just read, or else read now."""
        read, self._read = self._read, []
        if not any(read):
            read = [[records.batch for records in self._reader.read(each)] for each in batch.ranges]
        batches = [each for of_partition in read for each in of_partition]
        return pa.Table.from_batches(batches, pa.schema([SCHEMA.field(name) for name in self._columns]))

    def _read_range(self, index: int, offsets: OffsetRange, left: int) -> tuple[int, int]:
        """Where reading ended, and how many bytes are left; a first table is taken whatever its size."""
        end_offset = offsets.start_offset
        if left <= 0:
            return end_offset, left
        for records in self._reader.read(offsets):
            if any(self._read) and records.batch.nbytes > left:
                return end_offset, 0
            self._read[index].append(records.batch)
            end_offset = records.end_offset
            left -= records.batch.nbytes
            if left <= 0:
                break
        return end_offset, left


class TopicBlocks(Closing, Iterator[pa.Table]):
    """The blocks of `iter_topic`. It holds the checkpoint until it is closed or has ended."""

    def __init__(
        self, batches: MicroBatches, reader: BlockReader, poll_interval_s: float, idle_timeout_s: float | None
    ) -> None:
        self._batches = batches
        self._reader = reader
        self._poll_interval_s = poll_interval_s
        self._idle_timeout_s = idle_timeout_s
        self._taken: PlannedBatch | None = None
        self._is_closed = False

    def __next__(self) -> pa.Table:
        if self._is_closed:
            raise StopIteration
        if self._taken is not None:
            self._batches.commit(self._taken)
            self._taken = None
        while (batch := self._wait()) is not None:
            for loss in self._batches.losses:
                logger.warning("block %d: %s", batch.batch_id, loss)
            try:
                table = self._reader.table(batch)
            except TopicDeleted as error:  # since the bounds were looked up: what is lost is in the next ones
                logger.warning("%s", error)
            else:
                self._taken = batch
                return table
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Let another process have the checkpoint; the block that was taken last comes again. Safe to repeat."""
        self._is_closed = True
        self._batches.close()

    def __del__(self) -> None:
        self.close()

    def _wait(self) -> PlannedBatch | None:
        """The next batch; None if there was nothing new for the idle time."""
        started_s = time.monotonic()
        while (batch := self._next()) is None:
            if self._idle_timeout_s is not None and time.monotonic() - started_s >= self._idle_timeout_s:
                return None
            time.sleep(self._poll_interval_s)
        return batch

    def _next(self) -> PlannedBatch | None:
        """The next batch. A topic that is deleted while it is read is a loss in the bounds after that."""
        while True:
            try:
                return self._batches.next(believed_bounds(self._batches), self._reader.fit)
            except TopicDeleted as error:
                logger.warning("%s", error)
