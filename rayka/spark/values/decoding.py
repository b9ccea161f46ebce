"""Values as columns of a given schema: JSON, Avro and Arrow; Protobuf is in `protobuf`.

A decoding puts the fields of its schema in place of the column `value`. A record without a value has nulls there.
A value that can't be decoded fails the job; with `on_error="null"` the fields of that record alone are null.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, _parse_datatype_string

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.values.fitting import fitting
from rayka.storage.columns.encode import Fields
from rayka.storage.columns.write import binary_fields

OnError = Literal["fail", "null"]
_REGISTERED = struct.Struct(">bI")
_TIMES_OF_DAY = ("time-millis", "time-micros")
_NESTED = ("type", "fields", "items", "values")


@dataclass(frozen=True, slots=True)
class Decoding:
    """`schema` is what a value holds; `read` makes Arrow columns of the values that are not null."""

    schema: StructType | str
    read: Callable[[pa.Array, pa.Schema], pa.Table]

    @property
    def fields(self) -> StructType:
        """The schema, in which every field may be null; one given as text is parsed by the running session.

        Raises INVALID_REQUEST for the text of a type without a name.
        """
        schema = self.schema if isinstance(self.schema, StructType) else _parse_datatype_string(self.schema)
        if not isinstance(schema, StructType):
            message = f'The schema of values has names and types, as in "user string, n long": {self.schema}'
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)
        return StructType(_nullable(schema).fields)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the fields of the schema in place of its column `value`."""
        values = batch.column(batch.schema.get_field_index("value"))
        arrow_schema = to_arrow_schema(self.fields)
        table = self.read(values.drop_null(), arrow_schema).combine_chunks()
        decoded = _spread(table, values) if values.null_count else table
        arrays, names = [], []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name != "value":
                arrays.append(column)
                names.append(name)
                continue
            for field in arrow_schema:
                arrays.append(_array(decoded.column(field.name), field.type))
                names.append(field.name)
        return pa.RecordBatch.from_arrays(arrays, names)

    def replace(self, schema: StructType) -> StructType:
        """The schema of the DataFrame with the fields in place of `value`. Raises INVALID_REQUEST at a double name."""
        fields = [new for field in schema for new in (self.fields if field.name == "value" else [field])]
        names = [field.name for field in fields]
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise RaykaError(
                ErrorCode.INVALID_REQUEST, f"fields {double} of the values are also columns of the topic: leave one out"
            )
        return StructType(fields)


def json_values(schema: StructType | str, *, on_error: OnError = "fail") -> Decoding:
    """Values that are JSON objects. Fields that the schema does not name are ignored; missing ones are null."""
    return Decoding(schema, _Json(on_error))


def avro_values(
    schema: StructType | str, avro_schema: str | dict[str, Any], *, prefix_bytes: int = 0, on_error: OnError = "fail"
) -> Decoding:
    """Values that are Avro records written with `avro_schema`.

    `prefix_bytes` are skipped first: 5 for the magic byte and schema id of schema registries. A column that
    `avro_schema` does not have is null. Logical types are read as Spark's `from_avro` reads them: a time of day is a
    number of milliseconds or microseconds, and a decimal needs a column of `decimal`. Needs fastavro.
    """
    parsed = json.loads(avro_schema) if isinstance(avro_schema, str) else avro_schema
    return Decoding(schema, _Avro(parsed, prefix_bytes, on_error))


def registry_values(
    schema: StructType | str, schemas: Mapping[int, str | dict[str, Any]], *, on_error: OnError = "fail"
) -> Decoding:
    """Values that are Avro records as the clients of a schema registry write them.

    A value has a zero byte, the id of the schema in four bytes, and the record. `schemas` has the schemas by id, as the
    registry returns them at `/schemas/ids/ID`. A field that the record's schema does not have is null. Needs fastavro.
    """
    parsed = {number: json.loads(each) if isinstance(each, str) else each for number, each in schemas.items()}
    return Decoding(schema, _Registered(parsed, on_error))


def arrow_values(schema: StructType | str, *, on_error: OnError = "fail") -> Decoding:
    """Decode values that are Arrow IPC streams of one row each."""
    return Decoding(schema, _ArrowStreams(on_error))


