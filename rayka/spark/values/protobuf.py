"""Protobuf values as columns, with the descriptors that `protoc` writes."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql.types import StructType

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.values.decoding import Decoding, OnError, one_by_one

Reader = Callable[[Any], Any]
"""Makes a plain value of a field's."""
_SCHEMA_ID_BYTES = 5
_KEPT_CLASSES = 64
_TIMESTAMP = "google.protobuf.Timestamp"


def protobuf_values(
    schema: StructType | str,
    descriptors: bytes,
    message: str,
    *,
    has_schema_id: bool = False,
    on_error: OnError = "fail",
) -> Decoding:
    """Values that are Protobuf messages of the type `message`, such as `"shop.Order"`.

    `descriptors` is the file that `protoc --include_imports --descriptor_set_out=FILE` writes. With `has_schema_id` a
    value begins as the clients of a schema registry write it: a zero, the id of the schema in four bytes, and which
    message of its file it is. The id is not looked up, since later versions of a message can be read by an earlier one.

    A field of the schema that the message does not have is null, and so is one that may be missing and is. Enums become
    their name, or for an integer column their number; `google.protobuf.Timestamp` becomes a timestamp of microseconds,
    as in Spark's `from_protobuf`.
    Raises INVALID_REQUEST for descriptors that do not have the message.
    """
    _message_class(descriptors, message)
    return Decoding(schema, _Protobuf(descriptors, message, has_schema_id, on_error))


@dataclass(frozen=True, slots=True)
class _Protobuf:
    descriptors: bytes
    message: str
    has_schema_id: bool
    on_error: OnError

    def __call__(self, values: pa.Array, schema: pa.Schema) -> pa.Table:
        message = _message_class(self.descriptors, self.message)
        path = _path(message.DESCRIPTOR)
        read = _message_reader(message.DESCRIPTOR, schema)

        def one(value: bytes) -> Any:
            return read(message.FromString(_without_schema_id(value, path) if self.has_schema_id else value))

        return one_by_one(values, schema, one, self.on_error, "Protobuf")


@functools.lru_cache(maxsize=_KEPT_CLASSES)
def _message_class(descriptors: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except Exception as error:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"The descriptors have no message {name}: {error}") from error


def _path(descriptor: Any) -> tuple[int, ...]:
    """Which message of its file this is: its place in the file, or those of the messages around it and its own."""
    if descriptor.containing_type is None:
        return (list(descriptor.file.message_types_by_name).index(descriptor.name),)
    around = descriptor.containing_type
    return (*_path(around), list(around.nested_types_by_name).index(descriptor.name))


def _without_schema_id(value: bytes, path: tuple[int, ...]) -> bytes:
    """The message behind the id. Raises ValueError if there is none, or it is of another type."""
    if len(value) <= _SCHEMA_ID_BYTES or value[0]:
        raise ValueError(f"begins with {value[: _SCHEMA_ID_BYTES + 1]!r}, which is no schema id")
    count, position = _signed_varint(value, _SCHEMA_ID_BYTES)
    if count < 0:
        raise ValueError(f"has a message index of {count} numbers")
    found = []
    for _ in range(count):
        index, position = _signed_varint(value, position)
        found.append(index)
    if (tuple(found) or (0,)) != path:
        raise ValueError(f"is the message with index {found or [0]} in its schema, not {list(path)}")
    return value[position:]


def _signed_varint(data: bytes, position: int) -> tuple[int, int]:
    """A number in zigzag encoding, and where it ends. Raises ValueError where the data ends before."""
    shift = number = 0
    while position < len(data) and shift < 35:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), position
    raise ValueError("ends within the message index after its schema id")


def _message_reader(descriptor: Any, fields: Any) -> Reader:
    """`fields` are Arrow's, of a schema or a struct."""
    readers = {
        field.name: _field_reader(descriptor.fields_by_name[field.name], field.type)
        for field in fields
        if field.name in descriptor.fields_by_name
    }
    return lambda message: {name: read(message) for name, read in readers.items()}


def _field_reader(field: Any, wanted: pa.DataType) -> Reader:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _require(pa.types.is_map(wanted), field, wanted)
        entry = field.message_type.fields_by_name
        key, value = _value_reader(entry["key"], wanted.key_type), _value_reader(entry["value"], wanted.item_type)
        return lambda message: [(key(k), value(v)) for k, v in getattr(message, name).items()]
    if field.is_repeated:
        _require(pa.types.is_list(wanted), field, wanted)
        element = _value_reader(field, wanted.value_type)
        return lambda message: [element(each) for each in getattr(message, name)]
    read = _value_reader(field, wanted)
    if field.has_presence:
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None
    return lambda message: read(getattr(message, name))


def _require(is_right: bool, field: Any, wanted: pa.DataType) -> None:
    if not is_right:
        message = f"Field {field.full_name} is a map, an array or a message, and can't be a column of {wanted}"
        raise RaykaError(ErrorCode.INVALID_REQUEST, message)


def _value_reader(field: Any, wanted: pa.DataType) -> Reader:
    if field.message_type is not None and field.message_type.full_name == _TIMESTAMP:
        return lambda value: value.ToDatetime(datetime.UTC)
    if field.message_type is not None:
        _require(pa.types.is_struct(wanted), field, wanted)
        return _message_reader(field.message_type, wanted)
    if field.enum_type is not None and pa.types.is_string(wanted):
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    return lambda value: value
