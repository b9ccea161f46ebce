"""Tables as rows for a topic: Arrow, pandas, and columns of NumPy arrays or lists.

The columns that count are value, key, headers, timestamp and partition. Importing this module imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rayka.client.producer.arguments import SINGLE_VALUES
from rayka.client.producer.key_hashes import choose_by_keys
from rayka.client.producer.route import Route
from rayka.client.settings import ProducerConfig, Serializer
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.decode import Longs
from rayka.storage.columns.rows import Rows
from rayka.storage.columns.write import rows_of_columns

COLUMNS = ("value", "key", "headers", "timestamp", "partition")
_READ_COLUMNS = ("topic", "offset", "timestampType")
"""What a table that was read has beside these. They say where the records came from, and are not sent."""


_UNFIT = (TypeError, ValueError, OverflowError, NotImplementedError)
"""What pyarrow raises for values that have no place in its arrays; its own errors are of these types too."""


class TableRows(NamedTuple):
    """Rows, and the partition of each that has one, -1 for the others; None: no row has one."""

    rows: Rows
    partitions: Longs | None


def require_known_columns(table: pa.Table) -> pa.Table:
    """The table. Raises INVALID_REQUEST for a column that is not one of a record, or is there twice."""
    known = (*COLUMNS, *_READ_COLUMNS)
    unknown = [name for name in table.column_names if name not in known]
    if unknown:
        raise RaykaError(
            ErrorCode.INVALID_REQUEST, f"Unknown column: {', '.join(unknown)} (a record has {', '.join(COLUMNS)})"
        )
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"The table has more than one column {', '.join(twice)}")
    return table


def arrow_table(table: Any) -> pa.Table:
    """`table` in Arrow's form: as it is, or from pandas, polars, or a mapping of names to arrays or lists.

    Raises INVALID_REQUEST for anything else, for columns of different lengths, and for what Arrow can't convert.
    """
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if isinstance(table, Mapping):
        columns = {name: _array(name, column) for name, column in table.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} has {length} rows" for name, length in lengths.items())
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"The columns of a table must be equally long: {shown}")
        return pa.table(columns)
    reason = ""
    if hasattr(table, "__arrow_c_stream__"):
        try:
            return pa.table(table)
        except _UNFIT as error:
            reason = f": {error}"
    raise RaykaError(
        ErrorCode.INVALID_REQUEST,
        f"a table is a pyarrow.Table, a DataFrame or a dict of columns, not {type(table).__name__}{reason}",
    )


def _array(name: str, column: Any) -> pa.Array | pa.ChunkedArray:
    """A two-dimensional array of bytes has a value of fixed length in each row. Raises INVALID_REQUEST."""
    if isinstance(column, SINGLE_VALUES):
        raise RaykaError(
            ErrorCode.INVALID_REQUEST,
            f"column {name} must be a list or an array with a value for each row, not {type(column).__name__}",
        )
    if isinstance(column, np.ndarray) and column.ndim == 2 and column.dtype == np.uint8:
        rows, width = column.shape
        data = pa.py_buffer(np.ascontiguousarray(column))
        return pa.Array.from_buffers(pa.binary(width), rows, [None, data])
    if isinstance(column, (pa.Array, pa.ChunkedArray)):
        return column
    try:
        return pa.array(column)
    except _UNFIT as error:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"column {name} can't be an Arrow array: {error}") from error


def rows_of_table(table: pa.Table, route: Route, config: ProducerConfig, now_ms: int) -> Iterator[TableRows]:
    """The rows of each part of a table.

    value and key are binary or text, timestamp a timestamp or ms since the epoch, headers lists of key and value.
    Raises INVALID_RECORD for columns of other types, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST for bad timestamps.
    """
    for part in table.to_batches():
        if part.num_rows:
            given = _serialized(part, config)
            rows = rows_of_columns(given, now_ms)
            if (earliest := rows.timestamps.min()) < 0:
                message = f"timestamp must be ms since the epoch, not {earliest}"
                raise RaykaError(ErrorCode.INVALID_REQUEST, message)
            yield TableRows(rows, _partitions(given, route))


def choose_partitions(keys: pa.Array, partition_count: int) -> Longs:
    """The partition of each key of a binary column as Kafka chooses it, -1 for those that are null."""
    rows = rows_of_columns(pa.RecordBatch.from_arrays([keys], ["key"]), 0)
    chosen: Longs = np.full(len(keys), -1, np.int64)
    choose_by_keys(*rows.keys, partition_count, chosen)
    return chosen


def _serialized(part: pa.RecordBatch, config: ProducerConfig) -> pa.RecordBatch:
    """The columns that count, after the serializers."""
    names = [name for name in part.schema.names if name in COLUMNS]
    serializers: dict[str, Serializer | None] = {"key": config.key_serializer, "value": config.value_serializer}
    arrays = []
    for name in names:
        column, serializer = part.column(name), serializers.get(name)
        if serializer is not None:
            given = (None if value is None else serializer(value) for value in column.to_pylist())
            column = pa.array(given, pa.large_binary(), size=len(column))
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names)


def _partitions(part: pa.RecordBatch, route: Route) -> Longs | None:
    if "partition" not in part.schema.names:
        return None
    column = part.column("partition")
    try:
        given = column.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RaykaError(ErrorCode.INVALID_RECORD, f"Column partition of type {column.type}: {error}") from error
    partitions: Longs = given.fill_null(-1).to_numpy(zero_copy_only=False)
    is_given = given.is_valid().to_numpy(zero_copy_only=False)
    is_bad = (partitions >= route.partition_count) | (partitions < 0) & is_given
    if is_bad.any():
        route.choose(None, 0, int(partitions[is_bad.argmax()]), None)
    return partitions
