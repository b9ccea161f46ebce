"""Message sets of magic 0 and 1: round trips by another implementation, and damage raises nothing but RaykaError."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.errors import RaykaError
from rayka.storage.format.batch import iter_headers, validate
from rayka.storage.format.compression import Codec
from rayka.storage.format.legacy.down_conversion import convert_down
from rayka.storage.format.legacy.up_conversion import convert_up
from rayka.storage.format.records import Record, build_batch, read_records
from tests.property.record_strategies import FIELDS, TIMESTAMPS, record_lists
from tests.support.message_sets import Message, compressed_set, message_set, read_message_set
from tests.support.scale import examples

MAGICS = st.integers(0, 1)
OLD_CODECS = st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])


@st.composite
def message_lists(draw: st.DrawFn) -> list[Message]:
    """Messages of a producer, with offsets from 0 on."""
    fields = draw(st.lists(st.tuples(TIMESTAMPS, FIELDS, FIELDS), min_size=1, max_size=12))
    return [Message(offset, *rest) for offset, rest in enumerate(fields)]


def encoded(messages: list[Message], magic: int, codec: Codec) -> bytes:
    return message_set(messages, magic) if codec is Codec.NONE else compressed_set(messages, magic, codec)


def without_times(messages: list[Message], magic: int) -> list[Message]:
    return messages if magic else [one._replace(timestamp=-1) for one in messages]


@settings(max_examples=examples(100), deadline=None)
@given(message_lists(), MAGICS, OLD_CODECS)
def test_message_sets_become_batches(messages: list[Message], magic: int, codec: Codec) -> None:
    batches = convert_up(encoded(messages, magic, codec))
    for position, header in iter_headers(batches):
        validate(batches, position, header)
        assert header.codec is codec
    assert [Message(*record[:4]) for record in read_records(batches)] == without_times(messages, magic)


@settings(max_examples=examples(100), deadline=None)
@given(record_lists(min_size=1), MAGICS, OLD_CODECS, st.integers(0, 2**40), st.integers(0, 12), st.integers(0, 40_000))
def test_batches_become_message_sets(
    records: list[Record], magic: int, codec: Codec, base_offset: int, skipped: int, max_bytes: int
) -> None:
    batch = bytes(build_batch(records, base_offset=base_offset, codec=codec))
    fetch_offset = base_offset + skipped
    found = convert_down(batch, magic, fetch_offset, max_bytes, is_hard_limit=True)
    assert len(found.messages) <= max_bytes
    wanted = [Message(base_offset + one.offset, *one[1:4]) for one in records if one.offset >= skipped]
    messages = read_message_set(found.messages)
    assert messages == without_times(wanted, magic)[: len(messages)]
    whole = convert_down(batch, magic, fetch_offset, max_bytes, is_hard_limit=False)
    assert len(read_message_set(whole.messages)) >= min(1, len(wanted))


@settings(max_examples=examples(150), deadline=None)
@given(message_lists(), MAGICS, OLD_CODECS, st.data())
def test_damaged_message_sets_are_refused_or_read(
    messages: list[Message], magic: int, codec: Codec, data: st.DataObject
) -> None:
    damaged = bytearray(encoded(messages, magic, codec))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) or len(damaged) :]
    with contextlib.suppress(RaykaError):
        convert_up(damaged, 1 << 20)


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=300), MAGICS)
def test_garbage_is_refused(garbage: bytes, magic: int) -> None:
    with contextlib.suppress(RaykaError):
        convert_up(garbage[:16] + bytes([magic]) + garbage[17:], 1 << 20)
    with contextlib.suppress(RaykaError):
        convert_down(garbage[:16] + b"\2" + garbage[17:], magic, 0, 1 << 20, is_hard_limit=True)
