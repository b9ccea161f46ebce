"""Record batches as Arrow columns; `columns_write` is the way back.

The columns are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
timestampType, headers (null for a record without any). Only those asked for are built. The work on every
record is compiled (`columns_decode`); what is left here is work on batches and columns.
Importing this module imports numba, numpy and pyarrow: the extra `columns` of the package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    ensure_intact,
)
from rayka.storage.columns_decode import SOUND, Bytes, Ints, Longs, count_headers, gather, locate, locate_headers
from rayka.storage.isolation import iter_visible
from rayka.storage.records import record_bytes
from rayka.types import AbortedTransaction

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""All columns. key and value are large_binary in a table in which they hold 2 GiB or more."""
COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)
END = 2**63 - 1

_MIN_RECORD_SIZE = 7
_MAX_INT = 2**31 - 1
_MAX_PLAIN_RUN = 1 << 30
_MAX_COMPRESSED_RUN = 128 * 1024
_CREATE_TIME = -1
_MICROSECONDS = 1000


class _Fields(NamedTuple):
    """One column of fields: where in its chunk each begins and how long it is, -1 for null."""

    positions: Ints
    lengths: Ints

    @classmethod
    def empty(cls, rows: int) -> _Fields:
        return cls(np.empty(rows, np.int32), np.empty(rows, np.int32))

    def head(self, rows: int) -> _Fields:
        return _Fields(self.positions[:rows], self.lengths[:rows])


class _Chunk(NamedTuple):
    """Batches whose records lie in one array: for each its header, and the start and end of its records."""

    data: Bytes
    headers: list[BatchHeader]
    spans: list[tuple[int, int]]


class _Rows(NamedTuple):
    """Which rows of a column are those of a chunk's records, or of their headers."""

    data: Bytes
    first: int
    end: int


class _Located(NamedTuple):
    """The records of all chunks: a row each."""

    chunks: list[_Rows]
    offsets: Longs
    timestamps: Longs
    keys: _Fields
    values: _Fields
    header_positions: Ints
    record_ends: Ints
    batch_rows: Longs
    headers: list[BatchHeader]


