"""Values that are decoded before Spark sees them."""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from rayka.errors import ErrorCode, RaykaError
from rayka.spark import arrow_values, avro_values, json_values, protobuf_values, read_topic, registry_values

SCHEMA = "user string, n long, price double"
SCHEMA_TYPE = StructType(
    [StructField("user", StringType()), StructField("n", LongType()), StructField("price", DoubleType())]
)
AVRO = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "price", "type": ["null", "double"]},
    ],
}
REGISTERED = {7: AVRO, 70_000: {**AVRO, "fields": AVRO["fields"][:2]}}
ROWS = [{"user": f"user {i % 7}", "n": i, "price": None if i % 5 == 0 else i / 4} for i in range(500)]


def as_json(row):
    return json.dumps({**row, "extra": [1, 2]}, indent=1).encode()


def as_avro(row):
    buffer = io.BytesIO(b"\0" * 5)
    buffer.seek(5)
    fastavro.schemaless_writer(buffer, AVRO, row)
    return buffer.getvalue()


def as_registered(row):
    """Every second record has a schema of another id, in which the price is missing."""
    buffer = io.BytesIO()
    number = 7 if row["n"] % 2 else 70_000
    fastavro.schemaless_writer(buffer, REGISTERED[number], row)
    return b"\0" + number.to_bytes(4, "big") + buffer.getvalue()


def as_arrow(row):
    sink = io.BytesIO()
    table = pa.Table.from_pylist([row], pa.schema([("user", pa.string()), ("n", pa.int64()), ("price", pa.float64())]))
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def sale():
    """The message Sale, and its descriptors as `protoc` writes them."""
    kinds = descriptor_pb2.FieldDescriptorProto
    fields = [
        kinds(name="user", number=1, type=kinds.TYPE_STRING),
        kinds(name="n", number=2, type=kinds.TYPE_INT64),
        kinds(name="price", number=3, type=kinds.TYPE_DOUBLE),
    ]
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", syntax="proto2")
    file.message_type.add(name="Sale", field=fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Sale")), descriptors


Sale, DESCRIPTORS = sale()


def as_protobuf(row):
    return Sale(**row).SerializeToString()


def fill(cluster, topic, encode):
    with cluster.producer() as producer:
        for i, row in enumerate(ROWS):
            producer.send(topic, encode(row), partition=i % 3)
        producer.send(topic, None, partition=0)


def test_each_value_is_decoded_by_the_schema_whose_id_it_has():
    values = pa.array([as_registered(row) for row in ROWS] + [None])
    decoded = registry_values(SCHEMA_TYPE, REGISTERED).decode(pa.record_batch([values], ["value"])).to_pylist()
    assert decoded[:-1] == [{**row, "price": row["price"] if row["n"] % 2 else None} for row in ROWS]
    assert decoded[-1] == {"user": None, "n": None, "price": None}
    foreign = pa.record_batch([pa.array([b"\0\0\0\0\5x", b"\1\0\0\0\7", b"\0"])], ["value"])
    with pytest.raises(RaykaError, match="not the id of a known schema"):
        registry_values(SCHEMA_TYPE, REGISTERED).decode(foreign)
    nulls = registry_values(SCHEMA_TYPE, REGISTERED, on_error="null").decode(foreign).to_pylist()
    assert nulls == [{"user": None, "n": None, "price": None}] * 3


@pytest.mark.parametrize(
    ("encode", "values"),
    [
        (as_json, json_values(SCHEMA)),
        (as_avro, avro_values(SCHEMA, AVRO, prefix_bytes=5)),
        (as_arrow, arrow_values(SCHEMA)),
        (as_protobuf, protobuf_values(SCHEMA, DESCRIPTORS, "Sale")),
    ],
    ids=["json", "avro", "arrow", "protobuf"],
)
def test_values_become_columns(spark, cluster, topic, encode, values):
    fill(cluster, topic, encode)
    frame = read_topic(spark, topic, columns=("offset", "value"), values=values)
    assert frame.columns == ["offset", "user", "n", "price"]
    rows = [row.asDict() for row in frame.drop("offset").collect()]
    assert sorted((row for row in rows if row["user"]), key=lambda row: row["n"]) == ROWS
    assert [row for row in rows if not row["user"]] == [{"user": None, "n": None, "price": None}]


def test_a_value_that_is_none_fails_the_job_or_is_null(spark, cluster, topic):
    with cluster.producer() as producer:
        for value in (b'{"n": 1}', b"no json", b'{"n": 2}', b"[3]"):
            producer.send(topic, value, partition=0)
    with pytest.raises(Exception, match="INVALID_RECORD"):
        read_topic(spark, topic, values=json_values("n long")).count()
    lenient = read_topic(spark, topic, columns=("value",), values=json_values("n long", on_error="null"))
    assert [row["n"] for row in lenient.collect()] == [1, None, 2, None]


def test_a_field_named_like_a_column_is_refused(spark, topic):
    with pytest.raises(RaykaError) as refused:
        read_topic(spark, topic, values=json_values("offset long"))
    with pytest.raises(RaykaError, match="names and types"):
        read_topic(spark, topic, values=json_values("long"))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
