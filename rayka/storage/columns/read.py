"""Record batches to Arrow columns; `write.py` converts back.

The columns are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
timestampType, headers (null for a record without any). Only those asked for are built.

The batches are read in chunks that stay in the processor's cache: decompressed, their fields located, and
each column's part copied out, before the next chunk takes the same memory. The work on every record is
compiled (`decode.py`); what is left here is work on batches. Importing this module imports numba, numpy and
pyarrow: the extra `columns` of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.build import (
    HEADERS_TYPE,
    TIMESTAMP_TYPE,
    Column,
    ConstantColumn,
    FieldPositions,
    HeadersColumn,
    KeyColumn,
    OffsetColumn,
    Records,
    TimestampColumn,
    TimestampTypeColumn,
    ValueColumn,
)
from rayka.storage.columns.decode import SOUND, Bytes, Longs, locate
from rayka.storage.format.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    ensure_intact,
    iter_headers,
)
from rayka.storage.format.isolation import iter_visible
from rayka.storage.format.records import record_bytes
from rayka.types import AbortedTransaction

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP_TYPE),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""All columns. key and value are large_binary in a table in which they hold 2 GiB or more."""
COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)
END = 2**63 - 1

_MIN_RECORD_SIZE = 7
_CREATE_TIME = -1
_MAX_PLAIN_CHUNK = 1 << 20
_MAX_JOINED_CHUNK = 1 << 19

_PositionedHeader = tuple[int, BatchHeader]
_Batch = TypeVar("_Batch")


class Columns(NamedTuple):
    """The records that were read, the offset behind the last batch, and the bytes of the log up to there."""

    batch: pa.RecordBatch
    next_offset: int
    size_in_log: int


class _Chunk(NamedTuple):
    """Batches whose records lie in one array: for each its header, and the start and end of its records."""

    data: Bytes
    headers: list[BatchHeader]
    spans: list[tuple[int, int]]


