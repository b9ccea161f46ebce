"""Arrow columns as record batches: the way back from `columns`.

The columns are key, value, headers and timestamp, as `columns.SCHEMA` has them; other columns are not looked
at. Keys and values may also be strings, timestamps of any unit or integers in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.decode import Bytes, Longs
from rayka.storage.columns.encode import Fields, encode
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import seal_batch

DEFAULT_MAX_BATCH_SIZE = 1_000_000
"""A little below the default of `max.message.bytes`."""

_MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
_MAX_HEADER_OVERHEAD = 5 + 5
_NOTHING = np.empty(0, np.uint8)


def write_columns(
    columns: pa.RecordBatch | pa.Table,
    *,
    now_ms: int,
    max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
) -> Iterator[bytearray]:
    """One record for each row, in batches of at most `max_batch_size` bytes before compression.

    A missing column is null in every record; a missing or null timestamp is `now_ms`. A record that is larger
    than a batch may be gets a batch of its own. The producer, if there is one, is set by `batch.stamp_producer`.
    Raises INVALID_RECORD for a column of a type that has no bytes.
    """
    for part in columns.to_batches() if isinstance(columns, pa.Table) else [columns]:
        if part.num_rows:
            yield from _write(part, now_ms, max_batch_size, codec, level, base_offset)
            base_offset += part.num_rows


def _write(
    part: pa.RecordBatch, now_ms: int, max_batch_size: int, codec: Codec, level: int | None, base_offset: int
) -> Iterator[bytearray]:
    keys, values = _fields(part, "key"), _fields(part, "value")
    header_rows, header_keys, header_values = _headers(part)
    timestamps = _timestamps(part, now_ms)
    size = _records_size(part.num_rows, keys, values, header_keys, header_values)
    max_batches = min(part.num_rows, 2 * size // max(max_batch_size - RECORD_BATCH_OVERHEAD, 1) + 1)
    out = np.empty(size + max_batches * RECORD_BATCH_OVERHEAD, np.uint8)
    batches = np.empty((max_batches, 5), np.int64)
    count = encode(keys, values, header_rows, header_keys, header_values, timestamps, max_batch_size, out, batches)
    for start, end, first_row, record_count, max_timestamp in batches[:count].tolist():
        yield seal_batch(
            bytearray(out[start:end]),
            record_count=record_count,
            base_timestamp=int(timestamps[first_row]),
            max_timestamp=max_timestamp,
            base_offset=base_offset + first_row,
            codec=codec,
            level=level,
        )


def _records_size(rows: int, keys: Fields, values: Fields, header_keys: Fields, header_values: Fields) -> int:
    """The most bytes that the records can take."""
    content = sum(int(np.maximum(fields.lengths, 0).sum()) for fields in (keys, values, header_keys, header_values))
    return content + rows * _MAX_RECORD_OVERHEAD + len(header_keys.lengths) * _MAX_HEADER_OVERHEAD


def _fields(part: pa.RecordBatch, name: str) -> Fields:
    if name not in part.schema.names:
        return Fields(_NOTHING, np.zeros(part.num_rows, np.int64), np.full(part.num_rows, -1, np.int64))
    return binary_fields(name, part.column(name))


def binary_fields(name: str, array: pa.Array) -> Fields:
    """Where each value of a column of bytes or text lies. Raises INVALID_RECORD for a column of another type."""
    try:
        binary = array.cast(pa.large_binary())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise RaykaError(ErrorCode.INVALID_RECORD, f"Column {name} of type {array.type} has no bytes") from error
    _, offsets_buffer, data_buffer = binary.buffers()
    if not len(binary):
        return Fields(_NOTHING, np.empty(0, np.int64), np.empty(0, np.int64))
    offsets = np.frombuffer(offsets_buffer, np.int64, len(binary) + 1, 8 * binary.offset)
    lengths = np.diff(offsets)
    if binary.null_count:
        lengths[_is_null(binary)] = -1
    return Fields(_read_only(data_buffer), offsets[:-1], lengths)


def _headers(part: pa.RecordBatch) -> tuple[Longs, Fields, Fields]:
    """The row of the first header of each record (and one more), and the keys and values of all headers."""
    if "headers" not in part.schema.names or part.column("headers").null_count == part.num_rows:
        nothing = Fields(_NOTHING, np.empty(0, np.int64), np.empty(0, np.int64))
        return np.zeros(part.num_rows + 1, np.int64), nothing, nothing
    column = part.column("headers")
    try:
        headers = column.flatten()
        keys, values = headers.field("key"), headers.field("value")
    except (AttributeError, KeyError) as error:
        message = f"Column headers of type {column.type} is not a list of key and value"
        raise RaykaError(ErrorCode.INVALID_RECORD, message) from error
    if headers.null_count or keys.null_count:
        raise RaykaError(ErrorCode.INVALID_RECORD, "Column headers has a header without a key")
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    header_rows = np.zeros(part.num_rows + 1, np.int64)
    np.cumsum(counts, out=header_rows[1:])
    return header_rows, binary_fields("headers.key", keys), binary_fields("headers.value", values)


def _timestamps(part: pa.RecordBatch, now_ms: int) -> Longs:
    if "timestamp" not in part.schema.names:
        return np.full(part.num_rows, now_ms, np.int64)
    column = part.column("timestamp")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    elif not pa.types.is_integer(column.type):
        raise RaykaError(ErrorCode.INVALID_RECORD, f"Column timestamp of type {column.type} is no timestamp")
    milliseconds: Longs = pc.fill_null(column.cast(pa.int64()), now_ms).to_numpy(zero_copy_only=False)
    return milliseconds


def _is_null(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    nulls: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.is_null(array).to_numpy(zero_copy_only=False)
    return nulls


def _read_only(buffer: pa.Buffer | None) -> Bytes:
    """`buffer` as an array; always read-only, since numba compiles once more for each kind of array."""
    if buffer is None:
        return _NOTHING
    array = np.frombuffer(buffer, np.uint8)
    array.flags.writeable = False
    return array


_NOTHING.flags.writeable = False
