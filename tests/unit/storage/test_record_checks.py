"""Batches on topics whose configs speak of single records: what is rejected, in which words, at what cost."""

from __future__ import annotations

import functools
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, read_header, seal
from rayka.storage.format.compression import Codec
from rayka.storage.format.record_checks import (
    COMPILED,
    MAX_REJECTED,
    CompiledChecks,
    RecordRules,
    RecordValidationError,
    find_rejected,
)
from rayka.storage.format.records import Record, build_batch, record_bytes, seal_batch
from rayka.storage.log import validator
from rayka.storage.log.validator import MAX_CHECKED_RECORDS
from tests.support.logs import NOW_MS, open_log

ANY = RecordRules(True, -(1 << 62), 1 << 62, 1 << 30)


def refused(directory: Path, data: bytearray, **configs: object) -> RaykaError:
    """The error of an append; nothing is in the log."""
    log = open_log(directory, **configs)
    with pytest.raises(RaykaError) as raised:
        log.append_as_leader(data, 0, NOW_MS)
    assert log.log_end_offset == 0
    return raised.value


@pytest.mark.parametrize("codec", list(Codec))
def test_timestamps_out_of_bounds_are_named(tmp_path: Path, codec: Codec) -> None:
    ages = (0, 50, -50, 5, 60)
    data = build_batch([Record(0, NOW_MS - age, b"k", b"v") for age in ages], codec=codec)
    bounds = {"message_timestamp_before_max_ms": 10, "message_timestamp_after_max_ms": 20}
    error = refused(tmp_path, data, **bounds)
    assert isinstance(error, RecordValidationError)
    assert (error.code, error.message) == (
        ErrorCode.INVALID_TIMESTAMP,
        "One or more records have been rejected due to invalid timestamp",
    )
    assert [one.batch_index for one in error.record_errors] == [1, 2, 4]
    assert error.record_errors[0].message == (
        f"Timestamp {NOW_MS - 50} of message with offset 1 is out of range."
        f" The timestamp should be within [{NOW_MS - 10}, {NOW_MS + 20}]"
    )


def test_a_timestamp_too_far_ahead_is_named_where_no_other_rule_holds(tmp_path: Path) -> None:
    data = build_batch([Record(0, NOW_MS + ahead, None, b"v") for ahead in (0, 7_200_000)])
    error = refused(tmp_path, data)
    assert isinstance(error, RecordValidationError)
    assert [one.batch_index for one in error.record_errors] == [1]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_compressed_record_above_the_bound_is_an_invalid_record(tmp_path: Path, codec: Codec, policy: str) -> None:
    """`max.decompressed.message.bytes` is about one record: a batch of many small ones is taken, as by Kafka."""
    configs = {"max_decompressed_message_bytes": 1000, "cleanup_policy": (policy,)}
    large = build_batch([Record(0, NOW_MS, b"k", bytes(10_000))], codec=codec)
    assert refused(tmp_path / "large", large, **configs).code is ErrorCode.INVALID_RECORD
    small = build_batch([Record(0, NOW_MS, b"k", bytes(100))] * 100, codec=codec)
    assert open_log(tmp_path / "small", **configs).append_as_leader(small, 0, NOW_MS).last_offset == 99


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@pytest.mark.parametrize("config", [{"cleanup_policy": ("compact",)}, {"compression_type": "uncompressed"}])
def test_a_batch_may_not_unpack_to_more_than_the_bound(
    tmp_path: Path, codec: Codec, config: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validator, "MAX_BATCH_SIZE", 1 << 20)
    bomb = build_batch([Record(0, NOW_MS, b"k", bytes(1 << 24))], codec=codec)
    assert refused(tmp_path, bomb, **config, max_message_bytes=1 << 21).code is ErrorCode.MESSAGE_TOO_LARGE


