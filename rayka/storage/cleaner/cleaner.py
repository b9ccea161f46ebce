"""One round of cleaning of one log: notes the last offset of each key, then writes the segments again without the rest.

The offset map is built from the dirty part of the log, as far as it has room. Then every segment from the first up to
there is copied without the records that a later one with the same key replaces, the tombstones and markers whose time
is over, and what was aborted. Offsets do not change, and batches keep the first and last offset, producer and sequence
that they had. Small neighbours become one segment. Nothing that a reader sees is touched: the log puts the new segments
in place, `storage.log.replacement`. Source: the log storage engine document, KIP-58, KIP-354, KIP-534.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.cleaner import batches
from rayka.storage.cleaner.batches import (
    ENTRIES,
    HEADER_BYTES,
    OUT,
    POSITION,
    RECORDS_KEPT,
    RECORDS_READ,
    VARINT_GROWTH,
)
from rayka.storage.cleaner.offset_map import OffsetMap
from rayka.storage.cleaner.plan import CleanerLimits, CleaningPlan, RoundEnd, SourceSegment
from rayka.storage.cleaner.record_rows import FIRST_DIRTY, INDEX_INTERVAL, MIN_RECORD_BYTES, Keys, with_rows
from rayka.storage.cleaner.segment_writer import SegmentWriter
from rayka.storage.cleaner.transactions import CleanedTransactions
from rayka.storage.columns.decode import Bytes, Longs
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    ensure_intact,
    read_header,
)
from rayka.storage.format.compression import Codec, compress
from rayka.storage.format.control import ControlType, read_control_type
from rayka.storage.format.records import record_bytes
from rayka.storage.log.replacement import CleanedSegment
from rayka.storage.segments.scan import MAX_RELATIVE_OFFSET
from rayka.storage.segments.segment import LOG_SUFFIX, file_name

_INDEX_ROWS = 4096
_INDEX_ENTRY_BYTES = 12

Throttle = Callable[[int], None]
"""Called with each number of bytes that was read or written; it waits as long as the limit asks for."""


class _Chunk(NamedTuple):
    """Bytes of a segment from a batch on."""

    data: Bytes
    position: int


class Cleaner:
    """Carries out one plan. Raises OSError, and CORRUPT_MESSAGE or UNSUPPORTED_FOR_MESSAGE_FORMAT for what it can't
    clean.
    """

    def __init__(self, files: RealFiles, plan: CleaningPlan, limits: CleanerLimits, throttle: Throttle) -> None:
        self._files = files
        self._plan = plan
        self._limits = limits
        self._throttle = throttle
        self._read_bytes = self._written_bytes = 0
        dirty_records = max(plan.uncleanable_offset - plan.first_dirty_offset, 1)
        self._map = OffsetMap(limits.dedupe_buffer_bytes, limits.load_factor, limits.secret, dirty_records)
        no_rows = np.empty((0, 0), np.int64), np.empty((0, 0), np.uint64)
        self._keys = with_rows(Keys(self._map.table, self._map.secret, *no_rows), limits.io_buffer_bytes)
        self._out: Bytes = np.empty(2 * limits.io_buffer_bytes, np.uint8)
        self._index: Longs = np.empty((_INDEX_ROWS, 4), np.int64)
        self._progress: Longs = np.zeros(batches.SINCE_ENTRY + 1, np.int64)
        self._rules: Longs = np.zeros(FIRST_DIRTY + 1, np.int64)
        self._last_data_offsets: Longs = np.array(
            sorted(offset for offset, _ in plan.active_producers.values() if offset >= 0), np.int64
        )

    def clean(self) -> Iterator[CleanedSegment | RoundEnd]:
        """Each new segment when it is complete, and the end of the round at last."""
        self._build_map()
        end_offset = self._map.latest_offset + 1
        self._set_rules(end_offset)
        transactions = CleanedTransactions(self._plan.aborted)
        segments = [segment for segment in self._plan.segments if segment.base_offset < end_offset]
        for group in self._groups(segments):
            yield self._clean_group(group, transactions)
        progress = self._progress
        yield RoundEnd(
            end_offset, self._read_bytes, self._written_bytes, int(progress[RECORDS_READ]), int(progress[RECORDS_KEPT])
        )

    def _set_rules(self, end_offset: int) -> None:
        plan = self._plan
        self._rules[:] = (
            self._map.latest_offset,
            end_offset,
            plan.now_ms,
            plan.delete_retention_ms,
            plan.index_interval_bytes,
            plan.first_dirty_offset,
        )

    # -- the offset map -------------------------------------------------------------------------

    def _build_map(self) -> None:
        plan = self._plan
        aborted = [each for each in plan.aborted if each.last_offset >= plan.first_dirty_offset]
        transactions = CleanedTransactions(aborted)
        for segment in plan.segments:
            if segment.end_offset > plan.first_dirty_offset:
                if not self._index_segment(segment, transactions):
                    return
                self._map.latest_offset = max(self._map.latest_offset, segment.end_offset - 1)

    def _index_segment(self, segment: SourceSegment, transactions: CleanedTransactions) -> bool:
        """Note the keys of a segment; whether the map had room for all of them."""
        latest = np.array([max(self._map.latest_offset, segment.base_offset - 1)], np.int64)
        for chunk in self._chunks(segment):
            end = len(chunk.data)
            status, position = batches.MORE, 0
            while True:
                status, position = batches.index_batches(
                    chunk.data, position, end, self._plan.first_dirty_offset, segment.end_offset, latest,
                    self._keys, self._map.entries, self._map.max_entries,
                )  # fmt: skip
                self._map.latest_offset = int(latest[0])
                if status == batches.MORE:
                    break
                if status == batches.SPECIAL:
                    status, position = self._index_special(segment, chunk, position, transactions, latest)
                if status == batches.FULL:
                    self._require_progress()
                    return False
                if status == batches.CORRUPT:
                    raise self._corrupt(segment, chunk.position + position)
            self._consumed = position
        return True

    def _require_progress(self) -> None:
        """Raises INVALID_CONFIG for a map that is too small for the first batch: no round would ever clean anything."""
        if self._map.latest_offset < self._plan.first_dirty_offset:
            raise RaykaError(
                ErrorCode.INVALID_CONFIG,
                f"log.cleaner.dedupe.buffer.size has no room for the keys of one batch of {self._plan.directory}",
            )

    def _index_special(
        self, segment: SourceSegment, chunk: _Chunk, position: int, transactions: CleanedTransactions, latest: Longs
    ) -> tuple[int, int]:
        header = self._header(chunk, position)
        if not latest[0] < header.base_offset <= header.last_offset < segment.end_offset:
            return batches.CORRUPT, position
        after = position + header.size_in_bytes
        status = batches.MORE
        if header.is_control:
            transactions.is_left_behind(header, read_control_type(chunk.data.data, position, header))
        elif not transactions.is_aborted(header) and header.next_offset > self._plan.first_dirty_offset:
            records = self._records(chunk, position, header)
            status = batches.index_records(
                chunk.data, position, records, 0, len(records), self._plan.first_dirty_offset,
                self._keys, self._map.entries, self._map.max_entries,
            )  # fmt: skip
        if status == batches.MORE:
            latest[0] = header.last_offset
            self._map.latest_offset = int(latest[0])
            return status, after
        return status, position

    # -- groups ---------------------------------------------------------------------------------

    def _groups(self, segments: list[SourceSegment]) -> Iterator[list[SourceSegment]]:
        """Neighbours that fit into one segment by size, by index entries, and by offsets."""
        group: list[SourceSegment] = []
        size = entries = 0
        for segment in segments:
            most_entries = segment.size // max(self._plan.index_interval_bytes, RECORD_BATCH_OVERHEAD) + 1
            if group and not (
                size + segment.size <= self._plan.segment_size
                and (entries + most_entries) * _INDEX_ENTRY_BYTES <= self._plan.segment_index_bytes
                and (not segment.size or segment.end_offset - 1 - group[0].base_offset <= MAX_RELATIVE_OFFSET)
            ):
                yield group
                group, size, entries = [], 0, 0
            group.append(segment)
            size += segment.size
            entries += most_entries
        if group:
            yield group

    def _clean_group(self, group: list[SourceSegment], transactions: CleanedTransactions) -> CleanedSegment:
        plan = self._plan
        writer = SegmentWriter(self._files, plan.directory, group[0].base_offset, plan.segment_index_bytes)
        try:
            transactions.retained = []
            writer.begin(self._progress)
            for segment in group:
                self._clean_into(writer, segment, transactions)
            self._write(writer)
            writer.finish(self._progress, transactions.retained, group[-1].modified_ms)
        except BaseException:
            writer.discard()
            raise
        return CleanedSegment(writer.base_offset, tuple(segment.base_offset for segment in group), writer.size)

    def _write(self, writer: SegmentWriter) -> None:
        written = writer.write(self._out, self._index, self._progress)
        self._written_bytes += written
        self._throttle(written)

    # -- keeping records ------------------------------------------------------------------------

    def _clean_into(self, writer: SegmentWriter, segment: SourceSegment, transactions: CleanedTransactions) -> None:
        progress = self._progress
        for chunk in self._chunks(segment):
            progress[POSITION] = 0
            while True:
                status = batches.filter_batches(
                    chunk.data, len(chunk.data), self._last_data_offsets, self._keys, self._rules,
                    self._out, self._index, progress,
                )  # fmt: skip
                if status == batches.SPECIAL:
                    self._clean_special(writer, chunk, int(progress[POSITION]), transactions)
                elif status == batches.NO_ROOM:
                    self._make_room(writer, chunk, int(progress[POSITION]))
                elif status == batches.CORRUPT:
                    raise self._corrupt(segment, chunk.position + int(progress[POSITION]))
                else:
                    break
            self._consumed = int(progress[POSITION])

    def _make_room(self, writer: SegmentWriter, chunk: _Chunk, position: int) -> None:
        header = read_header(chunk.data.data, position)
        self._write(writer)
        self._reserve(header.size_in_bytes + VARINT_GROWTH * header.record_count)

    def _reserve(self, size: int) -> None:
        """Let `out`, of which nothing is in use, have room for a batch."""
        if size > len(self._out):
            self._out = np.empty(size, np.uint8)

    def _clean_special(
        self, writer: SegmentWriter, chunk: _Chunk, position: int, transactions: CleanedTransactions
    ) -> None:
        """One batch that is compressed, of a transaction, or a marker."""
        header = self._header(chunk, position)
        drops_all, is_left_behind = self._judge(chunk, position, header, transactions)
        records = self._records(chunk, position, header)
        size = max(HEADER_BYTES + len(records), header.size_in_bytes) + VARINT_GROWTH * header.record_count
        if self._progress[OUT] + size > len(self._out) or self._progress[ENTRIES] == len(self._index):
            self._write(writer)
            self._reserve(size)
        outcome, written = batches.filter_batch(
            chunk.data, position, records, 0, len(records), drops_all, is_left_behind, self._is_kept(header),
            self._keys, self._rules, self._out, self._progress,
        )  # fmt: skip
        if outcome == batches.BROKEN:
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The batch at offset {header.base_offset} is malformed")
        self._take(chunk, position, header, outcome, written)
        self._progress[POSITION] += header.size_in_bytes

    def _judge(
        self, chunk: _Chunk, position: int, header: BatchHeader, transactions: CleanedTransactions
    ) -> tuple[bool, bool]:
        """Whether all records of a batch go, and whether it is a marker of a transaction that has no batch left."""
        if not header.is_control:
            return transactions.is_aborted(header), False
        is_left_behind = transactions.is_left_behind(header, _control_type(chunk, position, header))
        is_over = header.has_delete_horizon and header.base_timestamp <= self._plan.now_ms
        return is_left_behind and (is_over or not header.record_count), is_left_behind

    def _is_kept(self, header: BatchHeader) -> bool:
        """Whether a batch stays without records: the last of a round, of the log, or of a producer that is known."""
        if header.next_offset in (self._map.latest_offset + 1, self._plan.segments[-1].end_offset):
            return True
        last = self._plan.active_producers.get(header.producer_id) if header.has_producer_id else None
        if last is None:
            return False
        last_data_offset, producer_epoch = last
        if last_data_offset >= 0:
            return header.last_offset == last_data_offset
        return header.is_control and header.producer_epoch == producer_epoch

    def _take(self, chunk: _Chunk, position: int, header: BatchHeader, outcome: int, written: int) -> None:
        """Complete the batch at the end of `out` and take it into account."""
        if outcome == batches.DROPPED:
            return
        out, begin = self._out, int(self._progress[OUT])
        if outcome == batches.COPIED:
            written = header.size_in_bytes
            out[begin : begin + written] = chunk.data[position : position + written]
        else:
            if outcome == batches.REWRITTEN and header.codec is not Codec.NONE:
                packed = compress(header.codec, bytes(out[begin + HEADER_BYTES : begin + written]))
                written = HEADER_BYTES + len(packed)
                self._out = out = _with_room(out, begin + written)
                out[begin + HEADER_BYTES : begin + written] = _array(packed)
            batches.seal(out, begin, begin + written)
        batches.note(out, begin, written, int(self._rules[INDEX_INTERVAL]), self._index, self._progress)
        self._progress[OUT] += written

    # -- reading --------------------------------------------------------------------------------

    def _chunks(self, segment: SourceSegment) -> Iterator[_Chunk]:
        """The bytes of a segment; `_consumed` says how many of the last chunk were whole batches."""
        path = os.path.join(self._plan.directory, file_name(segment.base_offset, LOG_SUFFIX))
        descriptor = self._files.open(path, read_only=True)
        try:
            position, size = 0, self._limits.io_buffer_bytes
            while position < segment.size:
                wanted = min(size, segment.size - position)
                data = self._files.read_fully(descriptor, wanted, position)
                if len(data) < wanted:
                    raise self._corrupt(segment, position + len(data))
                self._throttle(len(data))
                self._read_bytes += len(data)
                self._consumed = 0
                self._keys = with_rows(self._keys, len(data))
                yield _Chunk(_array(data), position)
                size = self._limits.io_buffer_bytes if self._consumed else self._needed(segment, position, data)
                position += self._consumed
        finally:
            self._files.close(descriptor)

    def _needed(self, segment: SourceSegment, position: int, data: bytes) -> int:
        """The size of a batch that is larger than a chunk. Raises CORRUPT_MESSAGE if the segment ends within it."""
        size = read_header(data).size_in_bytes if len(data) >= RECORD_BATCH_OVERHEAD else 0
        if size <= len(data) or position + size > segment.size:
            raise self._corrupt(segment, position)
        return size

    def _records(self, chunk: _Chunk, position: int, header: BatchHeader) -> Bytes:
        """The records of a batch, decompressed. Raises CORRUPT_MESSAGE if they can't be as many as its header says."""
        data = _array(record_bytes(chunk.data.data, position, header))
        if not 0 <= header.record_count * MIN_RECORD_BYTES <= len(data):
            message = f"The batch at offset {header.base_offset} has no room for {header.record_count} records"
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, message)
        self._keys = with_rows(self._keys, len(data))
        return data

    def _header(self, chunk: _Chunk, position: int) -> BatchHeader:
        header = read_header(chunk.data.data, position)
        ensure_intact(chunk.data.data, position, header)
        return header

    def _corrupt(self, segment: SourceSegment, position: int) -> RaykaError:
        name = file_name(segment.base_offset, LOG_SUFFIX)
        message = f"{name} in {self._plan.directory} has no intact record batch at position {position}"
        return RaykaError(ErrorCode.CORRUPT_MESSAGE, message)


def _array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def _with_room(out: Bytes, size: int) -> Bytes:
    """`out`, or a longer copy of it: a codec may make a few records larger."""
    if size <= len(out):
        return out
    longer = np.empty(size, np.uint8)
    longer[: len(out)] = out
    return longer


def _control_type(chunk: _Chunk, position: int, header: BatchHeader) -> ControlType:
    return read_control_type(chunk.data.data, position, header)