def read_columns(
    buffer: Buffer,
    *,
    topic: str,
    partition: int,
    columns: Sequence[str] = COLUMNS,
    start_offset: int = 0,
    end_offset: int = END,
    aborted_transactions: Sequence[AbortedTransaction] | None = None,
    check_crcs: bool = True,
) -> pa.RecordBatch:
    """The records of all complete batches in `buffer` with offsets from `start_offset` up to `end_offset`.

    Control batches are left out, and under read_committed (`aborted_transactions` not None) aborted ones too.
    Raises CORRUPT_MESSAGE where the bytes are not as the format says, and the errors of `decompress`.
    """
    located = _locate(buffer, start_offset, end_offset, aborted_transactions, check_crcs)
    arrays = [_column(name, located, topic, partition) for name in columns]
    fields = [SCHEMA.field(name).with_type(array.type) for name, array in zip(columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _locate(
    buffer: Buffer,
    start_offset: int,
    end_offset: int,
    aborted_transactions: Sequence[AbortedTransaction] | None,
    check_crcs: bool,
) -> _Located:
    batches: list[tuple[int, BatchHeader]] = []
    for position, header in iter_visible(buffer, aborted_transactions):
        if header.next_offset > start_offset and header.base_offset < end_offset:
            if check_crcs:
                ensure_intact(buffer, position, header)
            batches.append((position, header))
    return _locate_chunks(list(_chunks(buffer, batches)), start_offset, end_offset)


def _locate_chunks(chunks: Sequence[_Chunk], start_offset: int, end_offset: int) -> _Located:
    tables = [_batch_table(chunk) for chunk in chunks]
    headers = [header for chunk in chunks for header in chunk.headers]
    room = sum(header.record_count for header in headers)
    offsets, timestamps = np.empty(room, np.int64), np.empty(room, np.int64)
    keys, values, tails = _Fields.empty(room), _Fields.empty(room), _Fields.empty(room)
    batch_rows = np.empty(len(headers), np.int64)
    located: list[_Rows] = []
    row = batch = 0
    for chunk, table in zip(chunks, tables, strict=True):
        outputs = (offsets, timestamps, batch_rows[batch:], *keys, *values, *tails)
        end, broken = locate(chunk.data, table, start_offset, end_offset, row, *outputs)
        if broken != SOUND:
            raise _corrupt(chunk.headers[broken].base_offset)
        located.append(_Rows(chunk.data, row, end))
        row = end
        batch += len(chunk.headers)
    return _Located(
        located,
        offsets[:row],
        timestamps[:row],
        keys.head(row),
        values.head(row),
        *tails.head(row),
        batch_rows,
        headers,
    )


def _chunks(buffer: Buffer, batches: Sequence[tuple[int, BatchHeader]]) -> Iterator[_Chunk]:
    """The batches in chunks: slices of the buffer itself if none is compressed.

    Compressed ones are joined only up to a size that stays in the processor's cache: a copy of everything into
    fresh memory would take as long as lz4 does.
    """
    is_plain = not any(header.attributes & CODEC_MASK for _, header in batches)
    for run in _runs(batches, _MAX_PLAIN_RUN if is_plain else _MAX_COMPRESSED_RUN):
        headers = [header for _, header in run]
        if is_plain:
            first, last = run[0][0], run[-1][0] + headers[-1].size_in_bytes
            starts = [position - first + RECORD_BATCH_OVERHEAD for position, _ in run]
            ends = [position - first + header.size_in_bytes for position, header in run]
            data = _bytes(buffer, first, last)
        else:
            parts = [record_bytes(buffer, position, header) for position, header in run]
            ends = list(accumulate(map(len, parts)))
            starts = [0, *ends[:-1]]
            data = _bytes(parts[0] if len(parts) == 1 else b"".join(parts), 0, ends[-1])
        yield _Chunk(data, headers, list(zip(starts, ends, strict=True)))


def _runs(batches: Sequence[tuple[int, BatchHeader]], max_size: int) -> Iterator[Sequence[tuple[int, BatchHeader]]]:
    """Neighbours of together at most `max_size` bytes, but at least one batch."""
    first = size = 0
    for index, (_, header) in enumerate(batches):
        if index > first and size + header.size_in_bytes > max_size:
            yield batches[first:index]
            first, size = index, 0
        size += header.size_in_bytes
    if batches:
        yield batches[first:]


def _bytes(buffer: Buffer, start: int, end: int) -> Bytes:
    """Part of `buffer` as an array; always read-only, since each kind of array is compiled for anew."""
    array = np.frombuffer(buffer, np.uint8, end - start, start)
    array.flags.writeable = False
    return array


def _batch_table(chunk: _Chunk) -> Longs:
    rows = [_batch_row(span, header) for span, header in zip(chunk.spans, chunk.headers, strict=True)]
    return np.array(rows, np.int64)


def _batch_row(span: tuple[int, int], header: BatchHeader) -> tuple[int, int, int, int, int, int]:
    start, end = span
    if not 0 <= header.record_count * _MIN_RECORD_SIZE <= end - start:
        raise _corrupt(header.base_offset)
    is_log_append_time = header.attributes & LOG_APPEND_TIME_FLAG
    append_timestamp = header.max_timestamp if is_log_append_time else _CREATE_TIME
    return start, end, header.record_count, header.base_offset, header.base_timestamp, append_timestamp


def _column(name: str, located: _Located, topic: str, partition: int) -> pa.Array:
    rows = len(located.offsets)
    match name:
        case "key":
            return _binary(located.chunks, located.keys, pa.binary(), pa.large_binary())
        case "value":
            return _binary(located.chunks, located.values, pa.binary(), pa.large_binary())
        case "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), rows)
        case "partition":
            return pa.array(np.full(rows, partition, np.int32))
        case "offset":
            return pa.array(located.offsets)
        case "timestamp":
            return pa.array(located.timestamps * _MICROSECONDS).view(SCHEMA.field("timestamp").type)
        case "timestampType":
            return _timestamp_types(located)
        case "headers":
            return _headers(located)
        case _:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Unknown column: {name} (there are {', '.join(COLUMNS)})")


def _binary(chunks: Sequence[_Rows], fields: _Fields, small: pa.DataType, large: pa.DataType) -> pa.Array:
    rows = len(fields.positions)
    nulls = int((fields.lengths < 0).sum())
    size = int(fields.lengths.sum(dtype=np.int64)) + nulls
    is_small = size <= _MAX_INT
    copied = np.empty(size, np.uint8)
    offsets = np.zeros(rows + 1, np.int32 if is_small else np.int64)
    validity = np.zeros((rows + 7) // 8, np.uint8)
    for data, first, end in chunks:
        gather(data, first, end, fields.positions, fields.lengths, copied, offsets, validity)
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(copied)]
    return pa.Array.from_buffers(small if is_small else large, rows, buffers, nulls)


def _timestamp_types(located: _Located) -> pa.Array:
    types = np.array([header.timestamp_type for header in located.headers], np.int32)
    return pa.array(np.repeat(types, np.diff(located.batch_rows, append=len(located.offsets))))


def _headers(located: _Located) -> pa.Array:
    rows = len(located.offsets)
    header_rows = np.zeros(rows + 1, np.int64)
    positions, ends = located.header_positions.copy(), located.record_ends
    for chunk in located.chunks:
        _check(located, count_headers(*chunk, positions, ends, header_rows))
    count = int(header_rows[-1])
    keys, values = _Fields.empty(count), _Fields.empty(count)
    for chunk in located.chunks:
        _check(located, locate_headers(*chunk, positions, ends, header_rows, *keys, *values))
    if count == 0:
        return pa.nulls(rows, HEADERS_TYPE)
    chunks = [_Rows(data, int(header_rows[first]), int(header_rows[end])) for data, first, end in located.chunks]
    children = [_header_keys(chunks, keys), _binary(chunks, values, pa.binary(), pa.binary())]
    struct = pa.Array.from_buffers(HEADERS_TYPE.value_type, count, [None], 0, children=children)
    has_headers = np.diff(header_rows) > 0
    validity = np.packbits(has_headers, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(header_rows.astype(np.int32))]
    return pa.Array.from_buffers(HEADERS_TYPE, rows, buffers, rows - int(has_headers.sum()), children=[struct])


def _check(located: _Located, broken: int) -> None:
    if broken != SOUND:
        raise _corrupt(int(located.offsets[broken]))


def _header_keys(chunks: Sequence[_Rows], keys: _Fields) -> pa.Array:
    """Arrow strings are UTF-8: what is not comes out with replacement characters, as in Java."""
    array = _binary(chunks, keys, pa.string(), pa.string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        names = array.view(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in names], pa.string())
    return array


def _corrupt(offset: int) -> RaykaError:
    return RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The records at offset {offset} are not as the format says")
