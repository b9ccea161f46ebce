"""Message sets of magic 0 and 1 as record batches and back, with kafka-python's and aiokafka's codecs as oracles."""

from __future__ import annotations

import struct
import zlib

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaBuilder
from kafka.record.memory_records import MemoryRecordsBuilder

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import iter_headers, read_header, validate
from rayka.storage.format.compression import Codec, compress
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.legacy.down_conversion import convert_down
from rayka.storage.format.legacy.message import wrap
from rayka.storage.format.legacy.up_conversion import MAX_BATCH_SIZE, convert_up
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.types import TimestampType
from tests.support.batches import rebuild_batch
from tests.support.message_sets import LOG_APPEND_TIME, Message, compressed_set, encode, message_set, read_message_set

NOW = 1_450_000_000_000
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
MESSAGES = [
    Message(0, NOW, b"key", b"value"),
    Message(1, NOW + 5, None, b"no key"),
    Message(2, NOW - 5, b"tombstone", None),
    Message(3, -1, None, None),
    Message(4, NOW, b"", b""),
    Message(5, NOW + 10_000_000_000, b"k" * 70, b"v" * 100_000),
]
RECORDS = [Record(one.offset, one.timestamp, one.key, one.value) for one in MESSAGES]
BATCH = bytes(build_batch(RECORDS))


def timeless(messages: list[Message]) -> list[Message]:
    """As magic 0 has them."""
    return [one._replace(timestamp=-1) for one in messages]


def as_magic(messages: list[Message], magic: int) -> list[Message]:
    return messages if magic else timeless(messages)


def read_up(batches: bytes | bytearray) -> list[Message]:
    for position, header in iter_headers(batches):
        validate(batches, position, header)
    return [Message(*record[:4]) for record in read_records(batches)]


def refused(messages: bytes) -> ErrorCode:
    with pytest.raises(RaykaError) as raised:
        convert_up(messages)
    return raised.value.code


def down(batches: bytes, magic: int, offset: int = 0, max_bytes: int = 1 << 20, *, is_hard_limit: bool = True) -> bytes:
    return convert_down(batches, magic, offset, max_bytes, is_hard_limit=is_hard_limit).messages


