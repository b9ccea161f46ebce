"""The bytes of metadata records.

A record travels as the msgpack array `[version, kind, {field: value}]`; the fields of a value that it carries stand
among its own. A reader leaves out fields that it does not know and takes the default for fields that are missing; a
version above the one it knows means that the record can't be understood without the new field, and is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, get_type_hints

import msgpack

from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.records import KINDS, MetadataRecord, PartitionChangeRecord
from rayka.metadata.values import NAME, RECORDED, PartitionImage

FORMAT_VERSION = 1
_UUID_EXTENSION = 1


def recorded_fields(value_type: type) -> list[tuple[str, str]]:
    """The attributes of a value or a record that its bytes hold, each with its name there."""
    return [(each.name, _name(each)) for each in fields(value_type) if each.metadata.get(RECORDED, True)]


def _name(each: Field[Any]) -> str:
    return str(each.metadata.get(NAME, each.name))


def _values(record_type: type) -> dict[str, type]:
    """The attributes of a record that are values with fields of their own."""
    hints = get_type_hints(record_type)
    return {each.name: hints[each.name] for each in fields(record_type) if is_dataclass(hints[each.name])}


_KIND_OF = {record_type: kind for kind, record_type in KINDS.items()}
_FIELDS = {record_type: recorded_fields(record_type) for record_type in _KIND_OF}
_VALUES = {record_type: _values(record_type) for record_type in _KIND_OF}
_VALUE_FIELDS = {value: recorded_fields(value) for values in _VALUES.values() for value in values.values()}
_CHANGES = "changes"
_CHANGED_FIELDS = [attribute for attribute, _ in recorded_fields(PartitionImage) if attribute != "partition"]


def encode(record: MetadataRecord) -> bytes:
    """The bytes of one record."""
    return _pack(_as_array(record))


def decode(data: bytes | memoryview) -> MetadataRecord:
    """The record that `encode` wrote. Raises CORRUPT_MESSAGE or UNSUPPORTED_VERSION."""
    return _from_array(_unpack(data))


def encode_all(records: Iterable[MetadataRecord]) -> bytes:
    """The bytes of a batch of records, which is applied as a whole."""
    return _pack([_as_array(record) for record in records])


def decode_all(data: bytes | memoryview) -> tuple[MetadataRecord, ...]:
    """The batch that `encode_all` wrote. Raises CORRUPT_MESSAGE or UNSUPPORTED_VERSION."""
    batch = _unpack(data)
    if not isinstance(batch, tuple):
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of metadata records is an array, not {batch!r}")
    return tuple(_from_array(item) for item in batch)


def _as_array(record: MetadataRecord) -> list[object]:
    record_type = type(record)
    result: dict[str, object] = {}
    for attribute, name in _FIELDS[record_type]:
        value = getattr(record, attribute)
        if attribute in _VALUES[record_type]:
            result |= {inner: getattr(value, each) for each, inner in _VALUE_FIELDS[type(value)]}
        elif attribute == _CHANGES:
            result |= value
        else:
            result[name] = value
    return [FORMAT_VERSION, _KIND_OF[record_type], result]


def _from_array(value: object) -> MetadataRecord:
    match value:
        case (int(version), str(), dict()) if version > FORMAT_VERSION:
            raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, f"metadata record of version {version}: {value!r}")
        case (int(), str(kind), dict(fields)) if kind in KINDS:
            return _build(KINDS[kind], fields)
        case (int(), str(kind), dict()):
            raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, f"unknown kind of metadata record: {kind}")
    raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"not a metadata record: {value!r}")


def _build(record_type: type[MetadataRecord], known: Mapping[str, Any]) -> MetadataRecord:
    arguments = {attribute: known[name] for attribute, name in _FIELDS[record_type] if name in known}
    try:
        for attribute, value_type in _VALUES[record_type].items():
            inner = _VALUE_FIELDS[value_type]
            arguments[attribute] = value_type(**{each: known[name] for each, name in inner if name in known})
        if record_type is PartitionChangeRecord:
            arguments[_CHANGES] = {name: known[name] for name in _CHANGED_FIELDS if known.get(name) is not None}
        return record_type(**arguments)
    except TypeError as error:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"metadata record lacks a field: {error}") from error


def _pack(value: object) -> bytes:
    data: bytes = msgpack.packb(value, default=_pack_uuid)
    return data


def _pack_uuid(value: object) -> msgpack.ExtType:
    if isinstance(value, uuid.UUID):
        return msgpack.ExtType(_UUID_EXTENSION, value.bytes)
    raise TypeError(f"{value!r} can't be part of a metadata record")


def _unpack_extension(code: int, data: bytes) -> object:
    return uuid.UUID(bytes=bytes(data)) if code == _UUID_EXTENSION else msgpack.ExtType(code, data)


_UNPACK: Callable[..., object] = msgpack.unpackb


def _unpack(data: bytes | memoryview) -> object:
    try:
        return _UNPACK(data, use_list=False, ext_hook=_unpack_extension)
    except ValueError as error:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"metadata record can't be read: {error}") from error
