"""Readers and writers of whole messages, made from the dataclasses that describe them.

The dataclasses are kio's, generated from Kafka's own definitions, or ours in `versions/`, in the same form.
kio's own decoder is not used on bytes from a client: it reserves memory for whatever length an array
claims to have, so a frame of ten bytes could end the process. Fields of fixed size that follow one another
are read and written with one `struct` call.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import struct
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from rayka.gateway.wire.reader import INT32, MAX_STRING_BYTES, FrameReader, MalformedFrame
from rayka.varint import encode_uvarint

ReadField = Callable[[FrameReader], Any]
WriteField = Callable[[bytearray, Any], None]

_FIXED = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "uint32": "I", "bool": "?"}
_FIXED |= {"float64": "d", "error_code": "h"}
_DURATIONS = {"timedelta_i32": ">i", "timedelta_i64": ">q"}
MILLISECOND = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
"""Times are milliseconds since then."""
_INT64 = struct.Struct(">q")
# A datetime ends with the year 9999, and begins about as long before the epoch as 1,900 years.
_LAST_TIME_MS = 1_900 * 365 * 86_400_000
# A timedelta holds less than an int64 of milliseconds. More than a million years stand for all that is longer.
_LONGEST_MS = datetime.timedelta.max // MILLISECOND // 2
_NULL_ID = bytes(16)
_MESSAGE = "error_message"


class _Shape(typing.NamedTuple):
    """What a field holds: a kafka type or an entity, in an array or not, nullable or not."""

    name: str
    kafka_type: str
    entity: type | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any

    @property
    def struct_code(self) -> str | None:
        """The struct format of a field that always takes the same bytes and needs no conversion."""
        return None if self.is_array or self.tag is not None else _FIXED.get(self.kafka_type)

    @property
    def is_single_string(self) -> bool:
        """Whether it is one string, which may be null."""
        return self.kafka_type == "string" and not self.is_array


def _shapes(cls: type) -> Iterator[_Shape]:
    for field in dataclasses.fields(cls):
        inner, nullable = _without_none(field.type)
        is_array = typing.get_origin(inner) is tuple
        if is_array:
            inner = typing.get_args(inner)[0]
        yield _Shape(
            field.name,
            field.metadata.get("kafka_type", ""),
            inner if dataclasses.is_dataclass(inner) and isinstance(inner, type) else None,
            is_array,
            nullable,
            field.metadata.get("tag"),
            field.default,
        )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation, False
    (inner,) = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    return inner, True


@functools.cache
def entity_reader(cls: type) -> ReadField:
    """A function that reads an entity of this class. It raises MalformedFrame."""
    flexible = bool(cls.__dict__["__flexible__"])
    shapes = list(_shapes(cls))
    names: dict[str, Any] = {"cls": cls, "null": _refuse_null}
    lines = []
    for index, run in enumerate(_runs(shapes)):
        fields = ", ".join(shape.name for shape in run)
        if run[0].struct_code:
            layout = _layout(run)
            names[f"unpack_{index}"] = layout.unpack_from
            lines.append(f"{fields}, = unpack_{index}(reader.buffer, reader.take({layout.size}))")
        elif run[0].is_single_string:
            lines.append(f"{fields} = reader.string({flexible})")
            lines += [] if run[0].nullable else [f"if {fields} is None: null(reader)"]
        else:
            names[f"read_{index}"] = _field_reader(run[0], flexible)
            lines.append(f"{fields} = read_{index}(reader)")
    arguments = [f"{shape.name}={shape.name}" for shape in shapes if shape.tag is None]
    tagged = {shape.tag: (shape.name, _field_reader(shape, True)) for shape in shapes if shape.tag is not None}
    if tagged:
        names |= {"defaults": {shape.name: _default(shape) for shape in shapes if shape.tag is not None}}
        names |= {"tagged": tagged, "read_tags": _read_tags}
        arguments.append("**read_tags(reader, tagged, defaults)")
    elif flexible:
        lines.append("reader.skip_tags()")
    return _compiled("reader", [*lines, f"return cls({', '.join(arguments)})"], names)


def _compiled(parameters: str, lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    """A function of these lines, as `dataclasses` makes them: walking a table would take longer than the reading."""
    exec("\n    ".join([f"def function({parameters}):", *lines]), names)
    function: Callable[..., Any] = names["function"]
    return function


def _refuse_null(reader: FrameReader) -> None:
    raise MalformedFrame(f"null string before {reader.position}")


def _runs(shapes: list[_Shape]) -> Iterator[list[_Shape]]:
    """Group neighbours of fixed size; every other untagged field stands alone."""
    run: list[_Shape] = []
    for shape in shapes:
        if shape.tag is not None:
            continue
        if shape.struct_code is None:
            if run:
                yield run
            yield [shape]
            run = []
        else:
            run.append(shape)
    if run:
        yield run


def _layout(run: list[_Shape]) -> struct.Struct:
    """Fields of fixed size, which one call reads or writes."""
    return struct.Struct(">" + "".join(shape.struct_code or "" for shape in run))


def _read_tags(
    reader: FrameReader, tagged: dict[int, tuple[str, ReadField]], defaults: dict[str, Any]
) -> dict[str, Any]:
    """The values of the tagged fields, `defaults` where the tag is absent."""
    values = defaults
    for _ in range(reader.tag_count()):
        known = tagged.get(reader.uvarint())
        size = reader.uvarint()
        end = reader.take(size) + size
        if known is not None:
            reader.position = end - size
            values = {**values, known[0]: known[1](reader)}
            if reader.position != end:
                raise MalformedFrame(f"tagged field {known[0]} has {size} bytes")
    return values


def _field_reader(shape: _Shape, flexible: bool) -> ReadField:
    if not shape.is_array:
        return _value_reader(shape, flexible, shape.nullable)
    read_item, nullable = _value_reader(shape, flexible, False), shape.nullable

    def read_array(reader: FrameReader) -> tuple[Any, ...] | None:
        size = reader.array_size(flexible)
        if size < 0 and not nullable:
            raise MalformedFrame(f"null array before {reader.position}")
        return None if size < 0 else tuple([read_item(reader) for _ in range(size)])

    return read_array


def _value_reader(shape: _Shape, flexible: bool, nullable: bool) -> ReadField:
    if shape.entity is not None:
        read_entity = entity_reader(shape.entity)
        return (lambda reader: None if reader.int8() < 0 else read_entity(reader)) if nullable else read_entity
    kind = shape.kafka_type
    if kind == "string":
        return _string_reader(flexible, nullable)
    if kind in ("bytes", "records"):
        return _blob_reader(flexible, nullable, FrameReader.blob if kind == "bytes" else _read_records)
    if kind == "uuid":
        return FrameReader.topic_id
    if kind == "datetime_i64":
        return _read_time
    layout = struct.Struct(_DURATIONS.get(kind) or ">" + _FIXED[kind])
    if kind in _DURATIONS:
        return _duration_reader(layout)
    return lambda reader: layout.unpack_from(reader.buffer, reader.take(layout.size))[0]


def _string_reader(flexible: bool, nullable: bool) -> ReadField:
    if nullable:
        return lambda reader: reader.string(flexible)
    return lambda reader: reader.required_string(flexible)


def _duration_reader(layout: struct.Struct) -> ReadField:
    def read_duration(reader: FrameReader) -> datetime.timedelta:
        ms: int = layout.unpack_from(reader.buffer, reader.take(layout.size))[0]
        return MILLISECOND * max(-_LONGEST_MS, min(ms, _LONGEST_MS))

    return read_duration


def _read_time(reader: FrameReader) -> datetime.datetime:
    ms: int = _INT64.unpack_from(reader.buffer, reader.take(_INT64.size))[0]
    return EPOCH + MILLISECOND * max(-_LAST_TIME_MS, min(ms, _LAST_TIME_MS))


def _read_records(reader: FrameReader, flexible: bool) -> Any:
    return reader.records(flexible)


def _blob_reader(flexible: bool, nullable: bool, read: Callable[[FrameReader, bool], Any]) -> ReadField:
    def read_blob(reader: FrameReader) -> Any:
        value = read(reader, flexible)
        if value is None and not nullable:
            raise MalformedFrame(f"null bytes before {reader.position}")
        return value

    return read_blob


@functools.cache
def entity_writer(cls: type) -> WriteField:
    """A function that appends an entity of this class to a bytearray."""
    flexible = bool(cls.__dict__["__flexible__"])
    shapes = list(_shapes(cls))
    names: dict[str, Any] = {"write_tags": _write_tags}
    lines = []
    for index, run in enumerate(_runs(shapes)):
        values = ", ".join(f"entity.{shape.name}" for shape in run)
        if run[0].struct_code:
            names[f"pack_{index}"] = _layout(run).pack
            lines.append(f"out += pack_{index}({values})")
        else:
            names[f"write_{index}"] = _field_writer(run[0], flexible)
            lines.append(f"write_{index}(out, {values})")
    names["tagged"] = sorted(
        (shape.tag, shape.name, _default(shape), _field_writer(shape, True))
        for shape in shapes
        if shape.tag is not None
    )
    if names["tagged"]:
        lines.append("write_tags(out, entity, tagged)")
    elif flexible:
        lines.append("out.append(0)")
    return _compiled("out, entity", lines or ["pass"], names)


def _write_tags(out: bytearray, entity: Any, tagged: list[tuple[int, str, Any, WriteField]]) -> None:
    values = [(tag, write, getattr(entity, name), default) for tag, name, default, write in tagged]
    present = [(tag, write, value) for tag, write, value, default in values if value != default]
    out += encode_uvarint(len(present))
    for tag, write, value in present:
        encoded = bytearray()
        write(encoded, value)
        out += encode_uvarint(tag)
        out += encode_uvarint(len(encoded))
        out += encoded


def _field_writer(shape: _Shape, flexible: bool) -> WriteField:
    write_item = _value_writer(shape, flexible, shape.nullable and not shape.is_array)
    if not shape.is_array:
        return write_item

    def write_array(out: bytearray, items: tuple[Any, ...] | None) -> None:
        size = -1 if items is None else len(items)
        out += encode_uvarint(size + 1) if flexible else INT32.pack(size)
        for item in items or ():
            write_item(out, item)

    return write_array


def _value_writer(shape: _Shape, flexible: bool, nullable: bool) -> WriteField:
    if shape.entity is not None:
        return _nullable_writer(entity_writer(shape.entity)) if nullable else entity_writer(shape.entity)
    kind = shape.kafka_type
    if kind == "string":
        return _blob_writer(struct.Struct(">h"), flexible, _message if shape.name == _MESSAGE else str.encode)
    if kind in ("bytes", "records"):
        return _blob_writer(INT32, flexible, bytes)
    if kind == "uuid":
        return _write_id
    if kind == "datetime_i64":
        return lambda out, value: out.extend(_INT64.pack((value - EPOCH) // MILLISECOND))
    pack = struct.Struct(_DURATIONS.get(kind) or ">" + _FIXED[kind]).pack
    if kind in _DURATIONS:
        return lambda out, value: out.extend(pack(value // MILLISECOND))
    return lambda out, value: out.extend(pack(value))


def _nullable_writer(write: WriteField) -> WriteField:
    """A nullable struct begins with -1 or 1 (KIP-893)."""

    def write_nullable(out: bytearray, entity: Any) -> None:
        out += b"\xff" if entity is None else b"\x01"
        if entity is not None:
            write(out, entity)

    return write_nullable


def _blob_writer(length: struct.Struct, flexible: bool, encode: Callable[[Any], bytes]) -> WriteField:
    def write_blob(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\0" if flexible else length.pack(-1)
            return
        encoded = encode(value)
        out += encode_uvarint(len(encoded) + 1) if flexible else length.pack(len(encoded))
        out += encoded

    return write_blob


def _message(text: str) -> bytes:
    """Text for people, cut to what a client reads: it may repeat the longest names of a request."""
    encoded = text.encode()
    if len(encoded) <= MAX_STRING_BYTES:
        return encoded
    return encoded[:MAX_STRING_BYTES].decode(errors="ignore").encode()


def _write_id(out: bytearray, value: uuid.UUID | None) -> None:
    out += _NULL_ID if value is None else value.bytes


def _default(shape: _Shape) -> Any:
    """What a tagged field holds when its tag is absent."""
    if shape.default is not dataclasses.MISSING:
        return shape.default
    if shape.nullable:
        return None
    if shape.is_array:
        return ()
    return {"string": "", "bytes": b"", "bool": False}.get(shape.kafka_type, 0)