@dataclass(frozen=True, slots=True)
class _Json:
    """Every row is decoded by Arrow's parser: many at once, and where there is a bad one, halves of them."""

    on_error: OnError

    def __call__(self, values: pa.Array, schema: pa.Schema) -> pa.Table:
        from rayka.spark.values.json_lines import find_objects

        fields = binary_fields("value", values)
        is_object = np.empty(len(values), np.bool_)
        find_objects(*fields, is_object)
        if self.on_error == "fail" and not is_object.all():
            raise _undecodable(
                "JSON", ValueError(f"{_shown(values[int(is_object.argmin())])} is not a single JSON object")
            )
        (rows,) = is_object.nonzero()
        decoded, is_good = self._parse(Fields(fields.data, fields.positions[rows], fields.lengths[rows]), schema)
        if len(decoded) == len(values):
            return decoded
        taken = np.full(len(values), -1, np.int64)
        taken[rows[is_good]] = np.arange(len(decoded))
        return decoded.take(pa.array(taken, mask=taken < 0))

    def _parse(self, fields: Fields, schema: pa.Schema) -> tuple[pa.Table, Any]:
        """The rows that can be decoded, and their positions."""
        count = len(fields.lengths)
        if not count:
            return schema.empty_table(), np.empty(0, np.bool_)
        try:
            return _parse_lines(fields, schema), np.ones(count, np.bool_)
        except (pa.ArrowInvalid, OverflowError) as error:
            if self.on_error == "fail":
                raise _undecodable("JSON", error) from error
        if count == 1:
            return schema.empty_table(), np.zeros(1, np.bool_)
        middle = count // 2
        halves = [_part(fields, slice(None, middle)), _part(fields, slice(middle, None))]
        (first, first_good), (second, second_good) = (self._parse(half, schema) for half in halves)
        return pa.concat_tables([first, second]), np.concatenate([first_good, second_good])


def _parse_lines(fields: Fields, schema: pa.Schema) -> pa.Table:
    """Raises ArrowInvalid if a row does not match the schema."""
    from rayka.spark.values.json_lines import lines_of

    lines = lines_of(*fields)
    parsed = pa.schema([field.with_type(_parsed_as(field.type)) for field in schema])
    options = pa.json.ParseOptions(explicit_schema=parsed, unexpected_field_behavior="ignore")
    table = pa.json.read_json(
        pa.BufferReader(lines), pa.json.ReadOptions(block_size=len(lines) + 1, use_threads=False), options
    )
    if table.num_rows != len(fields.lengths):
        raise pa.ArrowInvalid(f"{table.num_rows} rows in {len(fields.lengths)} values")
    table.validate(full=True)
    decoded = table.select(schema.names).cast(schema)
    if any(map(_has_infinity, decoded.columns)):
        raise pa.ArrowInvalid("a number is too large for float")
    return decoded


def _parsed_as(wanted: pa.DataType) -> pa.DataType:
    """What Arrow's parser makes, for the column to be cast from: it reads numbers as dates, and not the texts of dates.

    Raises INVALID_REQUEST for maps, which it can't parse, and for bytes: Spark writes them as base64, and it takes that
    for the bytes.
    """
    if pa.types.is_struct(wanted):
        fields = [wanted.field(number) for number in range(wanted.num_fields)]
        return pa.struct([field.with_type(_parsed_as(field.type)) for field in fields])
    if pa.types.is_list(wanted):
        return pa.list_(wanted.value_field.with_type(_parsed_as(wanted.value_type)))
    if pa.types.is_map(wanted) or pa.types.is_binary(wanted):
        raise RaykaError(
            ErrorCode.INVALID_REQUEST, f"JSON can't be decoded into a column of {wanted}: use a string or a struct"
        )
    return pa.string() if pa.types.is_date(wanted) else wanted


def _has_infinity(column: Any) -> bool:
    """Whether a float is infinite, at any depth: JSON has no infinity, so the number was too large."""
    if pa.types.is_struct(column.type):
        return any(map(_has_infinity, column.flatten()))
    if pa.types.is_list(column.type):
        return _has_infinity(pc.list_flatten(column))
    return pa.types.is_float32(column.type) and bool(pc.any(pc.is_inf(column)).as_py())


def _part(fields: Fields, rows: slice) -> Fields:
    return Fields(fields.data, fields.positions[rows], fields.lengths[rows])


@dataclass(frozen=True, slots=True)
class _Avro:
    avro_schema: Any
    prefix_bytes: int
    on_error: OnError

    def __call__(self, values: pa.Array, schema: pa.Schema) -> pa.Table:
        import fastavro

        parsed = fastavro.parse_schema(_as_spark_reads(self.avro_schema))

        def one(value: bytes) -> Any:
            return _read_avro(value[self.prefix_bytes :], parsed)

        return one_by_one(values, schema, one, self.on_error, "Avro")


