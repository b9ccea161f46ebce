"""Kafka's message encoding, as far as coordinator records and the embedded consumer protocol need it.

A `Schema` is a table of fields with the versions in which they exist, as in Kafka's message definitions. From its
flexible version on (KIP-482) lengths are unsigned varints and optional fields are tagged. Reading ignores tags it does
not know; reading past the end raises `ValueError`.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from rayka.varint import encode_uvarint

_INT8 = struct.Struct(">b")
VERSION = struct.Struct(">h")
"""The type of a key, or the version of a value: it comes first."""
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
ZERO_UUID = uuid.UUID(int=0)

T = TypeVar("T")


class ByteReader:
    """A cursor over bytes."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise ValueError(f"{size} bytes at {self.position} do not fit in {len(self.data)}")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def unpack(self, form: struct.Struct) -> int:
        """The next fixed-width integer."""
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def uvarint(self) -> int:
        """The next unsigned varint (at most 5 bytes)."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError(f"varint at {self.position} is longer than 5 bytes")

    @property
    def remaining(self) -> int:
        """How many bytes are left."""
        return len(self.data) - self.position


class FieldType(Protocol):
    """How one kind of value is read and written."""

    def read(self, reader: ByteReader, version: int, flexible: bool) -> Any: ...

    def write(self, out: bytearray, value: Any, version: int, flexible: bool) -> None: ...


class _Int:
    def __init__(self, form: struct.Struct) -> None:
        self._form = form

    def read(self, reader: ByteReader, version: int, flexible: bool) -> int:
        return reader.unpack(self._form)

    def write(self, out: bytearray, value: int, version: int, flexible: bool) -> None:
        out += self._form.pack(value)


class _Uuid:
    def read(self, reader: ByteReader, version: int, flexible: bool) -> uuid.UUID:
        return uuid.UUID(bytes=reader.take(16))

    def write(self, out: bytearray, value: uuid.UUID, version: int, flexible: bool) -> None:
        out += value.bytes


class _Sized:
    """Bytes after their length: a varint of length + 1 when flexible, else a fixed integer with -1 for null."""

    def __init__(self, length: struct.Struct, text: bool) -> None:
        self._length = length
        self._text = text

    def read(self, reader: ByteReader, version: int, flexible: bool) -> str | bytes | None:
        size = reader.uvarint() - 1 if flexible else reader.unpack(self._length)
        if size < 0:
            return None
        data = reader.take(size)
        return data.decode() if self._text else data

    def write(self, out: bytearray, value: str | bytes | None, version: int, flexible: bool) -> None:
        data = value.encode() if isinstance(value, str) else value
        size = -1 if data is None else len(data)
        if flexible:
            out += encode_uvarint(size + 1)
        else:
            out += self._length.pack(size)
        if data is not None:
            out += data


class Array:
    """A list of one type of value; null reads as None."""

    def __init__(self, element: FieldType) -> None:
        self._element = element

    def read(self, reader: ByteReader, version: int, flexible: bool) -> tuple[Any, ...] | None:
        size = reader.uvarint() - 1 if flexible else reader.unpack(_INT32)
        if size < 0:
            return None
        if size > reader.remaining:
            raise ValueError(f"an array of {size} does not fit in {reader.remaining} bytes")
        return tuple(self._element.read(reader, version, flexible) for _ in range(size))

    def write(self, out: bytearray, value: Sequence[Any] | None, version: int, flexible: bool) -> None:
        size = -1 if value is None else len(value)
        if flexible:
            out += encode_uvarint(size + 1)
        else:
            out += _INT32.pack(size)
        for element in value or ():
            self._element.write(out, element, version, flexible)


class Nullable:
    """A tagged struct that may be null: a varint, 0 for null and 1 otherwise, goes before it."""

    def __init__(self, schema: Schema[Any]) -> None:
        self._schema = schema

    def read(self, reader: ByteReader, version: int, flexible: bool) -> Any:
        return None if reader.uvarint() == 0 else self._schema.read(reader, version, flexible)

    def write(self, out: bytearray, value: Any, version: int, flexible: bool) -> None:
        out += encode_uvarint(0 if value is None else 1)
        if value is not None:
            self._schema.write(out, value, version, flexible)


INT8: FieldType = _Int(_INT8)
INT16: FieldType = _Int(VERSION)
INT32: FieldType = _Int(_INT32)
INT64: FieldType = _Int(_INT64)
UUID: FieldType = _Uuid()
STRING: FieldType = _Sized(VERSION, text=True)
BYTES: FieldType = _Sized(_INT32, text=False)


class Field(NamedTuple):
    """One field: in versions `since` to `until`; with a `tag` it is written only where it is not its default."""

    name: str
    type: FieldType
    since: int = 0
    until: int = 99
    tag: int | None = None
    default: Any = None


_Fields: TypeAlias = tuple[list[tuple[str, Callable[[bytearray, Any, int, bool], None]]], list[Field]]
"""What one version writes: the names and writers of its plain fields, and its tagged fields in order."""


class Schema(Generic[T]):
    """Reads and writes one value class, whose constructor takes the fields by name."""

    def __init__(self, value: type[T], *fields: Field) -> None:
        self._value = value
        self._plain = tuple(field for field in fields if field.tag is None)
        tagged = [(field.tag, field) for field in fields if field.tag is not None]
        self._tagged = dict(sorted(tagged, key=itemgetter(0)))
        self._by_version: dict[int, _Fields] = {}

    def read(self, reader: ByteReader, version: int, flexible: bool) -> T:
        """The value at the cursor. Fields that `version` lacks keep the defaults of the class."""
        values = {
            field.name: field.type.read(reader, version, flexible)
            for field in self._plain
            if field.since <= version <= field.until
        }
        if flexible:
            self._read_tagged(reader, version, values)
        return self._value(**values)

    def _read_tagged(self, reader: ByteReader, version: int, values: dict[str, Any]) -> None:
        for _ in range(reader.uvarint()):
            tag, size = reader.uvarint(), reader.uvarint()
            content = ByteReader(reader.take(size))
            field = self._tagged.get(tag)
            if field is not None and field.since <= version <= field.until:
                values[field.name] = field.type.read(content, version, True)

    def write(self, out: bytearray, value: T, version: int, flexible: bool) -> None:
        """Append `value` to `out`."""
        plain, tagged = self._fields_of(version)
        for name, write in plain:
            write(out, getattr(value, name), version, flexible)
        if flexible:
            present = [field for field in tagged if getattr(value, field.name) != field.default]
            out += encode_uvarint(len(present))
            for field in present:
                _write_tagged(out, field, value, version)

    def _fields_of(self, version: int) -> _Fields:
        found = self._by_version.get(version)
        if found is None:
            plain, tagged = self._plain, self._tagged.values()
            found = self._by_version[version] = (
                [(field.name, field.type.write) for field in plain if field.since <= version <= field.until],
                [field for field in tagged if field.since <= version <= field.until],
            )
        return found


def _write_tagged(out: bytearray, field: Field, value: Any, version: int) -> None:
    assert field.tag is not None
    content = bytearray()
    field.type.write(content, getattr(value, field.name), version, True)
    out += encode_uvarint(field.tag)
    out += encode_uvarint(len(content))
    out += content
