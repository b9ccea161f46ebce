"""A value that its column can't hold fails the job or is null, in every format: no part of it is lost silently."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import fastavro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rayka.errors import ErrorCode, RaykaError
from rayka.spark import arrow_values, avro_values, json_values, registry_values

NOON = datetime.datetime(2024, 5, 6, 12, tzinfo=datetime.UTC)
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 3}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
TIME_MILLIS = {"type": "int", "logicalType": "time-millis"}
TIME_MICROS = {"type": "long", "logicalType": "time-micros"}
TIME = datetime.time(12, 34, 56, 7_008)
LOST_IN_AVRO = {
    "a fraction": ("double", 19.99, LongType()),
    "a decimal in an integer": (DECIMAL, decimal.Decimal("2.000"), IntegerType()),
    "a decimal in a double": (DECIMAL, decimal.Decimal("1.500"), DoubleType()),
    "a decimal in a float": (DECIMAL, decimal.Decimal("1.500"), FloatType()),
    "a time of day in a timestamp": (TIME_MILLIS, TIME, TimestampType()),
    "a fraction in an array": ({"type": "array", "items": "double"}, [1.0, 1.5], ArrayType(LongType())),
    "a fraction in a map": ({"type": "map", "values": "double"}, {"x": 1.5}, MapType(StringType(), LongType())),
    "a long in an integer": ("long", 1 << 40, IntegerType()),
    "a double beyond float": ("double", 1e300, FloatType()),
    "a decimal of more digits": (DECIMAL, decimal.Decimal("1.239"), DecimalType(6, 2)),
    "a time of day": (MILLIS, NOON, DateType()),
    "a number in a timestamp": ("long", 1_714_996_800_000, TimestampType()),
    "a number in a date": ("int", 5, DateType()),
    "bytes that are no UTF-8": ("bytes", b"\xff", StringType()),
    "bytes in an array of numbers": ("bytes", b"abc", ArrayType(IntegerType())),
    "a text in an array": ("string", "abc", ArrayType(StringType())),
    "a number in a struct": ("long", 1, StructType([StructField("x", LongType())])),
}
FITTING_IN_AVRO = {
    "a whole double": ("double", 20.0, LongType(), 20),
    "a decimal": (DECIMAL, decimal.Decimal("1.239"), DecimalType(6, 3), decimal.Decimal("1.239")),
    "a time of day in milliseconds": (TIME_MILLIS, TIME, IntegerType(), 45_296_007),
    "a time of day in microseconds": (["null", TIME_MICROS], TIME, LongType(), 45_296_007_008),
    "times of day in an array": ({"type": "array", "items": TIME_MILLIS}, [TIME], ArrayType(LongType()), [45_296_007]),
    "a double that a float rounds": ("double", 0.1, FloatType(), pytest.approx(0.1)),
    "a timestamp": (MILLIS, NOON, TimestampType(), NOON),
    "a date": ({"type": "int", "logicalType": "date"}, NOON.date(), DateType(), NOON.date()),
    "bytes of UTF-8": ("bytes", "ä".encode(), StringType(), "ä"),
    "a UUID": ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=7), StringType(), str(uuid.UUID(int=7))),
    "nothing": (["null", "double"], None, LongType(), None),
}


def column(kind):
    return StructType([StructField("a", kind)])


def record_of(kind):
    return {"type": "record", "name": "Sale", "fields": [{"name": "a", "type": kind}]}


def avro(kind, value):
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, record_of(kind), {"a": value})
    return buffer.getvalue()


def decode(values, decoding):
    return decoding.decode(pa.record_batch({"value": pa.array(values, pa.binary())})).to_pylist()


def require_lost(value, values, schema, *arguments, good=None):
    """A value fails the job, or alone is null."""
    with pytest.raises(RaykaError) as failed:
        decode([value], values(schema, *arguments))
    assert failed.value.code is ErrorCode.INVALID_RECORD
    rows = decode([value, good], values(schema, *arguments, on_error="null"))
    assert rows[0] == dict.fromkeys(schema.names)


@pytest.mark.parametrize(("written", "value", "kind"), LOST_IN_AVRO.values(), ids=LOST_IN_AVRO)
def test_avro_that_does_not_fit(written, value, kind):
    require_lost(avro(written, value), avro_values, column(kind), record_of(written))
    registered = b"\0" + (7).to_bytes(4, "big") + avro(written, value)
    require_lost(registered, registry_values, column(kind), {7: record_of(written)})


@pytest.mark.parametrize(("written", "value", "kind", "read"), FITTING_IN_AVRO.values(), ids=FITTING_IN_AVRO)
@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_avro_that_fits(written, value, kind, read, on_error):
    assert decode([avro(written, value)], avro_values(column(kind), record_of(written), on_error=on_error)) == [
        {"a": read}
    ]


@pytest.mark.parametrize("behind", [b"\0", b"more"])
def test_bytes_after_an_avro_record_are_refused(behind):
    """They show that the value was written with another schema, or that `prefix_bytes` is missing."""
    require_lost(avro("long", 7) + behind, avro_values, column(LongType()), record_of("long"))


def test_an_avro_value_that_is_no_record_does_not_fit():
    require_lost(b"\x02", avro_values, column(LongType()), '"long"')


def arrow(value, kind, name="a"):
    sink = io.BytesIO()
    table = pa.table({name: pa.array([value], kind)})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


LOST_IN_ARROW = {
    "a fraction": (1.5, pa.float64(), LongType()),
    "a double in a decimal": (1.239, pa.float64(), DecimalType(5, 2)),
    "a time of day": (NOON, pa.timestamp("us", "UTC"), DateType()),
    "a number in a timestamp": (5, pa.int64(), TimestampType()),
    "nanoseconds": (1_001, pa.timestamp("ns"), TimestampType()),
    "a double beyond float": (1e300, pa.float64(), FloatType()),
    "a number in a boolean": (5, pa.int64(), BooleanType()),
}


@pytest.mark.parametrize(("value", "written", "kind"), LOST_IN_ARROW.values(), ids=LOST_IN_ARROW)
def test_arrow_that_does_not_fit(value, written, kind):
    require_lost(arrow(value, written), arrow_values, column(kind))


def test_arrow_of_another_column_or_cut_off_does_not_fit():
    whole = arrow(5, pa.int64())
    assert decode([whole], arrow_values(column(LongType()))) == [{"a": 5}]
    require_lost(arrow(5, pa.int64(), "b"), arrow_values, column(LongType()))
    for length in range(0, len(whole) - 8, 16):
        require_lost(whole[:length], arrow_values, column(LongType()))


LOST_IN_JSON = {
    "a double beyond float": ("1e300", FloatType()),
    "a double beyond float in an array": ("[1, 1e300]", ArrayType(FloatType())),
    "a long in an integer": ("3000000000", IntegerType()),
    "a decimal of more digits": ("1.239", DecimalType(5, 2)),
    "a decimal that is too large": ("99999", DecimalType(5, 2)),
    "a number in a date": ("5", DateType()),
    "a time of day": ('"2024-05-06T12:00:00Z"', DateType()),
}


@pytest.mark.parametrize(("text", "kind"), LOST_IN_JSON.values(), ids=LOST_IN_JSON)
def test_json_that_does_not_fit(text, kind):
    require_lost(b'{"a": %s}' % text.encode(), json_values, column(kind), good=b"{}")


def test_json_dates_are_read_as_spark_writes_them():
    days = StructType([StructField("a", DateType()), StructField("b", ArrayType(column(DateType())))])
    row = {"a": "2024-05-06", "b": [{"a": "2024-05-07"}, {}]}
    day = datetime.date(2024, 5, 6)
    read = {"a": day, "b": [{"a": day.replace(day=7)}, {"a": None}]}
    assert decode([json.dumps(row).encode(), b"{}"], json_values(days)) == [read, {"a": None, "b": None}]


@pytest.mark.parametrize("kind", [BinaryType(), ArrayType(BinaryType()), MapType(StringType(), LongType())])
def test_columns_that_json_cannot_be_decoded_to_are_refused(kind):
    """Spark writes bytes as base64, which Arrow's parser would take for the bytes."""
    with pytest.raises(RaykaError, match="can't be decoded into a column") as refused:
        decode([b"{}"], json_values(column(kind), on_error="null"))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_every_field_may_be_null_whatever_the_schema_says():
    """Spark reads a null as 0 where it was told that there is none."""
    inner = StructType([StructField("x", LongType(), False)])
    schema = StructType([StructField("a", ArrayType(inner, False), False), StructField("b", LongType(), False)])
    nullable = StructType([StructField("a", ArrayType(StructType([StructField("x", LongType())])))])
    assert json_values(schema).fields == nullable.add("b", LongType())
