"""The columns of a DataFrame that reads topics: those of Spark's Kafka source, or some of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayka.spark.source.options import invalid

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

HEADERS = "headers"
_TYPES: Mapping[str, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    HEADERS: "array<struct<key:string,value:binary>>",
}
COLUMNS = tuple(name for name in _TYPES if name != HEADERS)
"""Those that a query has unless it asks for headers."""
BATCH_ROWS = 8_192
"""Batches of about a megabyte: what the worker writes is still in the processor's cache when Java reads it."""


def ddl(columns: Iterable[str]) -> str:
    """The schema in Spark's notation."""
    return ", ".join(f"{name} {_TYPES[name]}" for name in columns)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that the user gave, which may be fewer. Raises INVALID_REQUEST for others."""
    for field in schema.fields:
        if _TYPES.get(field.name) != field.dataType.simpleString():
            given = f"{field.name} {field.dataType.simpleString()}"
            raise invalid(f"The source rayka has no column {given}: use some of {ddl(_TYPES)}")
    return tuple(schema.names)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects from a Python worker."""
    from pyspark.sql.pandas import types

    spark_types: Any = types
    return spark_types.to_arrow_schema(schema, timezone="UTC")


def pieces(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in pieces that Spark takes, of the schema's types, which differ only in what may be null."""
    import pyarrow as pa

    for batch in batches:
        columns: Sequence[pa.Array] = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        typed = pa.RecordBatch.from_arrays(columns, schema=schema)
        for start in range(0, typed.num_rows, BATCH_ROWS):
            yield typed.slice(start, BATCH_ROWS)