class _Room:
    """Where the records of a chunk are located; every chunk uses the same memory."""

    def __init__(self) -> None:
        self._rows = 0

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
    max_bytes: int = END,
) -> Columns:
    """The records of all complete batches in `buffer` with offsets from `start_offset` up to `end_offset`.

    Control batches are left out, and under read_committed (`aborted_transactions` not None) aborted ones too.
    A read whose columns have `max_bytes` of memory, or a little more, ends there, with a whole batch; what only headers
    count is not limited. Raises CORRUPT_MESSAGE where the bytes are not as the format says, and the errors of
    `decompress`.
    """
    built = [_new_column(name, topic, partition) for name in columns]
    headers = list(iter_headers(buffer))
    batches = [
        (position, header)
        for position, header in iter_visible(buffer, headers, aborted_transactions)
        if header.next_offset > start_offset and header.base_offset < end_offset
    ]
    if check_crcs:
        for position, header in batches:
            ensure_intact(buffer, position, header)
    constant = [column for column in built if isinstance(column, ConstantColumn)]
    if len(constant) == len(built):
        batches, max_bytes = _count_whole(batches, start_offset, end_offset, constant), END
    room, done = _Room(), 0
    for chunk in _chunks(buffer, batches):
        done += len(chunk.headers)
        records = _locate(chunk, start_offset, end_offset, room, done / len(batches))
        for column in built:
            column.append(records)
        if sum(column.size for column in built) >= max_bytes:
            break
    arrays = [column.finish() for column in built]
    fields = [SCHEMA.field(name).with_type(array.type) for name, array in zip(columns, arrays, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    if not headers:
        return Columns(batch, start_offset, 0)
    position, last = headers[-1] if done == len(batches) else batches[done - 1]
    return Columns(batch, last.next_offset, position + last.size_in_bytes)


_NEW_COLUMN: Mapping[str, Callable[[], Column]] = {
    "key": KeyColumn,
    "value": ValueColumn,
    "offset": OffsetColumn,
    "timestamp": TimestampColumn,
    "timestampType": TimestampTypeColumn,
    "headers": HeadersColumn,
}


def _new_column(name: str, topic: str, partition: int) -> Column:
    if name == "topic":
        return ConstantColumn(pa.scalar(topic, pa.string()))
    if name == "partition":
        return ConstantColumn(pa.scalar(partition, pa.int32()))
    try:
        return _NEW_COLUMN[name]()
    except KeyError:
        message = f"Unknown column: {name} (there are {', '.join(COLUMNS)})"
        raise RaykaError(ErrorCode.INVALID_REQUEST, message) from None


def _count_whole(
    batches: Sequence[_PositionedHeader], start_offset: int, end_offset: int, columns: Sequence[ConstantColumn]
) -> list[_PositionedHeader]:
    """Where nothing of a record itself is wanted, headers count them; the batches in which only some count are left."""
    left = []
    for position, header in batches:
        is_whole = start_offset <= header.base_offset and header.next_offset <= end_offset
        if is_whole and 0 <= header.record_count <= header.last_offset_delta + 1:
            for column in columns:
                column.extend(header.record_count)
        else:
            left.append((position, header))
    return left


def _chunks(buffer: Buffer, batches: Sequence[_PositionedHeader]) -> Iterator[_Chunk]:
    """The batches in chunks: slices of the buffer itself if none is compressed."""
    if any(header.attributes & CODEC_MASK for _, header in batches):
        return _joined(buffer, batches)
    return _sliced(buffer, batches)


def _sliced(buffer: Buffer, batches: Sequence[_PositionedHeader]) -> Iterator[_Chunk]:
    for run in _runs(batches, lambda batch: batch[1].size_in_bytes, _MAX_PLAIN_CHUNK):
        (first, _), (last, last_header) = run[0], run[-1]
        spans = [
            (position - first + RECORD_BATCH_OVERHEAD, position - first + header.size_in_bytes)
            for position, header in run
        ]
        data = _bytes(buffer, first, last - first + last_header.size_in_bytes)
        yield _Chunk(data, [header for _, header in run], spans)


def _joined(buffer: Buffer, batches: Sequence[_PositionedHeader]) -> Iterator[_Chunk]:
    decompressed = ((header, record_bytes(buffer, position, header)) for position, header in batches)
    for run in _runs(decompressed, lambda batch: len(batch[1]), _MAX_JOINED_CHUNK):
        parts = [part for _, part in run]
        ends = list(accumulate(map(len, parts)))
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        yield _Chunk(_bytes(data, 0, len(data)), [header for header, _ in run], spans)


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


def _bytes(buffer: Buffer, start: int, size: int) -> Bytes:
    """Part of `buffer` as an array; always read-only, since numba compiles once more for each kind of array."""
    array = np.frombuffer(buffer, np.uint8)[start : start + size]
    array.flags.writeable = False
    return array


def _locate(chunk: _Chunk, start_offset: int, end_offset: int, room: _Room, progress: float) -> Records:
    table = _batch_table(chunk)
    room.reserve(int(table[:, 2].sum()))
    batch_rows = np.empty(len(table), np.int64)
    rows, broken = locate(
        chunk.data,
        table,
        start_offset,
        end_offset,
        room.offsets,
        room.timestamps,
        batch_rows,
        *room.keys,
        *room.values,
        *room.tails,
    )
    if broken != SOUND:
        raise _corrupt(chunk.headers[broken])
    types = np.array([header.timestamp_type for header in chunk.headers], np.int32)
    return Records(
        chunk.data,
        progress,
        room.offsets[:rows],
        room.timestamps[:rows],
        np.repeat(types, np.diff(batch_rows, append=rows)),
        room.keys.head(rows),
        room.values.head(rows),
        *room.tails.head(rows),
    )


def _batch_table(chunk: _Chunk) -> Longs:
    rows = [_batch_row(span, header) for span, header in zip(chunk.spans, chunk.headers, strict=True)]
    return np.array(rows, np.int64)


def _batch_row(span: tuple[int, int], header: BatchHeader) -> tuple[int, int, int, int, int, int]:
    start, end = span
    if not 0 <= header.record_count * _MIN_RECORD_SIZE <= end - start:
        raise _corrupt(header)
    is_log_append_time = header.attributes & LOG_APPEND_TIME_FLAG
    append_timestamp = header.max_timestamp if is_log_append_time else _CREATE_TIME
    return start, end, header.record_count, header.base_offset, header.base_timestamp, append_timestamp


def _corrupt(header: BatchHeader) -> RaykaError:
    return RaykaError(
        ErrorCode.CORRUPT_MESSAGE, f"The records of the batch at offset {header.base_offset} are not as the format says"
    )
