"""One segment of a log: record batches from a base offset on, and the two indexes over them.

Only the last segment of a log is written to, and only it keeps a descriptor open. Files are named by
the base offset in 20 digits, as Kafka names them.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator
from itertools import groupby
from math import inf
from typing import NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import FileStatus, RealFiles
from rayka.storage.format.batch import (
    LOG_OVERHEAD,
    MAGIC,
    MIN_BATCH_LENGTH,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    read_header,
)
from rayka.storage.segments.index import OffsetIndex, TimeIndex, TimestampOffset
from rayka.storage.segments.scan import ScannedBatch, iter_batches
from rayka.storage.segments.spare import SpareFile
from rayka.storage.segments.transaction_index import AbortedTxn, TransactionIndex
from rayka.types import NO_TIMESTAMP

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

SCAN_BYTES = 8192
"""Bytes read at once while looking for a batch from an index entry on."""

_FRAME = struct.Struct(">qi11xi30xi")
"""Base offset, length, last offset delta and record count of a batch."""


def file_name(base_offset: int, suffix: str) -> str:
    """`00000000000000000042.log`"""
    return f"{base_offset:020d}{suffix}"


class BatchPosition:
    """A batch in a segment: its header and where it begins."""

    __slots__ = ("header", "position")

    def __init__(self, position: int, header: BatchHeader) -> None:
        self.position = position
        self.header = header


class _Start(NamedTuple):
    """From which position on to look for a batch. `is_doubtful`: the index says that a batch there has other offsets
    than its header, so that one of both is wrong.
    """

    position: int
    is_doubtful: bool = False


class Segment:
    """A `.log` file with its `.index` and `.timeindex`.

    `size` is the bytes of batches (a preallocated file is longer). `max_timestamp` and
    `offset_of_max_timestamp` are the largest timestamp and the last offset of its batch; -1 when empty.
    `rolling_timestamp` is the first batch's, from which `segment.ms` counts; -1 where there is none.
    """

    def __init__(
        self, files: RealFiles, directory: str, base_offset: int, *, index_bytes: int, index_interval: int
    ) -> None:
        self.base_offset = base_offset
        self.path = os.path.join(directory, file_name(base_offset, LOG_SUFFIX))
        self.size = 0
        self.created_ms = 0
        self.inode = 0
        """The number of the log's file, by which readers know it from another with its name."""
        self.offset_index = OffsetIndex(files, self._sibling(INDEX_SUFFIX), base_offset, index_bytes)
        self.time_index = TimeIndex(files, self._sibling(TIME_INDEX_SUFFIX), base_offset, index_bytes)
        self.transaction_index = TransactionIndex(files, self._sibling(TRANSACTION_INDEX_SUFFIX))
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self.rolling_timestamp = NO_TIMESTAMP
        self.has_full_index = False
        self.bytes_since_last_index_entry = 0
        self.flushed_offset = base_offset
        """Batches below this offset are on the device."""
        self.has_flushed_indexes = False
        """Whether the indexes were on the device at the last flush, with an entry for every batch below it."""
        self._files = files
        self._index_interval = index_interval
        self._descriptor = -1
        self._modified_ms: int | None = None
        self._is_released = False
        self._index_work_is_due = True
        """Whether the next append has to read or to write the indexes first, since it can't fail behind its write."""
        self._is_preallocated = True
        """Whether the file may have bytes or blocks behind the batches; not known of a file of before."""
        self._has_blocks_ahead = False

    def _sibling(self, suffix: str) -> str:
        return self.path.removesuffix(LOG_SUFFIX) + suffix

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that may belong to the segment."""
        return self.path, self.offset_index.path, self.time_index.path, self.transaction_index.path

    def open(self) -> None:
        """Open existing files; only their size is read."""
        self._take_up(self._files.status(self.path))

    def _take_up(self, status: FileStatus) -> None:
        self.size, self.created_ms, self.inode = status

    def open_renamed(self, suffix: str) -> None:
        """Open complete files whose names still end in `suffix`; until `freeze` nothing is looked up by name."""
        self._descriptor = self._files.open(self.path + suffix, read_only=True)
        self._take_up(self._files.status(self._descriptor))
        self._modified_ms = self.created_ms
        for index in (self.offset_index, self.time_index, self.transaction_index):
            index.load(suffix)

    def create(self, now_ms: int, preallocate: int = 0, spare: SpareFile | None = None) -> None:
        """Create the empty log and keep it open; after an OSError it does not exist. Indexes begin in memory."""
        self.created_ms = now_ms
        try:
            self._create_log(preallocate, spare)
        except OSError:
            self.close()
            for path in self.paths:
                self._files.remove_if_present(path)
            raise

    def _create_log(self, preallocate: int, spare: SpareFile | None) -> None:
        is_made = spare is not None and spare.take(self.path)
        descriptor = self.descriptor(create=not is_made)
        status = self._files.status(descriptor)
        if status.size:
            self._files.truncate(descriptor, 0)
        if preallocate:
            self._files.truncate(descriptor, preallocate)
        self._is_preallocated = bool(preallocate)
        self.inode = status.inode
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.begin()
        self._index_work_is_due = False

    def create_indexes(self) -> None:
        """Create the index files if they do not exist; otherwise the first write to them does. From any thread."""
        for index in (self.offset_index, self.time_index):
            if not self._is_released and not self._files.exists(index.path):
                self._files.close(self._files.open(index.path, create=True))

    def descriptor(self, *, create: bool = False) -> int:
        """The descriptor for writing; opened when it is first needed."""
        if self._descriptor < 0:
            self._descriptor = self._files.open(self.path, create=create)
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._files.close(descriptor)

    def release(self) -> None:
        """Close the descriptor, and write no more to the indexes: the files will be deleted, or belong to another log.

        A flush that began before may still end later, in its thread.
        """
        self._is_released = True
        self.close()

    # -- writing --------------------------------------------------------------------------------

    def write(self, records: Buffer) -> None:
        """Put bytes at the end. After an OSError the segment is as it was."""
        if self._index_work_is_due:
            self._prepare_indexes()
        descriptor = self._descriptor if self._descriptor >= 0 else self.descriptor()
        try:
            written = self._files.write(descriptor, records, self.size)
            if written != len(records):
                self._write_rest(descriptor, memoryview(records)[written:], self.size + written)
        except OSError:
            self._restore(descriptor)
            raise
        self.size += len(records)

    def _prepare_indexes(self) -> None:
        """Do all the input and output that indexing a batch may need."""
        for index in (self.offset_index, self.time_index, self.transaction_index):
            index.load()
        self.write_indexes()
        self._index_work_is_due = False

    def _write_rest(self, descriptor: int, rest: memoryview, position: int) -> None:
        while rest:
            written = self._files.write(descriptor, rest, position)
            if not written:
                raise OSError(errno.ENOSPC, "the file takes no more bytes", self.path)
            rest, position = rest[written:], position + written

    def _restore(self, descriptor: int) -> None:
        """Cut off what a failed call left. If that fails too, the next write goes over it, or the roll cuts it off."""
        try:
            self._files.truncate(descriptor, self.size)
        except OSError as error:
            self._is_preallocated = True
            error.add_note(f"{self.path} may end with a part of a batch")
            raise

    def index_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Note a batch that was written: largest timestamp, and an index entry each interval. Works only in memory."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self.bytes_since_last_index_entry > self._index_interval:
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)
            self.bytes_since_last_index_entry = 0
            if self.offset_index.is_write_due:
                self._index_work_is_due = True
            self.has_full_index = self.offset_index.is_full or self.time_index.is_full
        self.bytes_since_last_index_entry += size
        if position == 0:
            self.rolling_timestamp = max_timestamp

    def end_appends(self) -> None:
        """Add the last time index entry. Indexes stay in memory until they were written, then `freeze`."""
        self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)
        if self._is_preallocated:
            self.cut_to_batches()

    def set_blocks_aside(self, size: int) -> bool:
        """Give the file the blocks for `size` more bytes, if the file system gains by it. Raises OSError.

        A file system that has too few may have given all of them: then others need them more.
        """
        descriptor = self.descriptor()
        try:
            is_done = self._files.set_blocks_aside(descriptor, self.size, size)
        except OSError:
            self._restore(descriptor)
            raise
        self._has_blocks_ahead |= is_done
        return is_done

    def cut_to_batches(self) -> None:
        """Give back what the file has behind its batches, bytes or blocks. Raises OSError."""
        self._files.truncate(self.descriptor(), self.size)
        self._has_blocks_ahead = False

    def freeze(self) -> None:
        """Free the memory of the indexes, give back blocks, and close the descriptor.

        The batches are on the device by now: as long as the last page is written to it, a cut waits.
        """
        if self._is_released:
            return
        if self._has_blocks_ahead:
            self.cut_to_batches()
        self.offset_index.freeze()
        self.time_index.freeze()
        self.transaction_index.freeze()
        self._index_work_is_due = True
        self.close()

    def become_inactive(self) -> None:
        """Write the indexes, with the last entry, and cut the log to what it holds."""
        self.flush_indexes()
        if self._descriptor >= 0:
            self._files.truncate(self._descriptor, self.size)
        self.freeze()

    def flush_indexes(self) -> None:
        """Bring the index files up to date, with the largest timestamp so far as the last entry."""
        self.time_index.append_if_later(self.max_timestamp, self.offset_of_max_timestamp)
        self.write_indexes()

    def write_indexes(self) -> None:
        """Write the index entries that are only in memory.

        The time index goes first: recovery relies on it to know all timestamps up to an entry in the other.
        """
        if self._is_released:
            return
        self.time_index.write()
        self.offset_index.write()
        self.transaction_index.write()

    def add_aborted(self, aborted: AbortedTxn) -> None:
        """Note a transaction that was aborted; it is written before the next append."""
        self.transaction_index.append(aborted)
        self._index_work_is_due = True

    # -- flushing -------------------------------------------------------------------------------

    def is_flushed(self, end_offset: int) -> bool:
        """Whether the segment, which ends at `end_offset`, is on the device with its indexes."""
        return self.has_flushed_indexes and self.flushed_offset >= end_offset

    @property
    def is_new_on_device(self) -> bool:
        """Whether the directory may not name the files of this segment yet."""
        return self.flushed_offset == self.base_offset

    def flushed(self, offset: int, with_indexes: bool) -> None:
        """Note that the batches below `offset` are on the device, and the indexes too or not."""
        if with_indexes or offset > self.flushed_offset:
            self.flushed_offset = max(self.flushed_offset, offset)
            self.has_flushed_indexes = with_indexes

    def truncated(self, end_offset: int) -> None:
        """Note that the segment ends at `end_offset` now. Raises OSError."""
        self.transaction_index.truncate_to(end_offset)
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.has_flushed_indexes = False

    # -- repairing ------------------------------------------------------------------------------

    def begin_reindex(self, position: int) -> None:
        """Forget what the indexes say of the batches from `position` on: one that has an index entry, or 0.

        Those batches come again through `index_batch`; then `write_indexes`.
        """
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self.bytes_since_last_index_entry = 0
        if position == 0:
            self.offset_index.reset()
            self.time_index.reset()
        else:
            entry = self.offset_index.lookup_position(position)
            self.offset_index.truncate_to(entry.offset + 1)
            self.time_index.truncate_to(entry.offset + 1)
            self.largest_timestamp()

    def reindex(self, position: int) -> None:
        """Build the indexes again from a batch on that has an index entry, or from 0."""
        self.begin_reindex(position)
        for batch in iter_batches(self.read, position, self.size):
            header = batch.header
            self.index_batch(batch.position, header.size_in_bytes, header.last_offset, header.max_timestamp)
        self.write_indexes()

    def write_again(self, batches: Iterable[ScannedBatch]) -> Iterator[ScannedBatch]:
        """Yield intact batches and write them where they are, so that the next flush puts them on the device.

        The bytes are those that were checked: the system may read others from the device by now.
        """
        for _, chunk in groupby(batches, key=lambda batch: id(batch.data)):
            first = last = None
            for last in chunk:
                first = first or last
                yield last
            assert first is not None
            assert last is not None
            data = first.data[first.start : first.start + last.end - first.position]
            self._files.write_fully(self.descriptor(), data, first.position)

    def cut(self, size: int) -> None:
        """Shorten the log to `size` bytes, a boundary between batches, and the indexes with it."""
        self._files.truncate(self.descriptor(), size)
        self.size = size
        self.reindex(self.offset_index.lookup_position(size - 1).position if size else 0)
        self.activate()

    # -- times ----------------------------------------------------------------------------------

    def activate(self) -> None:
        """Prepare for appends: read what rolling and indexing need."""
        first = self.batch_at(0)
        self.rolling_timestamp = NO_TIMESTAMP if first is None else first.max_timestamp
        self.largest_timestamp()
        self.has_full_index = self.offset_index.is_full or self.time_index.is_full

    def last_changed_ms(self) -> int:
        """The largest timestamp, or where records have none the time of the last write."""
        timestamp = self.largest_timestamp().timestamp
        return timestamp if timestamp >= 0 else self.modified_ms()

    def modified_ms(self) -> int:
        """The time of the last write to the log."""
        return self._files.modified_ms(self.path) if self._modified_ms is None else self._modified_ms

    # -- reading --------------------------------------------------------------------------------

    def largest_timestamp(self) -> TimestampOffset:
        """The largest timestamp and the last offset of its batch, (-1, base offset) if there is none."""
        if self.max_timestamp < 0 and self.size:
            self.max_timestamp, self.offset_of_max_timestamp = self.time_index.last_entry()
        return TimestampOffset(self.max_timestamp, self.offset_of_max_timestamp)

    def read(self, size: int, position: int) -> bytes:
        """Bytes of the log; fewer than `size` only at its end."""
        size = min(size, self.size - position)
        if self._descriptor >= 0:
            return self._files.read_fully(self._descriptor, size, position)
        descriptor = self._files.open(self.path, read_only=True)
        try:
            return self._files.read_fully(descriptor, size, position)
        finally:
            self._files.close(descriptor)

    def file_size(self) -> int:
        """The bytes of the file: fewer than `size` if somebody else has cut it. Reads nothing from the disk."""
        return self._files.size(self._descriptor if self._descriptor >= 0 else self.path)

    def batch_at(self, position: int) -> BatchHeader | None:
        """The header at a position where a batch begins, None at the end."""
        if position + RECORD_BATCH_OVERHEAD > self.size:
            return None
        return read_header(self._read_headers(RECORD_BATCH_OVERHEAD, position))

    def _read_headers(self, size: int, position: int) -> bytes:
        """As `read`, at least one header. Raises CORRUPT_MESSAGE if the file is shorter than the segment."""
        data = self.read(size, position)
        if len(data) < RECORD_BATCH_OVERHEAD:
            raise self.corrupt(f"the file ends at position {position + len(data)}, and its batches at {self.size}")
        return data

    def find(self, offset: int, is_checked: bool = False, end_offset: float = inf) -> BatchPosition | None:
        """The first batch whose last offset is at or above `offset`, None if all are below.

        Behind a batch with an impossible length, or one that would end behind the segment, nothing can be found: it is
        taken for the one. Readers look with `is_checked`: then such a batch raises CORRUPT_MESSAGE, and so does one
        whose offsets are not in order, or behind `end_offset` where the segment ends, if it may be the one: it is
        found, or nothing else is that has `offset`.
        An index entry that does not lead to a batch is wrong: the entry is ignored. Raises CORRUPT_MESSAGE when the log
        itself is not readable.
        """
        return self._scan(offset, self._start_for(offset, is_checked), is_checked, end_offset)

    def _start_for(self, offset: int, is_checked: bool) -> _Start:
        """From where to look for the batch with `offset`."""
        entry = self.offset_index.lookup(offset)
        if not entry.position:
            return _Start(0)
        header = self.batch_at(entry.position)
        is_batch = header is not None and self._begins_batch(header, entry.offset)
        if not is_checked:
            return _Start(entry.position if is_batch else 0)
        if header is None or not is_batch or header.last_offset != entry.offset:
            # Kafka writes one entry for all batches of an append, with the last offset. Or else the entry is wrong, or
            # the offset of this batch is damaged, which those beside it will show.
            is_doubtful = header is None or header.last_offset > entry.offset
            return self._start_for(entry.offset - 1, is_checked=False)._replace(is_doubtful=is_doubtful)
        return _Start(entry.position)

    def _begins_batch(self, header: BatchHeader, offset: int) -> bool:
        return (
            header.magic == MAGIC
            and header.batch_length >= MIN_BATCH_LENGTH
            and self.base_offset <= header.base_offset <= offset
        )

    def _scan(self, offset: int, begin: _Start, is_checked: bool, end_offset: float) -> BatchPosition | None:
        position, is_doubtful = begin
        data, start, size = b"", position, self.size
        end_of_data = position
        last_offset = self.base_offset - 1
        is_in_order = True
        while position + RECORD_BATCH_OVERHEAD <= size:
            if position + RECORD_BATCH_OVERHEAD > end_of_data:
                data, start = self._read_headers(SCAN_BYTES, position), position
                end_of_data = start + len(data)
            base_offset, length, last_offset_delta, record_count = _FRAME.unpack_from(data, position - start)
            end, before, was_in_order = position + length + LOG_OVERHEAD, last_offset, is_in_order
            last_offset = base_offset + last_offset_delta
            is_in_order = before < base_offset <= last_offset
            if last_offset >= offset or end > size or length < MIN_BATCH_LENGTH:
                if is_checked:
                    if not (is_in_order and (was_in_order or base_offset <= offset)) or last_offset >= end_offset:
                        raise self._out_of_order(position, before)
                    if end > size or (end > end_of_data and not self._has_all(end, data)):
                        raise self.corrupt(f"the batch at position {position} ends behind the segment or its file")
                    if length < MIN_BATCH_LENGTH:
                        raise self.corrupt(f"there is no record batch at position {position}")
                    follows_gap = base_offset > before + 1 and (position > begin.position or not position)
                    if (is_doubtful or follows_gap) and self._is_above_next(last_offset, end):
                        raise self._out_of_order(end, last_offset)
                return BatchPosition(position, read_header(data, position - start))
            # With more records than offsets, its last offset may be too low: then nothing else has those in between.
            is_in_order = is_in_order and record_count <= last_offset_delta + 1
            position = end
        if is_checked and not is_in_order:
            raise self._out_of_order(position, last_offset)
        return None

    def _has_all(self, end: int, data: bytes) -> bool:
        """Whether the file has all bytes up to `end`, which is behind these: what was read of it for headers."""
        return len(data) >= SCAN_BYTES and end <= self.file_size()

    def _is_above_next(self, last_offset: int, position: int) -> bool:
        """Whether a batch begins at `position` whose offset is not behind `last_offset`: one of both is wrong."""
        if position + RECORD_BATCH_OVERHEAD > self.size:
            return False
        data = self.read(RECORD_BATCH_OVERHEAD, position)
        if len(data) < RECORD_BATCH_OVERHEAD:
            return False
        following = read_header(data)
        return following.magic == MAGIC and following.base_offset <= last_offset

    def _out_of_order(self, position: int, last_offset: int) -> RaykaError:
        return self.corrupt(f"the batch at or before position {position} is not in order, behind offset {last_offset}")

    def corrupt(self, what: str) -> RaykaError:
        """The error for a reader of this segment, in which something is damaged."""
        return RaykaError(ErrorCode.CORRUPT_MESSAGE, f"{self.path} is damaged: {what}")

    def next_offset(self) -> int | None:
        """The offset after the last batch, found from the last index entry on; None if the end is not a batch's end."""
        position, next_offset = self.offset_index.last_entry().position, self.base_offset
        for batch in iter_batches(self.read, position, self.size, SCAN_BYTES):
            next_offset, position = batch.header.next_offset, batch.end
        return next_offset if position == self.size else None
