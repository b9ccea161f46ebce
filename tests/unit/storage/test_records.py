"""Reading and building records, with two other implementations and Apache Kafka's own files as oracles."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from benchmarks.batches import build_batches
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import (
    HEADER,
    RECORD_BATCH_OVERHEAD,
    iter_headers,
    read_header,
    seal,
    validate,
)
from rayka.storage.format.builder import append_records, max_record_size, recompress
from rayka.storage.format.compression import Codec
from rayka.storage.format.record_checks import RecordRules, find_rejected
from rayka.storage.format.records import Record, build_batch, read_batch, read_records
from rayka.types import TimestampType
from tests.support.batches import rebuild_batch
from tests.support.logs import valid_prefix

LOGS = Path(__file__).parent / "logs"
NOW = 1_700_000_000_000
RECORDS = [
    Record(0, NOW, b"key", b"value"),
    Record(1, NOW + 5, None, b"no key"),
    Record(2, NOW - 5, b"tombstone", None),
    Record(3, NOW, None, None),
    Record(4, NOW, b"", b"", (("empty", b""), ("null", None), ("näme", b"\x00\xff"), ("näme", b"again"))),
    Record(5, NOW + 10_000_000_000, b"k" * 70, b"v" * 100_000),
    Record(6, 0, b"k" * 10_000, b"v" * 3),
]


def foreign(records: list[Record]) -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    return [(record.timestamp, record.key, record.value, list(record.headers)) for record in records]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_built_batch_is_read_back(codec: Codec) -> None:
    built = build_batch(RECORDS, codec=codec)
    validate(built, 0, read_header(built))
    assert list(read_records(built)) == RECORDS
    assert list(read_records(memoryview(bytes(built)))) == RECORDS


def test_the_header_has_the_given_values() -> None:
    built = build_batch(
        RECORDS,
        base_offset=100,
        codec=Codec.ZSTD,
        partition_leader_epoch=3,
        producer_id=7,
        producer_epoch=1,
        base_sequence=40,
        is_transactional=True,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
    )
    header = read_header(built)
    assert header.size_in_bytes == len(built)
    assert (header.base_offset, header.last_offset, header.record_count) == (100, 106, 7)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 10_000_000_000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 1, 40, 46)
    assert header.partition_leader_epoch == 3
    assert header.is_transactional
    assert not header.is_control
    assert [record.offset for record in read_records(built)] == list(range(100, 107))
    assert {record.timestamp for record in read_records(built)} == {NOW + 10_000_000_000}


@pytest.mark.parametrize("codec", list(Codec))
def test_kafka_python_reads_ours(codec: Codec) -> None:
    built = build_batch(RECORDS, base_offset=50, codec=codec)
    batches = list(MemoryRecords(bytes(built)))
    assert [batch.validate_crc() for batch in batches] == [True]
    read = list(MemoryRecords(bytes(built)).next_batch())
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in read] == foreign(RECORDS)
    assert [r.offset for r in read] == list(range(50, 57))


@pytest.mark.parametrize("codec", list(Codec))
def test_aiokafka_reads_ours(codec: Codec) -> None:
    batch = AiokafkaBatch(bytearray(build_batch(RECORDS, codec=codec)))
    assert batch.validate_crc()
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in batch] == foreign(RECORDS)


@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_kafka_python(codec: Codec) -> None:
    builder = MemoryRecordsBuilder(
        magic=2, compression_type=codec, batch_size=1 << 20, producer_id=9, producer_epoch=1, base_sequence=2
    )
    for record in RECORDS:
        builder.append(record.timestamp, record.key, record.value, list(record.headers))
    builder.close()
    built = builder.buffer()
    validate(built, 0, read_header(built))
    assert read_header(built).producer_id == 9
    assert list(read_records(built)) == RECORDS


@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_aiokafka(codec: Codec) -> None:
    builder = AiokafkaBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, record in enumerate(RECORDS):
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    built = builder.build()
    validate(built, 0, read_header(built))
    assert list(read_records(built)) == RECORDS


@pytest.mark.parametrize("codec", list(Codec))
def test_reads_batches_that_librdkafka_wrote_to_kafka(codec: Codec) -> None:
    log = (LOGS / f"librdkafka-{codec.config_name}.log").read_bytes()
    assert valid_prefix(log) == len(log)
    assert {header.codec for _, header in iter_headers(log)} == {codec}
    headers = (("trace", b"\x00\xff"), ("none", None), ("näme", b""))
    assert list(read_records(log)) == [
        Record(
            i,
            NOW + i * 1000,
            None if i % 5 == 4 else b"key-%d" % i,
            None if i % 7 == 6 else b"value %d " % i * 12,
            headers if i % 3 == 0 else (),
        )
        for i in range(20)
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_reads_batches_that_java_clients_wrote_to_kafka(codec: Codec) -> None:
    log = (LOGS / f"java-{codec.config_name}.log").read_bytes()
    assert valid_prefix(log) == len(log)
    assert {header.codec for _, header in iter_headers(log)} == {codec}
    records = list(read_records(log))
    assert [record.offset for record in records] == list(range(20))
    assert [(record.key, record.value) for record in records] == [
        (b"key-%d" % i, b"value %d " % i + b"again " * 12) for i in range(20)
    ]
    assert {record.headers for record in records} == {(("trace", b"abc"), ("empty", b""))}


@pytest.mark.parametrize("name", ["java-lz4", "librdkafka-none", "transactions"])
def test_rebuilding_a_batch_of_kafka_gives_the_same_bytes(name: str) -> None:
    log = (LOGS / f"{name}.log").read_bytes()
    for position, header in iter_headers(log):
        original = log[position : position + header.size_in_bytes]
        assert rebuild_batch(header, read_batch(log, position, header)) == original


def test_records_of_a_producer_become_the_same_batch() -> None:
    columns = zip(*((each.value, each.key, each.headers, each.timestamp) for each in RECORDS), strict=True)
    assert append_records(*columns)[RECORD_BATCH_OVERHEAD:] == build_batch(RECORDS)[RECORD_BATCH_OVERHEAD:]


@pytest.mark.parametrize("record", RECORDS)
def test_no_record_takes_more_than_its_largest_size(record: Record) -> None:
    batch = build_batch([record])
    assert len(batch) - RECORD_BATCH_OVERHEAD <= max_record_size(record.key, record.value, record.headers)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_are_split_into_batches_of_a_size(codec: Codec) -> None:
    records = [Record(5 + i, NOW + i, b"k%d" % i, b"v" * (i % 50)) for i in range(500)]
    batches = list(build_batches(records, max_batch_size=1000, base_offset=5, codec=codec))
    assert len(batches) > 10
    log = b"".join(batches)
    assert valid_prefix(log) == len(log)
    assert list(read_records(log)) == records
    if codec is Codec.NONE:
        assert max(map(len, batches)) <= 1000


def test_a_record_larger_than_the_batch_size_has_a_batch_of_its_own() -> None:
    records = [Record(i, NOW, None, b"v" * 500) for i in range(3)]
    assert [read_header(batch).record_count for batch in build_batches(records, max_batch_size=100)] == [1, 1, 1]
    assert list(build_batches([], max_batch_size=100)) == []


def test_compaction_keeps_offsets_and_identity() -> None:
    built = build_batch(RECORDS, base_offset=10, producer_id=3, producer_epoch=1, base_sequence=5, codec=Codec.ZSTD)
    header = read_header(built)
    kept = [record for record in read_records(built) if record.offset in (12, 14)]
    rebuilt = rebuild_batch(header, kept, delete_horizon_ms=NOW + 86_400_000)
    changed = read_header(rebuilt)
    assert valid_prefix(rebuilt) == len(rebuilt)
    assert list(read_records(rebuilt)) == kept
    assert changed.has_delete_horizon
    assert changed.base_timestamp == NOW + 86_400_000
    assert changed.max_timestamp == NOW
    assert (changed.base_offset, changed.last_offset, changed.last_sequence) == (10, 16, header.last_sequence)
    assert (changed.producer_id, changed.codec) == (3, Codec.ZSTD)
    emptied = rebuild_batch(header, [])
    assert list(read_records(emptied)) == []
    assert read_header(emptied).last_offset == 16


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_recompression_changes_the_codec_alone(source: Codec, target: Codec) -> None:
    built = bytes(7) + build_batch(
        RECORDS, base_offset=4, codec=source, producer_id=1, producer_epoch=2, base_sequence=3, is_transactional=True
    )
    header = read_header(built, 7)
    result = recompress(built, 7, header, target)
    changed = read_header(result)
    validate(result, 0, changed)
    assert changed.codec is target
    assert changed._replace(batch_length=0, crc=0, attributes=0) == header._replace(batch_length=0, crc=0, attributes=0)
    assert changed.attributes & ~7 == header.attributes & ~7
    assert [record._replace(offset=record.offset - 4) for record in read_records(result)] == RECORDS


def test_recompression_is_bounded() -> None:
    built = build_batch([Record(0, NOW, None, bytes(1 << 22))], codec=Codec.ZSTD)
    with pytest.raises(RaykaError) as raised:
        recompress(built, 0, read_header(built), Codec.NONE, max_size=1 << 20)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_header_keys_that_are_not_utf8_survive() -> None:
    built = build_batch([Record(0, NOW, None, None, (("\udcff\udcfe", b"x"),))])
    assert b"\xff\xfe" in built
    assert rebuild_batch(read_header(built), list(read_records(built))) == built


def damaged(records: bytes, record_count: int = 1) -> bytearray:
    built = bytearray(RECORD_BATCH_OVERHEAD) + records
    HEADER.pack_into(built, 0, 0, len(built) - 12, 0, 2, 0, 0, record_count - 1, NOW, NOW, -1, -1, -1, record_count)
    seal(built, 0, len(built))
    return built


@pytest.mark.parametrize(
    "records",
    [
        b"",
        b"\x0c\x00\x00\x00\x01\x01",  # no header count
        b"\x0e\x00\x00\x00\x01\x01\x00",  # a length one too high
        b"\x0a\x00\x00\x00\x01\x01\x00",  # a length one too low
        b"\x0b\x00\x00\x00\x01\x01\x00",  # a negative length
        b"\x0c\x00\x00\x00\x03\x01\x00",  # a key of length -2
        b"\x0c\x00\x00\x00\x01\x03\x00",  # a value of length -2
        b"\x0c\x00\x00\x00\x01\x01\x01",  # -1 headers
        b"\x0e\x00\x00\x00\x01\x01\x02\x01",  # a header whose key is null
        b"\x0c\x00\x00\x00\x7e\x01\x00",  # a key longer than what is left
        b"\x0c\x00\x00\x00\x01\x01\x00\x00",  # a byte too many
        b"\x80" * 20,  # a varint without end
        b"\x0c\x00" + b"\xff" * 11 + b"\x00\x01\x01\x00",  # a timestamp delta of more than 64 bits
    ],
)
def test_records_that_break_the_format_are_corrupt(records: bytes) -> None:
    built = damaged(records)
    with pytest.raises(RaykaError) as raised:
        list(read_records(built))
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_record_count_that_is_not_true_is_corrupt() -> None:
    record = b"\x0c\x00\x00\x00\x01\x01\x00"
    assert len(list(read_records(damaged(record)))) == 1
    for count in (-1, 0, 2, 2**31 - 1):
        built = damaged(record, count)
        with pytest.raises(RaykaError):
            list(read_records(built))
        with pytest.raises(RaykaError):
            find_rejected(bytes(record), read_header(built), RecordRules(True, 0, 1 << 62, 1 << 20))
