"""Protobuf messages as columns, by descriptors as `protoc` writes them."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rayka.errors import ErrorCode, RaykaError
from rayka.spark import protobuf_values

Field = descriptor_pb2.FieldDescriptorProto
REPEATED = Field.LABEL_REPEATED


def field(name, number, kind, type_name=None, label=Field.LABEL_OPTIONAL):
    return Field(name=name, number=number, type=kind, type_name=type_name, label=label)


def descriptor_set():
    """Of two messages: shop.Item, and shop.Order with an enum, a map and a message of its own."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Item", field=[field("name", 1, Field.TYPE_STRING), field("count", 2, Field.TYPE_INT32)])
    order = file.message_type.add(
        name="Order",
        field=[
            field("id", 1, Field.TYPE_INT64),
            field("items", 2, Field.TYPE_MESSAGE, ".shop.Item", REPEATED),
            field("first", 3, Field.TYPE_MESSAGE, ".shop.Item"),
            field("tags", 4, Field.TYPE_MESSAGE, ".shop.Order.TagsEntry", REPEATED),
            field("state", 5, Field.TYPE_ENUM, ".shop.Order.State"),
            field("at", 6, Field.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
            field("raw", 7, Field.TYPE_BYTES),
            field("price", 8, Field.TYPE_DOUBLE),
            field("prices", 9, Field.TYPE_FLOAT, label=REPEATED),
        ],
    )
    entry = order.nested_type.add(
        name="TagsEntry", field=[field("key", 1, Field.TYPE_STRING), field("value", 2, Field.TYPE_INT32)]
    )
    entry.options.map_entry = True
    state = order.enum_type.add(name="State")
    for number, name in enumerate(("OPEN", "PAID")):
        state.value.add(name=name, number=number)
    found = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return found


DESCRIPTORS = descriptor_set().SerializeToString()
ITEM = StructType([StructField("name", StringType()), StructField("count", IntegerType())])
SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("items", ArrayType(ITEM)),
        StructField("first", ITEM),
        StructField("tags", MapType(StringType(), IntegerType())),
        StructField("state", StringType()),
        StructField("at", TimestampType()),
        StructField("raw", BinaryType()),
        StructField("unknown", StringType()),
    ]
)


def order(**fields):
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_set().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields).SerializeToString()


FULL = order(
    id=7, items=[{"name": "a", "count": 1}, {"name": "b"}], first={"name": "c"}, tags={"x": 1}, state=1,
    at={"seconds": 1_700_000_000, "nanos": 5_000}, raw=b"\0",
)  # fmt: skip
ROW = {
    "id": 7, "items": [{"name": "a", "count": 1}, {"name": "b", "count": 0}], "first": {"name": "c", "count": 0},
    "tags": [("x", 1)], "state": "PAID", "at": 1_700_000_000_000_005, "raw": b"\0", "unknown": None,
}  # fmt: skip
EMPTY = {"id": 0, "items": [], "first": None, "tags": [], "state": "OPEN", "at": None, "raw": b"", "unknown": None}
NULLS = dict.fromkeys(ROW)


def decode(values, **how):
    decoding = pickle.loads(pickle.dumps(protobuf_values(SCHEMA, DESCRIPTORS, "shop.Order", **how)))
    decoded = decoding.decode(pa.record_batch({"value": pa.array(values, pa.binary())}))
    place = decoded.schema.get_field_index("at")
    return decoded.set_column(place, "at", decoded.column("at").cast(pa.int64())).to_pylist()


def test_messages_become_rows():
    assert decode([FULL, None, order(), FULL]) == [ROW, NULLS, EMPTY, ROW]
    assert decode([]) == []


def test_a_state_may_be_a_number():
    numbers = protobuf_values(StructType([StructField("state", IntegerType())]), DESCRIPTORS, "shop.Order")
    assert numbers.decode(pa.record_batch({"value": pa.array([FULL], pa.binary())})).to_pylist() == [{"state": 1}]


@pytest.mark.parametrize(
    ("column", "value", "whole"),
    [
        (StructField("price", LongType()), {"price": 19.99}, {"price": 20.0}),
        (StructField("prices", ArrayType(IntegerType())), {"prices": [1.0, 1.5]}, {"prices": [1.0, -2.0]}),
    ],
)
def test_a_fraction_is_not_cut_off_to_fit_a_column_of_integers(column, value, whole):
    integers = protobuf_values(StructType([column]), DESCRIPTORS, "shop.Order")
    assert integers.decode(pa.record_batch({"value": pa.array([order(**whole)], pa.binary())})).to_pylist() == [whole]
    with pytest.raises(RaykaError, match="not Protobuf of the given schema"):
        integers.decode(pa.record_batch({"value": pa.array([order(**value)], pa.binary())}))


@pytest.mark.parametrize("name", ["items", "first", "tags"])
def test_lists_maps_and_messages_cannot_be_columns_of_strings(name):
    texts = protobuf_values(StructType([StructField(name, StringType())]), DESCRIPTORS, "shop.Order", on_error="null")
    with pytest.raises(RaykaError, match="can't be a column of string") as refused:
        texts.decode(pa.record_batch({"value": pa.array([FULL], pa.binary())}))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_value_that_is_not_a_message_fails_or_is_null():
    assert decode([FULL, b"\xff\xff", FULL], on_error="null") == [ROW, NULLS, ROW]
    with pytest.raises(RaykaError, match="not Protobuf of the given schema") as failed:
        decode([b"\xff\xff"])
    assert failed.value.code is ErrorCode.INVALID_RECORD


def test_values_as_clients_of_a_schema_registry_write_them():
    """A zero, the id, and that it is the second message of its file: one index, 1, both in zigzag encoding."""
    framed = b"\0\0\0\0\x07" + b"\x02\x02" + FULL
    bad = [b"", b"\0\0\0\0\x07", b"\x01" + framed[1:], b"\0\0\0\0\x07\0" + FULL, b"\0\0\0\0\x07\x02", FULL]
    rows = decode([framed, *bad], has_schema_id=True, on_error="null")
    assert rows == [ROW, *[NULLS] * len(bad)]


@pytest.mark.parametrize(("descriptors", "name"), [(DESCRIPTORS, "shop.Nothing"), (b"no descriptors", "shop.Order")])
def test_descriptors_without_the_message_are_refused(descriptors, name):
    with pytest.raises(RaykaError, match=f"have no message {name}") as refused:
        protobuf_values(SCHEMA, descriptors, name)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