def test_checking_keys_builds_no_records(tmp_path: Path) -> None:
    """100,000 records of 7 bytes would take 20 MB as objects."""
    data = build_batch([Record(0, NOW_MS, b"", b"")] * MAX_CHECKED_RECORDS, codec=Codec.ZSTD)
    log = open_log(tmp_path, cleanup_policy=("compact",))
    tracemalloc.start()
    log.append_as_leader(data, 0, NOW_MS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 << 20


def test_the_rejected_records_that_are_named_are_bounded() -> None:
    data = build_batch([Record(0, NOW_MS, None, b"")] * (MAX_REJECTED + 5))
    assert len(find_rejected(record_bytes(data, 0, read_header(data)), read_header(data), ANY)) == MAX_REJECTED


@pytest.fixture
def compiled() -> Iterator[CompiledChecks]:
    """The compiled checks, in use for one test."""
    COMPILED.load()
    yield COMPILED
    COMPILED.accepts, COMPILED.walked_records = None, 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("deltas", [(0, 2), (1, 1), (0, -1), (0, 2**40)])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_compacted_topic_takes_no_record_at_an_offset_of_another(
    tmp_path: Path, request: pytest.FixtureRequest, codec: Codec, deltas: tuple[int, ...], is_compiled: bool
) -> None:
    if is_compiled:
        request.getfixturevalue("compiled")
    records = bytearray(RECORD_BATCH_OVERHEAD)
    for delta in deltas:
        body = b"\0\0" + zigzag(delta) + b"\2k" + b"\2v" + b"\0"
        records += zigzag(len(body)) + body
    data = seal_batch(records, record_count=2, base_timestamp=NOW_MS, max_timestamp=NOW_MS, codec=codec)
    assert refused(tmp_path, data, cleanup_policy=("compact",)).code is ErrorCode.INVALID_RECORD


def zigzag(number: int) -> bytes:
    """`number` as a varint."""
    left, encoded = number << 1 ^ number >> 63, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*encoded, left))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_compiled_checks_reject_the_same_records(codec: Codec, compiled: CompiledChecks, tmp_path: Path) -> None:
    bounds = {"message_timestamp_before_max_ms": 10, "message_timestamp_after_max_ms": 20}
    test_timestamps_out_of_bounds_are_named(tmp_path / "times", codec)
    keyless = build_batch([Record(0, NOW_MS, b"k" if index % 3 else None, b"v") for index in range(9)], codec=codec)
    error = refused(tmp_path / "keys", keyless, cleanup_policy=("compact",), **bounds)
    assert isinstance(error, RecordValidationError)
    assert [one.batch_index for one in error.record_errors] == [0, 3, 6]
    walked = compiled.walked_records
    log = open_log(tmp_path / "good", cleanup_policy=("compact",), **bounds)
    log.append_as_leader(build_batch([Record(0, NOW_MS, b"k", b"v")] * 100, codec=codec), 0, NOW_MS)
    assert compiled.walked_records == walked, "no record of a good batch was looked at in Python"


def test_checks_are_compiled_once_they_have_cost_enough() -> None:
    checks = CompiledChecks()
    assert not checks.is_worth_loading
    checks.walked_records = CompiledChecks.LOAD_AFTER_RECORDS
    assert checks.is_worth_loading
    checks.load()
    assert not checks.is_worth_loading


TINY_RECORD = bytes([12, 0, 0, 0, 1, 1, 0])
"""No key and no value."""


@functools.cache
def gzip_batch(record_count: int, max_timestamp: int, claimed_count: int | None = None) -> bytearray:
    """A gzip batch of tiny records, whose header says `claimed_count` of them."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    chunk = TINY_RECORD * 100_000
    packed = b"".join(packer.compress(chunk) for _ in range(record_count // 100_000)) + packer.flush()
    batch = seal_batch(
        bytearray(RECORD_BATCH_OVERHEAD) + packed,
        record_count=claimed_count or record_count,
        base_timestamp=NOW_MS,
        max_timestamp=max_timestamp,
    )
    batch[22] |= Codec.GZIP
    seal(batch, 0, len(batch))
    return batch


@pytest.mark.parametrize("claimed_count", [None, 10], ids=["many records", "many bytes"])
@pytest.mark.parametrize(
    ("ahead_ms", "configs", "code"),
    [
        (36_000_000, {}, ErrorCode.INVALID_TIMESTAMP),
        (36_000_000, {"cleanup_policy": ("compact",)}, ErrorCode.INVALID_TIMESTAMP),
        (0, {"cleanup_policy": ("compact",)}, ErrorCode.MESSAGE_TOO_LARGE),
        (0, {"message_timestamp_before_max_ms": 1000}, ErrorCode.MESSAGE_TOO_LARGE),
        (0, {"max_decompressed_message_bytes": 1000}, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_a_batch_too_large_to_be_checked_is_refused_at_once(
    tmp_path: Path, ahead_ms: int, configs: dict[str, object], code: ErrorCode, claimed_count: int | None
) -> None:
    """30 million records, which take 300 KB with gzip, would hold up all other clients for ten seconds."""
    data = gzip_batch(30_000_000, NOW_MS + ahead_ms, claimed_count)
    begin_s = time.process_time()
    assert refused(tmp_path, data, **configs).code is code
    assert time.process_time() - begin_s < 1


def test_a_topic_that_allows_large_batches_gets_them_compressed_too(tmp_path: Path) -> None:
    size = validator.MAX_BATCH_SIZE + 1
    data = build_batch([Record(0, NOW_MS, b"k", bytes(size))], codec=Codec.ZSTD)
    log = open_log(tmp_path, cleanup_policy=("compact",), max_message_bytes=size + 1000)
    assert log.append_as_leader(data, 0, NOW_MS).last_offset == 0
