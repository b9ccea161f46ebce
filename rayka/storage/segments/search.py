"""Finding offsets by time (KIP-33, KIP-734), and by segments as before KIP-33."""

from __future__ import annotations

from collections.abc import Iterator

from rayka.errors import ErrorCode
from rayka.storage.format.records import read_batch
from rayka.storage.segments.scan import ScannedBatch, iter_batches
from rayka.storage.segments.segment import SCAN_BYTES, Segment
from rayka.storage.segments.segments import Segments
from rayka.types import OffsetAnswer, OffsetSpec


def offset_for_timestamp(segments: Segments, timestamp: int, log_start_offset: int) -> OffsetAnswer | None:
    """The first record at or after `timestamp` (milliseconds) that was not deleted."""
    for segment in segments.from_offset(log_start_offset):
        if segment.largest_timestamp().timestamp >= timestamp:
            from_offset = max(segment.time_index.lookup(timestamp).offset, log_start_offset)
            found = _first_record(_batches_from(segment, from_offset), timestamp, log_start_offset)
            if found is not None:
                return found
    return None


def offset_of_max_timestamp(segments: Segments, log_start_offset: int) -> OffsetAnswer | None:
    """The first record that has the largest timestamp of the log."""
    latest = max(segments, key=lambda segment: segment.largest_timestamp().timestamp)
    timestamp, offset = latest.largest_timestamp()
    return _first_record(_batches_from(latest, offset), timestamp, log_start_offset) if timestamp >= 0 else None


def offsets_of_segments(segments: Segments, timestamp: int, log_start_offset: int) -> Iterator[int]:
    """In descending order, where the segments begin that were last written to by `timestamp` (milliseconds).

    `OffsetSpec.LATEST` is after all of them, EARLIEST is the first alone.
    """
    if timestamp == OffsetSpec.EARLIEST:
        yield log_start_offset
        return
    is_found = timestamp == OffsetSpec.LATEST
    for segment in reversed(segments.from_offset(log_start_offset)):
        is_found = is_found or segment.modified_ms() <= timestamp
        if is_found:
            yield max(segment.base_offset, log_start_offset)


def _batches_from(segment: Segment, offset: int) -> Iterator[ScannedBatch]:
    """Raises CORRUPT_MESSAGE where there is no batch before the end of the segment."""
    found, end = segment.find(offset, is_checked=True), segment.size
    position = end if found is None else found.position
    for batch in iter_batches(segment.read, position, end, SCAN_BYTES):
        position = batch.end
        yield batch
    if position < end:
        raise segment.corrupt(f"there is no record batch at position {position}")


def _first_record(batches: Iterator[ScannedBatch], timestamp: int, log_start_offset: int) -> OffsetAnswer | None:
    for batch in batches:
        if batch.header.max_timestamp < timestamp or batch.header.last_offset < log_start_offset:
            continue
        for record in read_batch(batch.data, batch.start, batch.header):
            if record.timestamp >= timestamp and record.offset >= log_start_offset:
                epoch = batch.header.partition_leader_epoch
                return OffsetAnswer(ErrorCode.NONE, record.offset, record.timestamp, epoch)
    return None
