"""Arrow columns as the rows of records, which `rows.write_rows` writes: the way back from `columns`.

The columns are key, value, headers and timestamp, as `columns.SCHEMA` has them; other columns are not looked
at. Keys and values may also be strings, timestamps of any unit or integers in milliseconds.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.decode import Bytes, Longs
from rayka.storage.columns.encode import Fields
from rayka.storage.columns.rows import NO_BYTES, NO_FIELDS, Rows, constant, nulls


def rows_of_columns(part: pa.RecordBatch, now_ms: int) -> Rows:
    """The rows of Arrow columns. A missing column is null in every record; a missing or null timestamp is `now_ms`.

    Raises INVALID_RECORD for a column of a type that has no bytes.
    """
    return Rows(_fields(part, "key"), _fields(part, "value"), *_headers(part), _timestamps(part, now_ms))


def _fields(part: pa.RecordBatch, name: str) -> Fields:
    if name not in part.schema.names:
        return nulls(part.num_rows)
    return binary_fields(name, part.column(name))


def binary_fields(name: str, array: pa.Array) -> Fields:
    """Where each value of a column of bytes or text lies. Raises INVALID_RECORD for a column of another type."""
    try:
        binary = array.cast(pa.large_binary())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise RaykaError(
            ErrorCode.INVALID_RECORD, f"Column {name} must have bytes or text, not {array.type}"
        ) from error
    _, offsets_buffer, data_buffer = binary.buffers()
    if not len(binary):
        return NO_FIELDS
    offsets = np.frombuffer(offsets_buffer, np.int64, len(binary) + 1, 8 * binary.offset)
    lengths = np.diff(offsets)
    if binary.null_count:
        lengths[_is_null(binary)] = -1
    return Fields(_read_only(data_buffer), offsets[:-1], lengths)


def _headers(part: pa.RecordBatch) -> tuple[Longs, Fields, Fields]:
    """The row of the first header of each record (and one more), and the keys and values of all headers."""
    if "headers" not in part.schema.names or part.column("headers").null_count == part.num_rows:
        return constant(0, part.num_rows + 1), NO_FIELDS, NO_FIELDS
    column = part.column("headers")
    try:
        headers = column.flatten()
        keys, values = headers.field("key"), headers.field("value")
    except (AttributeError, KeyError, pa.ArrowNotImplementedError) as error:
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
    try:
        if pa.types.is_timestamp(column.type):
            wanted = pa.timestamp("ms", column.type.tz)
            column = column.cast(options=pc.CastOptions(wanted, allow_time_truncate=True))
        elif not pa.types.is_integer(column.type):
            raise RaykaError(
                ErrorCode.INVALID_RECORD, f"Column timestamp must have timestamps or integers, not {column.type}"
            )
        milliseconds: Longs = pc.fill_null(column.cast(pa.int64()), now_ms).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise RaykaError(ErrorCode.INVALID_RECORD, f"Column timestamp has a time that does not fit: {error}") from error
    return milliseconds


def _is_null(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    nulls: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.is_null(array).to_numpy(zero_copy_only=False)
    return nulls


def _read_only(buffer: pa.Buffer | None) -> Bytes:
    """`buffer` as an array; always read-only, since numba compiles once more for each kind of array."""
    if buffer is None:
        return NO_BYTES
    array = np.frombuffer(buffer, np.uint8)
    array.flags.writeable = False
    return array