@pytest.mark.parametrize("magic", [0, 1])
class TestUpConversion:
    def test_a_plain_set_becomes_one_batch(self, magic: int) -> None:
        batches = convert_up(message_set(MESSAGES, magic))
        assert len(list(iter_headers(batches))) == 1
        assert read_up(batches) == as_magic(MESSAGES, magic)

    @pytest.mark.parametrize("codec", OLD_CODECS)
    def test_a_set_of_kafka_python_keeps_its_codec(self, magic: int, codec: Codec) -> None:
        builder = MemoryRecordsBuilder(magic, codec, 1 << 20)
        for _, timestamp, key, value in MESSAGES:
            builder.append(max(timestamp, 0), key, value)
        builder.close()
        batches = convert_up(builder.buffer())
        assert [header.codec for _, header in iter_headers(batches)] == [codec]
        assert read_up(batches) == as_magic([one._replace(timestamp=max(one.timestamp, 0)) for one in MESSAGES], magic)

    def test_sets_of_aiokafka_keep_their_codec(self, magic: int) -> None:
        for codec in OLD_CODECS:
            if codec is Codec.LZ4 and not magic:
                continue  # aiokafka does not write it
            builder = AiokafkaBuilder(magic, codec, 1 << 20)
            for offset, timestamp, key, value in MESSAGES:
                builder.append(offset, timestamp if magic else None, key, value)
            batches = convert_up(builder.build())
            assert [header.codec for _, header in iter_headers(batches)] == [codec]
            assert read_up(batches) == as_magic(MESSAGES, magic)

    def test_a_large_plain_set_becomes_several_batches(self, magic: int) -> None:
        messages = [Message(offset, NOW, None, bytes([offset]) * 300_000) for offset in range(10)]
        batches = convert_up(message_set(messages, magic))
        sizes = [header.size_in_bytes for _, header in iter_headers(batches)]
        assert len(sizes) == 4
        assert max(sizes) <= MAX_BATCH_SIZE
        assert [one.value for one in read_up(batches)] == [one.value for one in messages]

    def test_a_message_larger_than_a_batch_gets_its_own(self, magic: int) -> None:
        messages = [Message(0, NOW, None, b"a"), Message(1, NOW, None, bytes(2_000_000)), Message(2, NOW, None, b"b")]
        batches = convert_up(message_set(messages, magic))
        assert [header.record_count for _, header in iter_headers(batches)] == [1, 1, 1]
        assert read_up(batches) == as_magic(messages, magic)

    def test_a_flipped_byte_is_a_corrupt_message(self, magic: int) -> None:
        whole = encode(MESSAGES[0], magic)
        for position in range(12, len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 0x40
            assert refused(damaged) is ErrorCode.CORRUPT_MESSAGE

    def test_a_flipped_byte_of_an_inner_message_is_a_corrupt_message(self, magic: int) -> None:
        inner = bytearray(message_set(MESSAGES, magic))
        inner[20] ^= 1
        assert refused(wrap(compress(Codec.GZIP, inner), magic, Codec.GZIP, 5, NOW)) is ErrorCode.CORRUPT_MESSAGE

    def test_a_part_of_a_message_is_a_corrupt_message(self, magic: int) -> None:
        whole = message_set(MESSAGES[:2], magic)
        for size in range(1, len(whole)):
            if size != len(encode(MESSAGES[0], magic)):
                assert refused(whole[:size]) is ErrorCode.CORRUPT_MESSAGE

    def test_lengths_that_do_not_fit_are_a_corrupt_message(self, magic: int) -> None:
        for key_length in (-2, 5, 2**31 - 1, -(2**31)):
            body = struct.pack(">bb", magic, 0) + bytes(8 * magic) + struct.pack(">i", key_length) + b"abcd"
            body += struct.pack(">i", 1) + b"x"
            message = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
            assert refused(message) is ErrorCode.CORRUPT_MESSAGE

    def test_a_compressed_message_in_a_compressed_message_is_corrupt(self, magic: int) -> None:
        once = compressed_set(MESSAGES, magic, Codec.GZIP)
        assert refused(wrap(compress(Codec.GZIP, once), magic, Codec.GZIP, 0, NOW)) is ErrorCode.CORRUPT_MESSAGE

    def test_a_compressed_message_has_a_value_with_messages(self, magic: int) -> None:
        assert refused(encode(Message(0, NOW, None, None), magic, Codec.GZIP)) is ErrorCode.CORRUPT_MESSAGE
        assert refused(wrap(b"", magic, Codec.SNAPPY, 0, NOW)) is ErrorCode.CORRUPT_MESSAGE
        assert refused(wrap(b"no gzip", magic, Codec.GZIP, 0, NOW)) is ErrorCode.CORRUPT_MESSAGE

    def test_a_compressed_message_must_be_the_only_one_of_its_set(self, magic: int) -> None:
        twice = compressed_set(MESSAGES, magic, Codec.GZIP) * 2
        assert refused(twice) is ErrorCode.INVALID_RECORD
        assert refused(encode(MESSAGES[0], magic) + compressed_set(MESSAGES, magic, Codec.LZ4))

    def test_zstd_is_not_a_codec_of_these_formats(self, magic: int) -> None:
        assert refused(encode(MESSAGES[0], magic, Codec.ZSTD)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

    def test_the_decompressed_size_of_a_message_set_is_bounded(self, magic: int) -> None:
        large = compressed_set([Message(0, NOW, None, bytes(3 << 20))], magic, Codec.GZIP)
        assert len(large) < 10_000
        with pytest.raises(RaykaError) as raised:
            convert_up(large, 1 << 20)
        assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_set_has_one_magic() -> None:
    assert refused(encode(MESSAGES[0], 0) + encode(MESSAGES[1], 1)) is ErrorCode.INVALID_RECORD
    assert refused(b"") is ErrorCode.INVALID_RECORD


def test_inner_messages_have_the_magic_of_the_outer_one() -> None:
    content = compress(Codec.GZIP, message_set(MESSAGES, 0))
    assert refused(wrap(content, 1, Codec.GZIP, 5, NOW)) is ErrorCode.CORRUPT_MESSAGE


def test_a_negative_timestamp_other_than_none_is_refused() -> None:
    assert refused(encode(Message(0, -2, None, b"x"), 1)) is ErrorCode.INVALID_TIMESTAMP


def test_log_append_time_of_a_producer_stays_visible_to_the_leader() -> None:
    batches = convert_up(message_set(MESSAGES, 1, LOG_APPEND_TIME))
    assert [header.timestamp_type for _, header in iter_headers(batches)] == [TimestampType.LOG_APPEND_TIME]


@pytest.mark.parametrize("magic", [0, 1])
class TestDownConversion:
    @pytest.mark.parametrize("codec", OLD_CODECS)
    def test_records_become_messages_at_their_offsets(self, magic: int, codec: Codec) -> None:
        batch = bytes(build_batch(RECORDS, base_offset=1_000, codec=codec))
        expected = [one._replace(offset=one.offset + 1_000) for one in MESSAGES]
        assert read_message_set(down(batch, magic, 1_000)) == as_magic(expected, magic)

    @pytest.mark.parametrize("codec", OLD_CODECS)
    def test_a_fetch_in_the_middle_of_a_batch_begins_there(self, magic: int, codec: Codec) -> None:
        batch = bytes(build_batch(RECORDS, codec=codec))
        assert read_message_set(down(batch, magic, 3)) == as_magic(MESSAGES[3:], magic)

    @pytest.mark.parametrize("codec", OLD_CODECS)
    def test_the_way_up_and_down_changes_nothing(self, magic: int, codec: Codec) -> None:
        one = message_set(MESSAGES, magic) if codec is Codec.NONE else compressed_set(MESSAGES, magic, codec)
        if codec is Codec.LZ4 and not magic:
            one = down(BATCH_LZ4, 0)  # with the checksum of magic 0
        assert read_message_set(down(bytes(convert_up(one)), magic)) == as_magic(MESSAGES, magic)

    def test_headers_are_dropped(self, magic: int) -> None:
        batch = bytes(build_batch([Record(0, NOW, b"k", b"v", (("name", b"x"),))]))
        assert read_message_set(down(batch, magic)) == as_magic([Message(0, NOW, b"k", b"v")], magic)

    def test_control_batches_are_skipped_and_transactional_ones_delivered(self, magic: int) -> None:
        data = build_batch(RECORDS[:2], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        marker = build_end_transaction_marker(
            ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, now_ms=NOW, base_offset=2
        )
        converted = convert_down(bytes(data + marker), magic, 0, 1 << 20, is_hard_limit=True)
        assert read_message_set(converted.messages) == as_magic(MESSAGES[:2], magic)
        assert converted.next_offset == 3
        assert convert_down(bytes(marker), magic, 2, 1 << 20, is_hard_limit=True) == (b"", 3)

    def test_zstd_is_refused_but_not_what_lies_before_it(self, magic: int) -> None:
        zstd = bytes(build_batch(RECORDS, base_offset=6, codec=Codec.ZSTD))
        assert read_message_set(down(BATCH + zstd, magic)) == as_magic(MESSAGES, magic)
        with pytest.raises(RaykaError) as raised:
            down(BATCH + zstd, magic, 6)
        assert raised.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

    @pytest.mark.parametrize("codec", OLD_CODECS)
    def test_messages_end_before_the_limit(self, magic: int, codec: Codec) -> None:
        records = [Record(offset, NOW, None, bytes(1_000)) for offset in range(1_000)]
        batch = bytes(build_batch(records, codec=codec))
        offset, largest = 0, 0
        while offset < 1_000:
            part = down(batch, magic, offset, 50_000)
            messages = read_message_set(part)
            assert [one.offset for one in messages] == list(range(offset, offset + len(messages)))
            assert len(messages) >= 40
            largest = max(largest, len(part))
            offset += len(messages)
        assert largest <= 50_000

    def test_a_message_above_the_hard_limit_is_cut(self, magic: int) -> None:
        batch = bytes(build_batch([Record(0, NOW, None, bytes(5_000))]))
        cut = down(batch, magic, max_bytes=1_000)
        assert len(cut) == 1_000
        assert read_message_set(cut) == []
        whole = down(batch, magic, max_bytes=1_000, is_hard_limit=False)
        assert len(read_message_set(whole)) == 1

    def test_a_part_of_a_batch_at_the_end_is_left_out(self, magic: int) -> None:
        assert read_message_set(down(BATCH + BATCH[:-1], magic)) == as_magic(MESSAGES, magic)

    def test_a_batch_that_compaction_emptied_is_skipped(self, magic: int) -> None:
        empty = rebuild_batch(read_header(BATCH), [])
        assert convert_down(bytes(empty), magic, 0, 1_000, is_hard_limit=True) == (b"", 6)


BATCH_LZ4 = bytes(build_batch(RECORDS, codec=Codec.LZ4))


def test_messages_of_magic_1_carry_the_log_append_time() -> None:
    batch = bytes(build_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME))
    messages = down(batch, 1)
    assert messages[17] == LOG_APPEND_TIME
    assert {one.timestamp for one in read_message_set(messages)} == {RECORDS[5].timestamp}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_lz4_frames_of_magic_0_have_the_checksum_of_then(codec: Codec) -> None:
    """kafka-python accepts no other; a frame with the right checksum is read too."""
    batch = bytes(build_batch(RECORDS, codec=codec))
    old = down(batch, 0)
    assert read_message_set(old) == timeless(MESSAGES)
    assert read_up(convert_up(old)) == timeless(MESSAGES)
    assert read_up(convert_up(compressed_set(MESSAGES, 0, codec))) == timeless(MESSAGES)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_a_batch_too_large_to_convert_comes_alone_and_is_refused(codec: Codec) -> None:
    small = build_batch([Record(0, NOW, b"k", b"v")])
    bomb = build_batch([Record(0, NOW, None, bytes(65 << 20))], base_offset=1, codec=codec)
    assert convert_down(bytes(small + bomb), 1, 0, 1 << 20, is_hard_limit=False).next_offset == 1
    with pytest.raises(RaykaError) as raised:
        convert_down(bytes(bomb), 1, 1, 1 << 20, is_hard_limit=False)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
