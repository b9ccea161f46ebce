"""Our readers and writers against kio's, for every message of every version that goes through them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import types
import typing
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader as kio_reader
from kio.serial import entity_writer as kio_writer

from rayka.gateway.api import APIS
from rayka.gateway.wire.codec import EPOCH, entity_reader, entity_writer
from rayka.gateway.wire.reader import FrameReader, MalformedFrame
from rayka.gateway.wire.schema import ApiKey, schema

ENTITY_APIS = [api for api in APIS.values() if api.handle is not None or api.key == ApiKey.API_VERSIONS]
CASES = [(api.key, version) for api in ENTITY_APIS for version in range(api.min_version, api.max_version + 1)]

SAMPLES: dict[str, list[Any]] = {
    "int8": [0, -1, 127],
    "int16": [0, -1, 300],
    "int32": [0, -1, 70_000],
    "int64": [0, -1, 2**40],
    "bool": [False, True],
    "error_code": [0, 3, 35],
    "string": ["", "orders", "größe"],
    "bytes": [b"", b"\0\1", b"x" * 300],
    "uuid": [uuid.UUID(int=5), uuid.UUID(int=2**127), uuid.UUID(int=9)],
    "timedelta_i64": [datetime.timedelta(milliseconds=ms) for ms in (0, -1, 10**12)],
    "datetime_i64": [EPOCH + datetime.timedelta(milliseconds=ms) for ms in (0, 1_795_327_589_123)],
    "timedelta_i32": [datetime.timedelta(milliseconds=ms) for ms in (0, 1500, 60_000)],
}


def sample(cls: type, seed: int) -> Any:
    """An entity whose fields hold values that depend on `seed`."""
    return cls(**{field.name: field_sample(field, seed + index) for index, field in enumerate(dataclasses.fields(cls))})


def field_sample(field: dataclasses.Field[Any], seed: int) -> Any:
    inner, nullable = field.type, False
    if typing.get_origin(inner) is types.UnionType:
        nullable = True
        (inner,) = [argument for argument in typing.get_args(inner) if argument is not type(None)]
    if nullable and seed % 4 == 3:
        return None
    if typing.get_origin(inner) is tuple:
        item = typing.get_args(inner)[0]
        return tuple(value_sample(field, item, seed + index) for index in range(seed % 3))
    return value_sample(field, inner, seed)


def value_sample(field: dataclasses.Field[Any], inner: Any, seed: int) -> Any:
    if dataclasses.is_dataclass(inner):
        return sample(typing.cast(type, inner), seed)
    kind = field.metadata["kafka_type"]
    value = SAMPLES[kind][seed % len(SAMPLES[kind])]
    if kind == "error_code":
        from kio.schema.errors import ErrorCode

        return ErrorCode(value)
    return value


@pytest.mark.parametrize(("key", "version"), CASES)
def test_writes_and_reads_what_kio_writes_and_reads(key: ApiKey, version: int) -> None:
    messages = schema(key, version)
    for cls in (messages.request, messages.response):
        for seed in range(12):
            entity = sample(cls, seed)
            expected = io.BytesIO()
            kio_writer(cls)(expected, entity)
            out = bytearray()
            entity_writer(cls)(out, entity)
            assert bytes(out) == expected.getvalue()
            reader = FrameReader(bytearray(out))
            assert entity_reader(cls)(reader) == entity
            assert reader.position == len(out)
            assert kio_reader(cls)(bytes(out), 0) == (entity, len(out))


@pytest.mark.parametrize(("key", "version"), CASES)
def test_every_cut_of_a_request_is_refused(key: ApiKey, version: int) -> None:
    messages = schema(key, version)
    out = bytearray()
    entity_writer(messages.request)(out, sample(messages.request, 5))
    for size in range(len(out)):
        with pytest.raises(MalformedFrame):
            messages.read(FrameReader(out[:size]))


@pytest.mark.parametrize(("key", "version"), CASES)
def test_the_table_knows_which_versions_are_flexible(key: ApiKey, version: int) -> None:
    assert schema(key, version).request.__dict__["__flexible__"] is APIS[key].is_flexible(version)


@given(st.sampled_from(CASES), st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(case: tuple[ApiKey, int], body: bytes) -> None:
    with contextlib.suppress(MalformedFrame):
        schema(*case).read(FrameReader(bytearray(body)))


@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe", b"\x00\x0f\xff\xff"])
def test_absurd_lengths_allocate_nothing(length: bytes) -> None:
    with pytest.raises(MalformedFrame):
        schema(ApiKey.METADATA, 1).read(FrameReader(length + bytes(20)))


def test_absurd_compact_lengths_allocate_nothing() -> None:
    for length in (
        b"\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\x07",
        b"\xff\xff\xff\xff\xff\xff",
        b"\x80\x80\x80\x80\x80\x01",
    ):
        with pytest.raises(MalformedFrame):
            schema(ApiKey.METADATA, 12).read(FrameReader(bytearray(length + bytes(20))))


def test_a_frame_of_empty_strings_does_not_become_millions_of_objects() -> None:
    count = 300_000
    with pytest.raises(MalformedFrame, match="array elements"):
        schema(ApiKey.METADATA, 1).read(FrameReader(count.to_bytes(4, "big") + bytes(2 * count)))


def test_the_longest_duration_is_read() -> None:
    body = b"\0\1g" + bytes(4) + b"\0\0" + b"\x7f" + b"\xff" * 7 + bytes(4)
    request = schema(ApiKey.OFFSET_COMMIT, 2).read(FrameReader(bytearray(body)))
    assert request.retention_time > datetime.timedelta(days=365 * 1_000_000)


def test_unknown_tagged_fields_are_stepped_over() -> None:
    body = bytearray(b"\x01\x00\x00\x01\x63\x02ab")
    request = schema(ApiKey.METADATA, 12).read(FrameReader(body))
    assert request.topics == ()


def test_tagged_field_with_the_wrong_size_is_refused() -> None:
    messages = schema(ApiKey.API_VERSIONS, 4)
    out = bytearray()
    messages.write(out, sample(messages.response, 2))
    body = bytearray(b"\x00\x00\x01" + bytes(4) + b"\x01\x01\x05" + bytes(5))
    with pytest.raises(MalformedFrame):
        entity_reader(messages.response)(FrameReader(body))
