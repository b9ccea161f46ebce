"""The batch header: what validation lets through, what it stops, and what stamping leaves alone."""

from __future__ import annotations

import os
import random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import (
    ATTRIBUTES_OFFSET,
    HEADER,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    ensure_intact,
    is_intact,
    iter_headers,
    read_header,
    seal,
    stamp,
    stamp_log_append_time,
    stamp_producer,
    stamp_transactional,
    validate,
)
from rayka.storage.format.compression import Codec
from rayka.storage.format.crc_update import updated_crc
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.types import TimestampType
from tests.support.logs import valid_prefix

RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value", (("h", b"x"),)),
    Record(0, 1_700_000_000_007, None, b"second"),
]
NOT_COVERED_BY_CRC = range(LOG_OVERHEAD + 4)


def batch(**fields: object) -> bytearray:
    """A batch of two records with header fields replaced, and a CRC that is right for them."""
    built = build_batch(RECORDS)
    HEADER.pack_into(built, 0, *read_header(built)._replace(**fields))
    seal(built, 0, len(built))
    return built


def error_of(built: bytes | bytearray) -> ErrorCode:
    with pytest.raises(RaykaError) as raised:
        validate(built, 0, read_header(built))
    return raised.value.code


def test_reads_every_field_of_the_header() -> None:
    fields = (7, 49, 3, 2, 0xDEADBEEF, 0x7C, 4, 1000, 2000, 99, 5, 17, 5)
    header = read_header(HEADER.pack(*fields))
    assert tuple(header) == fields
    assert header.size_in_bytes == RECORD_BATCH_OVERHEAD
    assert (header.last_offset, header.next_offset, header.last_sequence) == (11, 12, 21)
    assert header.codec is Codec.ZSTD
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional
    assert header.is_control
    assert header.has_delete_horizon
    assert header.has_producer_id


def test_sequences_wrap_to_zero_after_the_largest_int() -> None:
    header = read_header(batch(base_sequence=2**31 - 2, last_offset_delta=3, record_count=4))
    assert header.last_sequence == 1
    assert read_header(batch(base_sequence=-1)).last_sequence == -1


@pytest.mark.parametrize("codec", list(Codec))
def test_a_producers_batch_is_valid(codec: Codec) -> None:
    built = build_batch(RECORDS, codec=codec, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    validate(built, 0, read_header(built))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"magic": 0}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 1}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
        ({"magic": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 3}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 2}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 1, "producer_epoch": 0}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_refuses_what_a_producer_may_not_send(fields: dict[str, int], code: ErrorCode) -> None:
    assert error_of(batch(**fields)) is code


def test_batches_of_a_log_may_have_gaps_and_markers() -> None:
    for fields in ({"last_offset_delta": 9}, {"attributes": 0x30}, {"record_count": 0, "last_offset_delta": 5}):
        built = batch(**fields)
        ensure_intact(built, 0, read_header(built))
        assert is_intact(built, 0, read_header(built))


@pytest.mark.parametrize("batch_length", [-(2**31), -1, 0, 48, 50, 1000, 2**31 - 1])
def test_a_length_that_is_not_the_batchs_is_detected(batch_length: int) -> None:
    built = build_batch(RECORDS)
    HEADER.pack_into(built, 0, *read_header(built)._replace(batch_length=batch_length))
    assert error_of(built) is ErrorCode.CORRUPT_MESSAGE
    assert valid_prefix(built) == 0


@pytest.mark.parametrize("codec", list(Codec))
def test_every_flipped_bit_is_detected(codec: Codec) -> None:
    built = build_batch(RECORDS, codec=codec)
    for place in range(len(built)):
        if place in NOT_COVERED_BY_CRC and not 8 <= place < LOG_OVERHEAD:
            continue  # base offset and leader epoch: the leader sets them
        for bit in range(8):
            flipped = bytearray(built)
            flipped[place] ^= 1 << bit
            error_of(flipped)
            assert valid_prefix(flipped) == 0


