"""The records of batches, located: where in memory each field lies. Needs numpy, and not pyarrow.

The batches are read in chunks that stay in the processor's cache. The work on every record is compiled (`decode.py`);
what is left here is work on batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.decode import (
    SOUND,
    Bytes,
    Ints,
    Longs,
    RecordPositions,
    count_headers,
    locate_and_count,
    locate_headers,
)
from rayka.storage.format.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
)
from rayka.storage.format.order import PositionedHeader
from rayka.storage.format.records import MIN_RECORD_SIZE, record_bytes

_MAX_PLAIN_CHUNK = 1 << 20
_MAX_JOINED_CHUNK = 1 << 19

_Batch = TypeVar("_Batch")


class FieldPositions(NamedTuple):
    """One column of fields: where in its chunk each begins and how long it is, -1 for null."""

    positions: Ints
    lengths: Ints

    @classmethod
    def empty(cls, rows: int) -> FieldPositions:
        """Room for `rows` fields."""
        return cls(np.empty(rows, np.int32), np.empty(rows, np.int32))

    def head(self, rows: int) -> FieldPositions:
        """The first of them."""
        return FieldPositions(self.positions[:rows], self.lengths[:rows])


class ChunkRecords(NamedTuple):
    """The records of one chunk. `progress`: the part of all input that ends with it, above 0 and up to 1.

    `key_bytes` and `value_bytes` are the sizes of all keys and values, None where all are null. Where `has_headers` is
    false no record has any.
    """

    data: Bytes
    progress: float
    offsets: Longs
    timestamps: Longs
    timestamp_types: Ints
    keys: FieldPositions
    values: FieldPositions
    header_positions: Ints
    record_ends: Ints
    key_bytes: int | None
    value_bytes: int | None
    has_headers: bool


class LocatedHeaders(NamedTuple):
    """The headers of all records of a chunk: those of record i are from `rows[i]` up to `rows[i + 1]`."""

    rows: Longs
    keys: FieldPositions
    values: FieldPositions


class RecordChunk(NamedTuple):
    """Batches whose records lie in one array: for each its header, and the start and end of its records."""

    data: Bytes
    headers: list[BatchHeader]
    spans: list[tuple[int, int]]


class Room:
    """Where the records of a chunk are located; every chunk uses the same memory."""

    def __init__(self) -> None:
        self._rows = 0
        self.totals = np.empty(5, np.int64)

    def reserve(self, rows: int) -> None:
        """Make room for `rows` records."""
        if rows > self._rows or not self._rows:
            self._rows = rows = max(rows, 1024)
            self.offsets, self.timestamps = np.empty(rows, np.int64), np.empty(rows, np.int64)
            self.keys, self.values, self.tails = (
                FieldPositions.empty(rows),
                FieldPositions.empty(rows),
                FieldPositions.empty(rows),
            )


def chunks(buffer: Buffer, batches: Sequence[PositionedHeader]) -> Iterator[RecordChunk]:
    """The batches in chunks: slices of the buffer itself if none is compressed."""
    if any(header.attributes & CODEC_MASK for _, header in batches):
        return _joined(buffer, batches)
    return _sliced(buffer, batches)


def _sliced(buffer: Buffer, batches: Sequence[PositionedHeader]) -> Iterator[RecordChunk]:
    return (sliced(buffer, run) for run in _runs(batches, lambda batch: batch[1].size_in_bytes, _MAX_PLAIN_CHUNK))


def _joined(buffer: Buffer, batches: Sequence[PositionedHeader]) -> Iterator[RecordChunk]:
    decompressed = ((header, record_bytes(buffer, position, header)) for position, header in batches)
    return (joined(run) for run in _runs(decompressed, lambda batch: len(batch[1]), _MAX_JOINED_CHUNK))


def sliced(buffer: Buffer, batches: Sequence[PositionedHeader]) -> RecordChunk:
    """Batches that are not compressed as one chunk, where they lie."""
    (first, _), (last, last_header) = batches[0], batches[-1]
    spans = [
        (position - first + RECORD_BATCH_OVERHEAD, position - first + header.size_in_bytes)
        for position, header in batches
    ]
    data = array_of(buffer)[first : last + last_header.size_in_bytes]
    return RecordChunk(data, [header for _, header in batches], spans)


def joined(batches: Sequence[tuple[BatchHeader, bytes]]) -> RecordChunk:
    """Decompressed batches as one chunk."""
    parts = [part for _, part in batches]
    ends = list(accumulate(map(len, parts)))
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    return RecordChunk(array_of(data), [header for header, _ in batches], spans)


def _runs(batches: Iterable[_Batch], size_of: Callable[[_Batch], int], max_size: int) -> Iterator[list[_Batch]]:
    """Neighbours of together at most `max_size` bytes, but at least one batch."""
    run: list[_Batch] = []
    size = 0
    for batch in batches:
        batch_size = size_of(batch)
        if run and size + batch_size > max_size:
            yield run
            run, size = [], 0
        run.append(batch)
        size += batch_size
    if run:
        yield run


def array_of(buffer: Buffer) -> Bytes:
    """`buffer` as an array; always read-only, since numba compiles once more for each kind of array."""
    array = np.frombuffer(buffer, np.uint8)
    array.flags.writeable = False
    return array


def locate_records(chunk: RecordChunk, start_offset: int, end_offset: int, room: Room, progress: float) -> ChunkRecords:
    """The records of a chunk with offsets from `start_offset` up to `end_offset`. Raises CORRUPT_MESSAGE."""
    batches = [_batch_row(span, header) for span, header in zip(chunk.spans, chunk.headers, strict=True)]
    room.reserve(sum(header.record_count for header in chunk.headers))
    batch_rows = np.empty(len(batches), np.int64)
    rows, broken = locate_and_count(
        chunk.data,
        np.array(batches, np.int64),
        start_offset,
        end_offset,
        batch_rows,
        RecordPositions(room.offsets, room.timestamps, *room.keys, *room.values, *room.tails),
        room.totals,
    )
    if broken != SOUND:
        raise _corrupt(chunk.headers[broken])
    key_bytes, keys, value_bytes, values, with_headers = room.totals.tolist()
    return ChunkRecords(
        chunk.data,
        progress,
        room.offsets[:rows],
        room.timestamps[:rows],
        _timestamp_types(chunk.headers, batch_rows, rows),
        room.keys.head(rows),
        room.values.head(rows),
        *room.tails.head(rows),
        key_bytes if keys else None,
        value_bytes if values else None,
        with_headers > 0,
    )


def _timestamp_types(headers: Sequence[BatchHeader], batch_rows: Longs, rows: int) -> Ints:
    """That of each row."""
    types = [int(header.timestamp_type) for header in headers]
    if types.count(types[0]) == len(types):
        return np.full(rows, types[0], np.int32)
    return np.repeat(np.array(types, np.int32), np.diff(batch_rows, append=rows))


def _batch_row(span: tuple[int, int], header: BatchHeader) -> tuple[int, int, int, int, int, int, int]:
    start, end = span
    if not 0 <= header.record_count * MIN_RECORD_SIZE <= end - start:
        raise _corrupt(header)
    is_log_append_time = header.attributes & LOG_APPEND_TIME_FLAG
    times = (header.max_timestamp, 0) if is_log_append_time else (header.base_timestamp, 1)
    return start, end, header.record_count, header.base_offset, *times, header.last_offset_delta


def _corrupt(header: BatchHeader) -> RaykaError:
    return RaykaError(
        ErrorCode.CORRUPT_MESSAGE, f"The records of the batch at offset {header.base_offset} are malformed"
    )


def locate_all_headers(records: ChunkRecords) -> LocatedHeaders:
    """Where the headers of all records lie; once for each chunk. Raises CORRUPT_MESSAGE."""
    data, positions, ends = records.data, records.header_positions, records.record_ends
    rows = np.empty(len(positions) + 1, np.int64)
    _check(records, count_headers(data, positions, ends, rows))
    count = int(rows[-1])
    keys, values = FieldPositions.empty(count), FieldPositions.empty(count)
    _check(records, locate_headers(data, positions, ends, rows, *keys, *values))
    return LocatedHeaders(rows, keys, values)


def _check(records: ChunkRecords, broken: int) -> None:
    if broken != SOUND:
        offset = int(records.offsets[broken])
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The headers of the record at offset {offset} are broken")
