"""Batches on topics whose configs speak of single records: what is rejected, in which words, at what cost."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import read_header
from rayka.storage.format.compression import Codec
from rayka.storage.format.record_checks import MAX_REJECTED, RecordRules, RecordValidationError, find_rejected
from rayka.storage.format.records import Record, build_batch, record_bytes
from rayka.storage.log import validator
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
    """200,000 records of 7 bytes would take 40 MB as objects."""
    data = build_batch([Record(0, NOW_MS, b"", b"")] * 200_000, codec=Codec.ZSTD)
    log = open_log(tmp_path, cleanup_policy=("compact",))
    tracemalloc.start()
    log.append_as_leader(data, 0, NOW_MS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 << 20


def test_the_rejected_records_that_are_named_are_bounded() -> None:
    data = build_batch([Record(0, NOW_MS, None, b"")] * (MAX_REJECTED + 5))
    assert len(find_rejected(record_bytes(data, 0, read_header(data)), read_header(data), ANY)) == MAX_REJECTED