def test_a_batch_cut_at_any_byte_is_an_error_and_no_prefix() -> None:
    built = bytes(build_batch(RECORDS))
    header = read_header(built)
    for size in range(len(built)):
        cut = built[:size]
        with pytest.raises(RaykaError):
            validate(cut, 0, read_header(cut))
        with pytest.raises(RaykaError):
            validate(cut, 0, header)
        assert valid_prefix(cut) == 0
        assert list(iter_headers(cut)) == []


def test_the_valid_prefix_ends_with_the_last_whole_batch() -> None:
    first, second = bytes(build_batch(RECORDS)), bytes(build_batch(RECORDS[:1], base_offset=2, codec=Codec.LZ4))
    log = first + second
    for size in range(len(log) + 1):
        whole = (size >= len(first)) + (size == len(log))
        assert valid_prefix(log[:size]) == [0, len(first), len(log)][whole]
    assert [header.base_offset for _, header in iter_headers(log)] == [0, 2]
    assert [position for position, _ in iter_headers(log, len(first))] == [len(first)]


def test_zeros_after_the_last_batch_are_no_batch() -> None:
    first = bytes(build_batch(RECORDS))
    assert valid_prefix(first + bytes(4096)) == len(first)


def test_reading_on_into_nonsense_is_an_error() -> None:
    first = bytes(build_batch(RECORDS))
    with pytest.raises(RaykaError) as raised:
        list(iter_headers(first + bytes(4096)))
    assert raised.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_stamping_changes_offset_and_epoch_and_nothing_else() -> None:
    built = bytearray(b"before") + build_batch(RECORDS)
    untouched = bytes(built[6 + LOG_OVERHEAD + 4 :])
    stamp(built, 6, 2**40, 12)
    header = read_header(built, 6)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 12)
    assert built[6 + LOG_OVERHEAD + 4 :] == untouched
    validate(built, 6, header)
    assert [record.offset for record in read_records(built[6:])] == [2**40, 2**40 + 1]


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_is_every_records_timestamp(codec: Codec) -> None:
    built = build_batch(RECORDS, codec=codec)
    stamp_log_append_time(memoryview(built), 0, 1_800_000_000_000)
    header = read_header(built)
    validate(built, 0, header)
    assert header.codec is codec
    assert header.max_timestamp == 1_800_000_000_000
    assert [(record.timestamp, record.timestamp_type) for record in read_records(built)] == [
        (1_800_000_000_000, TimestampType.LOG_APPEND_TIME)
    ] * 2


def test_a_batch_can_go_to_another_producer_epoch() -> None:
    built = build_batch(RECORDS, producer_id=1, producer_epoch=2, base_sequence=3)
    stamp_producer(built, 0, 4, 5, 6)
    header = read_header(built)
    validate(built, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 5, 6)


@pytest.mark.parametrize("size", [100, 130_989, 131_072, 1_000_003])
def test_a_changed_header_gets_the_right_crc(size: int) -> None:
    built = bytearray(b"before") + build_batch([Record(0, 0, b"key", os.urandom(size))]) + b"behind"
    view = memoryview(built)[6:-6]
    for change in (
        lambda: stamp_producer(built, 6, 2**40, 5, 6),
        lambda: stamp_producer(built, 6, 7, 8, 2**31 - 1),
        lambda: stamp_transactional(view),
        lambda: stamp_log_append_time(built, 6, 1_800_000_000_000),
    ):
        change()
        validate(built, 6, read_header(built, 6))


def test_a_changed_header_does_not_hide_damaged_records() -> None:
    built = build_batch([Record(0, 0, b"key", bytes(1_000_000))])
    built[500_000] ^= 1
    stamp_producer(built, 0, 4, 5, 6)
    assert not is_intact(built, 0, read_header(built))


@given(st.binary(max_size=60), st.binary(max_size=60), st.integers(0, 70_000))
def test_a_crc_is_updated_as_if_all_bytes_were_read(before: bytes, after: bytes, following: int) -> None:
    after = after[: len(before)].ljust(len(before))
    rest = random.Random(following).randbytes(following)
    updated = updated_crc(crc32c(before + rest), crc32c(before), crc32c(after), following)
    assert updated == crc32c(after + rest)


def test_attributes_lie_where_the_crc_begins() -> None:
    built = build_batch(RECORDS, codec=Codec.LZ4)
    assert built[ATTRIBUTES_OFFSET + 1] == Codec.LZ4
