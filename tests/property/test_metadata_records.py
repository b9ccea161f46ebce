"""Metadata records survive their bytes, from older and newer writers too."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import MISSING, fields, is_dataclass, replace
from types import NoneType
from typing import get_args, get_type_hints

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.codec import FORMAT_VERSION, decode, decode_all, encode, encode_all
from rayka.metadata.records import KINDS, MetadataRecord, PartitionChangeRecord, RegisterBrokerRecord, TopicRecord
from rayka.metadata.values import RECORDED, BrokerImage, PartitionImage, TopicImage

_NUMBERS = st.integers(-(2**63), 2**63 - 1)
_STRATEGIES: dict[object, st.SearchStrategy[object]] = {
    int: _NUMBERS,
    str: st.text(max_size=20),
    bool: st.booleans(),
    uuid.UUID: st.uuids(),
    tuple[int, ...]: st.lists(_NUMBERS, max_size=4).map(tuple),
    tuple[str, ...]: st.lists(st.text(max_size=20), max_size=4).map(tuple),
    tuple[uuid.UUID, ...]: st.lists(st.uuids(), max_size=4).map(tuple),
}


def values_of(hint: object) -> st.SearchStrategy[object]:
    """Values of a field's type; `X | None` too."""
    if hint in _STRATEGIES:
        return _STRATEGIES[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return st.builds(hint, **fields_of(hint))
    return st.none() | st.one_of(_STRATEGIES[part] for part in get_args(hint) if part is not NoneType)


def fields_of(kind: type) -> dict[str, st.SearchStrategy[object]]:
    """Strategies for the fields that a value's bytes hold."""
    hints = get_type_hints(kind)
    return {each.name: values_of(hints[each.name]) for each in fields(kind) if each.metadata.get(RECORDED, True)}


CHANGES = st.fixed_dictionaries(
    {}, optional={name: values for name, values in fields_of(PartitionImage).items() if name != "partition"}
)


def records_of(kind: type[MetadataRecord]) -> st.SearchStrategy[MetadataRecord]:
    if kind is PartitionChangeRecord:
        return st.builds(kind, values_of(uuid.UUID), _NUMBERS, CHANGES)
    return st.builds(kind, **fields_of(kind))


ANY_RECORD: st.SearchStrategy[MetadataRecord] = st.one_of(*map(records_of, KINDS.values()))


def as_array(record: MetadataRecord) -> list[object]:
    array: list[object] = msgpack.unpackb(encode(record), strict_map_key=False)
    return array


@given(ANY_RECORD)
def test_a_record_survives_its_bytes(record: MetadataRecord) -> None:
    assert decode(encode(record)) == record


@given(st.lists(ANY_RECORD, max_size=5))
def test_a_batch_survives_its_bytes(batch: list[MetadataRecord]) -> None:
    assert decode_all(encode_all(batch)) == tuple(batch)


@given(ANY_RECORD, st.text(min_size=1), st.integers(0, 100))
def test_a_field_from_the_future_is_left_out(record: MetadataRecord, name: str, value: int) -> None:
    array = as_array(record)
    values = array[2]
    assert isinstance(values, dict)
    if name not in values:
        values[name] = value
        assert decode(msgpack.packb(array)) == record


@given(records_of(RegisterBrokerRecord))
def test_a_field_that_the_past_did_not_have_gets_its_default(record: MetadataRecord) -> None:
    assert isinstance(record, RegisterBrokerRecord)
    array = as_array(record)
    values = array[2]
    assert isinstance(values, dict)
    for each in fields(BrokerImage):
        if each.default is not MISSING:
            del values[each.name]
    assert decode(msgpack.packb(array)) == RegisterBrokerRecord(replace(record.image, directory_ids=(), log_dirs=()))


@given(st.binary(max_size=60))
def test_nonsense_is_an_error_and_nothing_else(data: bytes) -> None:
    for read in (decode, decode_all):
        with contextlib.suppress(RaykaError):
            read(data)


@given(ANY_RECORD, st.data())
def test_a_record_cut_short_is_an_error(record: MetadataRecord, data: st.DataObject) -> None:
    whole = encode(record)
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RaykaError):
        decode(whole[:size])


@pytest.mark.parametrize(
    "array",
    [[FORMAT_VERSION + 1, "topic", {"name": "t"}], [FORMAT_VERSION, "from-the-future", {}]],
    ids=["version", "kind"],
)
def test_records_of_an_unknown_format_are_refused(array: list[object]) -> None:
    with pytest.raises(RaykaError) as caught:
        decode(msgpack.packb(array))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_record_without_a_needed_field_is_corrupt() -> None:
    with pytest.raises(RaykaError, match="topic_id"):
        decode(msgpack.packb([FORMAT_VERSION, "topic", {"name": "t"}]))


def test_the_bytes_of_today_stay_readable() -> None:
    data = bytes.fromhex("9301a5746f70696383a46e616d65a174a8746f7069635f6964d8010000000000000000000000000000000aab")
    data += b"is_internal\xc2"
    assert decode(data) == TopicRecord(TopicImage("t", uuid.UUID(int=10)))


def test_a_partition_change_as_it_was_written_before_there_were_directories_stays_readable() -> None:
    topic_id = msgpack.ExtType(1, uuid.UUID(int=10).bytes)
    values = {"topic_id": topic_id, "partition": 3, "partition_epoch": 7, "leader": -1, "isr": None, "actors": None}
    expected = PartitionChangeRecord(uuid.UUID(int=10), 3, {"partition_epoch": 7, "leader": -1})
    assert decode(msgpack.packb([FORMAT_VERSION, "partition-change", values])) == expected


def test_every_record_has_a_kind() -> None:
    assert set(KINDS.values()) == set(MetadataRecord.__args__)