@dataclass(frozen=True, slots=True)
class _Registered:
    avro_schemas: Mapping[int, Any]
    on_error: OnError

    def __call__(self, values: pa.Array, schema: pa.Schema) -> pa.Table:
        import fastavro

        schemas = self.avro_schemas.items()
        parsed = {number: fastavro.parse_schema(_as_spark_reads(each)) for number, each in schemas}

        def one(value: bytes) -> Any:
            if len(value) < _REGISTERED.size:
                raise ValueError(f"{len(value)} bytes are too few for a schema id")
            magic, number = _REGISTERED.unpack_from(value)
            if magic or number not in parsed:
                raise ValueError(f"begins with {value[: _REGISTERED.size]!r}: not the id of a known schema")
            return _read_avro(value[_REGISTERED.size :], parsed[number])

        return one_by_one(values, schema, one, self.on_error, "Avro")


@dataclass(frozen=True, slots=True)
class _ArrowStreams:
    on_error: OnError

    def __call__(self, values: pa.Array, schema: pa.Schema) -> pa.Table:
        def one(value: bytes) -> Any:
            table = pa.ipc.open_stream(value).read_all()
            if table.num_rows != 1:
                raise ValueError(f"{table.num_rows} rows instead of one")
            return table.select(schema.names).to_pylist()[0]

        return one_by_one(values, schema, one, self.on_error, "Arrow")


def _as_spark_reads(avro_schema: Any) -> Any:
    """The schema with times of day as what they are written as, numbers: Spark's `from_avro` reads them so."""
    if isinstance(avro_schema, list):
        return [_as_spark_reads(each) for each in avro_schema]
    if not isinstance(avro_schema, dict):
        return avro_schema
    is_time = avro_schema.get("logicalType") in _TIMES_OF_DAY
    return {
        name: _as_spark_reads(each) if name in _NESTED else each
        for name, each in avro_schema.items()
        if not (is_time and name == "logicalType")
    }


def _read_avro(value: bytes, parsed: Any) -> Any:
    """A record. Raises ValueError if bytes are left: the value was written with another schema, or has a prefix."""
    import fastavro

    data = io.BytesIO(value)
    record = fastavro.schemaless_reader(data, parsed, None)
    if data.tell() != len(value):
        raise ValueError(f"{len(value) - data.tell()} of its {len(value)} bytes follow after the record")
    return record


def one_by_one(
    values: pa.Array, schema: pa.Schema, one: Callable[[bytes], Any], on_error: OnError, name: str
) -> pa.Table:
    """Decode values by a function that makes a row of each. `name` is that of the format, for errors."""
    fit = fitting(schema)

    def row_of(value: bytes) -> dict[str, Any]:
        row: dict[str, Any] = fit(one(value))
        if on_error == "null":
            pa.Table.from_pylist([row], schema)
        return row

    rows: list[dict[str, Any]] = []
    for value in values.to_pylist():
        try:
            rows.append(row_of(value))
        except Exception as error:
            if on_error == "fail":
                raise _undecodable(name, error) from error
            rows.append({})
    try:
        return pa.Table.from_pylist(rows, schema)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _undecodable(name, error) from error


def _nullable(kind: DataType) -> Any:
    """The type, in which everything may be null: else Spark would read 0 where a record has no value."""
    if isinstance(kind, StructType):
        fields = [StructField(field.name, _nullable(field.dataType), metadata=field.metadata) for field in kind]
        return StructType(fields)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    return MapType(kind.keyType, _nullable(kind.valueType)) if isinstance(kind, MapType) else kind


def _shown(value: pa.Scalar) -> str:
    return repr(value.as_py()[:80])


def _spread(table: pa.Table, values: pa.Array) -> pa.Table:
    """The rows of the values that are not null, and rows of nulls between them where a value is null."""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    rows = pa.array(valid.cumsum() - 1, mask=~valid)
    return table.take(rows)


def _array(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.Array:
    return pa.concat_arrays(column.chunks).cast(data_type) if column.num_chunks else pa.array([], data_type)


def _undecodable(name: str, error: Exception) -> RaykaError:
    return RaykaError(ErrorCode.INVALID_RECORD, f"a value is not {name} of the given schema: {error}")
