"""Round trips of the record formats, and that damaged bytes raise nothing but RaykaError."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.batches import build_batches
from rayka.errors import RaykaError
from rayka.storage.format.batch import (
    HEADER,
    RECORD_BATCH_OVERHEAD,
    ensure_intact,
    iter_headers,
    read_header,
    seal,
    validate,
)
from rayka.storage.format.builder import recompress
from rayka.storage.format.compiled_checks import accepts
from rayka.storage.format.compression import Codec, compress, decompress
from rayka.storage.format.isolation import iter_visible
from rayka.storage.format.record_checks import RecordRules, find_rejected
from rayka.storage.format.records import Record, build_batch, read_records, read_values, record_bytes, seal_batch
from rayka.storage.format.varint import continue_unsigned, encode_varint
from rayka.types import AbortedTransaction
from tests.property.record_strategies import CODECS, record_lists
from tests.support.batches import rebuild_batch
from tests.support.logs import valid_prefix
from tests.support.scale import examples

OFFSET_AND_EPOCH = {*range(8), *range(12, 16)}


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(number: int) -> None:
    encoded = encode_varint(number)
    data = b"x" + encoded + b"x"
    zigzag, end = (data[1], 2) if data[1] <= 0x7F else continue_unsigned(data, 2, data[1])
    assert ((zigzag >> 1) ^ -(zigzag & 1), end) == (number, len(encoded) + 1)
    assert len(encoded) == max(1, -(-((number << 1) ^ (number >> 63)).bit_length() // 7))


@given(CODECS, st.binary(max_size=2000) | st.integers(0, 300_000).map(bytes))
def test_compression(codec: Codec, content: bytes) -> None:
    assert decompress(codec, compress(codec, content)) == content


@given(CODECS, st.binary(max_size=300))
def test_garbage_is_content_or_an_error(codec: Codec, garbage: bytes) -> None:
    with contextlib.suppress(RaykaError):
        decompress(codec, garbage, 1 << 20)


@given(st.binary(max_size=60), st.integers(-1, 5), st.booleans())
def test_compiled_checks_accept_only_what_the_others_do(records: bytes, count: int, needs_key: bool) -> None:
    header = read_header(seal_batch(bytearray(61) + records, record_count=count, base_timestamp=5, max_timestamp=5))
    rules = RecordRules(needs_key, 0, 100, 50)
    try:
        is_sound = not find_rejected(records, header, rules)
    except RaykaError:
        is_sound = False
    assert accepts(records, header, rules) == is_sound


@settings(max_examples=examples(500))
@given(CODECS, st.binary(min_size=1, max_size=300), st.data())
def test_damaged_compression_is_content_or_an_error(codec: Codec, content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(compress(codec, content * 3))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) or len(damaged) :]
    with contextlib.suppress(RaykaError):
        decompress(codec, damaged, 1 << 20)


@given(record_lists(), CODECS, st.integers(0, 2**60))
def test_records(records: list[Record], codec: Codec, base_offset: int) -> None:
    built = build_batch(records, codec=codec, base_offset=base_offset)
    expected = [record._replace(offset=base_offset + record.offset) for record in records]
    assert valid_prefix(built) == len(built)
    assert list(read_records(built)) == expected
    header = read_header(built)
    assert read_values(built, 0, header) == [record.value for record in records]
    timestamps = sorted(record.timestamp for record in records) or [0]
    rules = RecordRules(True, timestamps[len(timestamps) // 4], timestamps[len(timestamps) * 3 // 4], 1 << 30)
    rejected = find_rejected(record_bytes(built, 0, header), header, rules)
    assert [(one.batch_index, one.timestamp, one.has_no_key) for one in rejected] == [
        (index, record.timestamp, record.key is None)
        for index, record in enumerate(records)
        if record.key is None
        or not (rules.min_timestamp <= record.timestamp <= rules.max_timestamp or record.timestamp == -1)
    ]
    assert accepts(record_bytes(built, 0, header), header, rules) == (not rejected)
    assert rebuild_batch(header, expected) == built
    if records:
        validate(built, 0, header)


@given(record_lists(min_size=1), st.integers(100, 20_000), CODECS)
def test_split_batches_hold_the_same_records(records: list[Record], max_batch_size: int, codec: Codec) -> None:
    batches = list(build_batches(records, max_batch_size=max_batch_size, codec=codec))
    assert list(read_records(b"".join(batches))) == records
    if codec is Codec.NONE:
        assert all(len(b) <= max_batch_size or read_header(b).record_count == 1 for b in batches)


@given(record_lists(), CODECS, CODECS)
def test_recompression(records: list[Record], source: Codec, target: Codec) -> None:
    built = build_batch(records, codec=source)
    assert list(read_records(recompress(built, 0, read_header(built), target))) == records


@settings(max_examples=examples(150))
@given(record_lists(min_size=1), CODECS, st.data())
def test_any_changed_byte_is_noticed(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    built = build_batch(records, codec=codec)
    place = data.draw(st.integers(0, len(built) - 1))
    built[place] ^= data.draw(st.integers(1, 255))
    if place in OFFSET_AND_EPOCH:
        validate(built, 0, read_header(built))
    else:
        assert valid_prefix(built) == 0


@settings(max_examples=examples(250))
@given(record_lists(), CODECS, st.data())
def test_damage_behind_a_right_crc(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    """What a hostile client sends: a batch that is intact, with nonsense inside."""
    built = build_batch(records, codec=codec)
    for _ in range(data.draw(st.integers(1, 4))):
        built[data.draw(st.integers(16, len(built) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del built[data.draw(st.integers(RECORD_BATCH_OVERHEAD, len(built))) :]
        HEADER.pack_into(built, 0, *read_header(built)._replace(batch_length=len(built) - 12))
    seal(built, 0, len(built))
    read_everything(bytes(built))


@given(st.binary(max_size=400) | record_lists(max_size=3).map(lambda records: bytes(build_batch(records))), st.data())
def test_bytes_cut_anywhere_raise_nothing_else(log: bytes, data: st.DataObject) -> None:
    read_everything(log[: data.draw(st.integers(0, len(log)))])


def read_everything(log: bytes) -> None:
    for read in (
        lambda: ensure_intact(log, 0, read_header(log)),
        lambda: validate(log, 0, read_header(log)),
        lambda: list(read_records(log, include_control=True)),
        lambda: read_values(log, 0, read_header(log)),
        lambda: list(iter_headers(log)),
        lambda: list(iter_visible(log, iter_headers(log), [AbortedTransaction(-1, 0)])),
        lambda: find_rejected(
            record_bytes(log, 0, read_header(log)), read_header(log), RecordRules(True, 0, 1 << 62, 1 << 20)
        ),
        lambda: recompress(log, 0, read_header(log), Codec.NONE),
    ):
        with contextlib.suppress(RaykaError):
            read()
    assert valid_prefix(log) <= len(log)
