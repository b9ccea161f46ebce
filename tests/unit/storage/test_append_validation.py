"""What the leader does to a batch: nothing but stamp it, or rebuild it because the topic's configs ask for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import BatchHeader, read_header, seal, validate
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.log.log import Log
from rayka.types import NO_TIMESTAMP, TimestampType
from tests.support.logs import NOW_MS, open_log

RECORDS = [Record(index, NOW_MS - index, b"k%d" % index, b"some value " * 40, (("h", b"x"),)) for index in range(60)]
CODECS = list(Codec)
ALL_AFTER_EPOCH = slice(16, None)
"""The bytes of a batch but for base offset, length and leader epoch."""


def stored(directory: Path) -> bytes:
    return (directory / "00000000000000000000.log").read_bytes()


def append(directory: Path, data: bytearray, **configs: object) -> tuple[Log, BatchHeader]:
    """The header of the stored batch, which is sound."""
    log = open_log(directory, **configs)
    log.append_as_leader(data, 3, NOW_MS)
    header = read_header(stored(directory))
    validate(stored(directory), 0, header)
    assert (header.base_offset, header.partition_leader_epoch) == (0, 3)
    return log, header


def refused(directory: Path, data: bytearray, **configs: object) -> ErrorCode:
    log = open_log(directory, **configs)
    with pytest.raises(RaykaError) as raised:
        log.append_as_leader(data, 0, NOW_MS)
    assert log.size == 0
    return raised.value.code


class TestInPlace:
    @pytest.mark.parametrize("codec", CODECS)
    def test_a_batch_is_stored_byte_for_byte(self, codec: Codec, tmp_path: Path) -> None:
        data = build_batch(RECORDS, codec=codec)
        produced = bytes(data)
        append(tmp_path, data)
        assert stored(tmp_path)[ALL_AFTER_EPOCH] == produced[ALL_AFTER_EPOCH]

    @pytest.mark.parametrize(
        ("codec", "configs"),
        [
            (Codec.NONE, {"compression_type": "uncompressed"}),
            (Codec.GZIP, {"compression_type": "gzip", "compression_gzip_level": 1}),
            (Codec.SNAPPY, {"compression_type": "snappy"}),
            (Codec.LZ4, {"compression_type": "lz4", "compression_lz4_level": 17}),
            (Codec.ZSTD, {"compression_type": "zstd", "compression_zstd_level": 19}),
        ],
    )
    def test_a_batch_of_the_topics_codec_is_not_compressed_again(
        self, codec: Codec, configs: dict[str, object], tmp_path: Path
    ) -> None:
        """Kafka looks at the codec alone: the level is the producer's."""
        data = build_batch(RECORDS, codec=codec)
        produced = bytes(data)
        append(tmp_path, data, **configs)
        assert stored(tmp_path)[ALL_AFTER_EPOCH] == produced[ALL_AFTER_EPOCH]

    @pytest.mark.parametrize("codec", CODECS)
    def test_log_append_time_changes_the_header_alone(self, codec: Codec, tmp_path: Path) -> None:
        data = build_batch(RECORDS, codec=codec)
        produced = bytes(data)
        _, header = append(tmp_path, data, message_timestamp_type="LogAppendTime")
        assert (header.codec, header.timestamp_type) == (codec, TimestampType.LOG_APPEND_TIME)
        assert (header.max_timestamp, header.base_timestamp) == (NOW_MS, read_header(produced).base_timestamp)
        assert stored(tmp_path)[61:] == produced[61:]
        assert {record.timestamp for record in read_records(stored(tmp_path))} == {NOW_MS}


class TestRebuilt:
    @pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
    @pytest.mark.parametrize("producers", CODECS)
    @pytest.mark.parametrize("topics", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
    def test_only_the_codec_changes(self, producers: Codec, topics: str, timestamp_type: str, tmp_path: Path) -> None:
        data = build_batch(RECORDS, codec=producers, producer_id=7, producer_epoch=1, base_sequence=0)
        produced = read_header(data)
        configs = {"compression_type": topics, "message_timestamp_type": timestamp_type}
        _, header = append(tmp_path, data, **configs)
        assert header.codec is Codec.parse(topics)
        assert header[6:8] == produced[6:8]
        assert header[9:] == produced[9:]
        found = [record[1:5] for record in read_records(stored(tmp_path))]
        is_append_time = timestamp_type == "LogAppendTime"
        assert found == [(NOW_MS if is_append_time else one.timestamp, *one[2:5]) for one in RECORDS]

    @pytest.mark.parametrize(
        ("name", "low", "high"), [("gzip", 1, 9), ("lz4", 9, 17), ("zstd", -7, 19)], ids=["gzip", "lz4", "zstd"]
    )
    def test_the_level_is_the_topics(self, name: str, low: int, high: int, tmp_path: Path) -> None:
        words = [b"%x" % (number * 2654435761 % 2**32) for number in range(4_000)]
        records = [Record(0, NOW_MS, b"k", b" ".join(words[index : index + 50])) for index in range(0, 4_000, 7)]
        sizes = []
        for level in (low, high):
            configs = {"compression_type": name, f"compression_{name}_level": level}
            _, header = append(tmp_path / str(level), build_batch(records), **configs)
            sizes.append(header.size_in_bytes)
        assert sizes[1] < sizes[0] * 0.97

    def test_a_batch_that_grows_above_the_largest_size_is_refused(self, tmp_path: Path) -> None:
        data = build_batch([Record(0, NOW_MS, b"k", bytes(20_000))], codec=Codec.ZSTD)
        configs = {"compression_type": "uncompressed", "max_message_bytes": 10_000}
        assert refused(tmp_path, data, **configs) is ErrorCode.MESSAGE_TOO_LARGE

    def test_a_batch_that_does_not_decompress_is_refused(self, tmp_path: Path) -> None:
        """Only where the leader has to: elsewhere the CRC stands for the producer's bytes."""
        data = build_batch(RECORDS, codec=Codec.GZIP)
        data[100] ^= 0xFF
        seal(data, 0, len(data))
        assert refused(tmp_path, data, compression_type="lz4") is ErrorCode.CORRUPT_MESSAGE


class TestTimestamps:
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
    @pytest.mark.parametrize(
        ("timestamp", "code"),
        [
            (NOW_MS - 1_000, ErrorCode.NONE),
            (NOW_MS - 1_001, ErrorCode.INVALID_TIMESTAMP),
            (NOW_MS + 2_000, ErrorCode.NONE),
            (NOW_MS + 2_001, ErrorCode.INVALID_TIMESTAMP),
            (NO_TIMESTAMP, ErrorCode.NONE),
        ],
    )
    def test_both_bounds_are_allowed_and_none_at_all(
        self, timestamp: int, code: ErrorCode, codec: Codec, tmp_path: Path
    ) -> None:
        bounds = {"message_timestamp_before_max_ms": 1_000, "message_timestamp_after_max_ms": 2_000}
        data = build_batch([Record(0, timestamp, b"k", b"v")], codec=codec)
        if code:
            assert refused(tmp_path, data, **bounds) is code
        else:
            append(tmp_path, data, **bounds)

    def test_log_append_time_knows_no_bounds(self, tmp_path: Path) -> None:
        bounds = {"message_timestamp_before_max_ms": 1, "message_timestamp_after_max_ms": 1}
        data = build_batch([Record(0, 5, b"k", b"v"), Record(1, NOW_MS * 2, b"k", b"v")])
        _, header = append(tmp_path, data, message_timestamp_type="LogAppendTime", **bounds)
        assert header.max_timestamp == NOW_MS
