"""Arrow columns from record batches and back: types, isolation, errors, and who pays for the compiler."""

from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.batches import write_columns
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns import build as columns_build
from rayka.storage.columns.crc import has_instruction
from rayka.storage.columns.native_code import NativeCode
from rayka.storage.columns.read import END, SCHEMA, ColumnsReader, read_columns
from rayka.storage.format.batch import HEADER, read_header, seal
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.types import AbortedTransaction, TimestampType

LOGS = Path(__file__).parent / "logs"
NOW = 1_700_000_000_000
LIMIT = 2**62
"""A limit that no read reaches: batch by batch, in the general way."""
RECORDS = [
    Record(0, NOW, b"key", b"value", (("a", b"1"), ("a", None), ("", b""))),
    Record(1, NOW + 1, None, None),
    Record(2, -1, b"", b"x" * 300, (("näme", b"\x00"),)),
]


def read(log: bytes | bytearray, **arguments: object) -> pa.RecordBatch:
    columns = read_columns(log, topic="orders", partition=3, **arguments).batch  # type: ignore[arg-type]
    columns.validate(full=True)
    return columns


def refusal(log: bytes | bytearray, **arguments: object) -> RaykaError:
    with pytest.raises(RaykaError) as raised:
        read(log, **arguments)
    return raised.value


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    columns = read(build_batch(RECORDS))
    assert columns.schema == SCHEMA
    assert [(field.name, str(field.type)) for field in SCHEMA][:7] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int32"),
        ("offset", "int64"),
        ("timestamp", "timestamp[us, tz=UTC]"),
        ("timestampType", "int32"),
    ]
    assert columns.column("topic").to_pylist() == ["orders"] * 3
    assert columns.column("partition").to_pylist() == [3] * 3
    assert columns.column("timestamp").cast(pa.int64()).to_pylist() == [NOW * 1000, NOW * 1000 + 1000, -1000]
    assert columns.column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}],
        None,
        [{"key": "näme", "value": b"\x00"}],
    ]


def test_only_the_columns_asked_for_are_built() -> None:
    assert read(build_batch(RECORDS), columns=["offset", "value"]).schema.names == ["offset", "value"]


@pytest.mark.parametrize("columns", [["headers", "headers"], ["value", "offset", "value"]])
def test_a_column_that_comes_twice_is_refused(columns: list[str]) -> None:
    error = refusal(build_batch(RECORDS), columns=columns)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert columns[0] in error.message


def test_an_unknown_column_is_named() -> None:
    error = refusal(build_batch(RECORDS), columns=["valeu"])
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "valeu" in error.message


@pytest.mark.parametrize("empty", [b"", bytearray(), build_batch(RECORDS)[:-1]])
def test_an_empty_buffer_gives_no_rows(empty: bytes) -> None:
    columns = read(empty)
    assert columns.num_rows == 0
    assert columns.schema == SCHEMA


@pytest.mark.parametrize("log", sorted(path.name for path in LOGS.glob("*.log")))
def test_reads_the_segments_of_kafka(log: str) -> None:
    data = (LOGS / log).read_bytes()
    columns = read(data)
    records = list(read_records(data))
    assert columns.column("offset").to_pylist() == [record.offset for record in records]
    assert columns.column("key").to_pylist() == [record.key for record in records]
    assert columns.column("value").to_pylist() == [record.value for record in records]


def test_read_committed_skips_aborted_records() -> None:
    data = (LOGS / "transactions.log").read_bytes()
    producers = [record.value for record in read_records(data)]
    assert producers.count(b"aborted 10") == 1
    first, second = (read_header(data, position).producer_id for position in (0, read_header(data).size_in_bytes))
    aborted = [AbortedTransaction(first, 0), AbortedTransaction(second, 10)]
    assert read(data, aborted_transactions=aborted).column("value").to_pylist() == [
        b"committed 2",
        b"committed 3",
        b"committed 8",
    ]


def test_batches_outside_the_range_are_not_decompressed() -> None:
    broken = build_batch(RECORDS, codec=Codec.ZSTD)
    broken[70] ^= 0xFF
    log = broken + build_batch(RECORDS, base_offset=3)
    assert refusal(log).code is ErrorCode.CORRUPT_MESSAGE
    assert read(log, start_offset=4).column("offset").to_pylist() == [4, 5]
    assert read(log, start_offset=3, end_offset=5).column("offset").to_pylist() == [3, 4]


def test_a_wrong_crc_is_noticed_unless_the_caller_has_checked() -> None:
    log = build_batch(RECORDS)
    log[17] ^= 1
    assert refusal(log).code is ErrorCode.CORRUPT_MESSAGE
    assert read(log, check_crcs=False).num_rows == 3


@pytest.mark.parametrize("record_count", [-1, 0, 2, 4, 2**31 - 1])
def test_a_wrong_record_count_is_noticed(record_count: int) -> None:
    log = build_batch(RECORDS)
    HEADER.pack_into(log, 0, *read_header(log)._replace(record_count=record_count))
    seal(log, 0, len(log))
    assert refusal(log).code is ErrorCode.CORRUPT_MESSAGE


def test_header_keys_that_are_not_utf8_get_replacement_characters() -> None:
    columns = read(build_batch([Record(0, NOW, None, None, (("ok", None), ("\udcff", b"x")))]))
    assert columns.column("headers").to_pylist() == [[{"key": "ok", "value": None}, {"key": "�", "value": b"x"}]]


def test_more_than_an_int_of_bytes_becomes_large_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_build, "INT_MAX", 200)
    columns = read(build_batch([record._replace(headers=()) for record in RECORDS]))
    assert columns.schema.field("value").type == pa.large_binary()
    assert columns.schema.field("key").type == pa.binary()
    assert columns.column("value").to_pylist() == [record.value for record in RECORDS]


@pytest.mark.parametrize("codec", list(Codec))
def test_written_columns_are_the_same_records(codec: Codec) -> None:
    batches = list(write_columns(read(build_batch(RECORDS)), now_ms=0, codec=codec))
    assert [read_header(batch).codec for batch in batches] == [codec]
    assert list(read_records(batches[0])) == RECORDS
    if codec is Codec.NONE:
        assert batches == [build_batch(RECORDS)]


def test_tables_of_several_chunks_are_written_in_order() -> None:
    part = read(build_batch(RECORDS))
    table = pa.Table.from_batches([part, part.slice(3), part.slice(1)])
    records = list(read_records(b"".join(write_columns(table, now_ms=0, base_offset=10))))
    assert [record.offset for record in records] == [10, 11, 12, 13, 14]
    assert [record.value for record in records] == [b"value", None, b"x" * 300, None, b"x" * 300]


def test_columns_of_other_types_are_written() -> None:
    table = pa.table(
        {
            "key": pa.array(["a", None, "ö"], pa.large_string()),
            "value": pa.array([b"abc", b"def", b"ghi"], pa.binary(3)),
            "timestamp": pa.array([NOW * 10**6, None, 5_999_999], pa.timestamp("ns")),
            "colour": pa.array([1, 2, 3]),
        }
    )
    assert list(read_records(b"".join(write_columns(table, now_ms=77)))) == [
        Record(0, NOW, b"a", b"abc"),
        Record(1, 77, None, b"def"),
        Record(2, 5, "ö".encode(), b"ghi"),
    ]


@pytest.mark.parametrize("codec", Codec)
def test_a_limited_read_ends_with_a_batch_and_the_next_continues_there(codec: Codec) -> None:
    batches, batch_records, value = 60, 50, b"x" * 1000
    data = [Record(0, NOW, b"key", value)] * batch_records
    log = b"".join(build_batch(data, base_offset=i * batch_records, codec=codec) for i in range(batches))
    limit = 400_000
    pieces, offset, position = [], 0, 0
    while position < len(log):
        piece = read_columns(
            log[position:],
            topic="orders",
            partition=3,
            columns=("value", "offset"),
            start_offset=offset,
            max_bytes=limit,
        )
        assert piece.batch.nbytes < 4 * limit
        offset, position = piece.next_offset, position + piece.size_in_log
        assert offset % batch_records == 0
        pieces.extend(piece.batch.column("offset").to_pylist())
    assert pieces == list(range(batches * batch_records))
    assert offset == batches * batch_records


def test_an_empty_buffer_gives_no_record_and_no_progress() -> None:
    columns = read_columns(build_batch(RECORDS)[:-1], topic="orders", partition=3, start_offset=7)
    assert (columns.batch.num_rows, columns.next_offset, columns.size_in_log) == (0, 7, 0)


def test_missing_columns_are_null_and_now() -> None:
    table = pa.table({"timestamp": pa.array([5, None], pa.int64())})
    assert list(read_records(b"".join(write_columns(table, now_ms=9)))) == [
        Record(0, 5, None, None),
        Record(1, 9, None, None),
    ]
    assert list(write_columns(table.slice(2), now_ms=9)) == []


@pytest.mark.parametrize(
    ("column", "array"),
    [
        ("value", pa.array([[1]], pa.list_(pa.int64()))),
        ("key", pa.array([1.5])),
        ("timestamp", pa.array(["today"])),
        ("headers", pa.array(["a=b"])),
        ("headers", pa.array([[{"name": "a"}]])),
        ("headers", pa.array([[None]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))),
        (
            "headers",
            pa.array([[{"key": None, "value": b""}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))),
        ),
    ],
)
def test_columns_that_cannot_be_records_are_refused(column: str, array: pa.Array) -> None:
    with pytest.raises(RaykaError, match=column) as raised:
        list(write_columns(pa.table({column: array}), now_ms=0))
    assert raised.value.code is ErrorCode.INVALID_RECORD


def test_the_brokers_path_does_not_import_the_compiler() -> None:
    program = (
        "import sys, rayka.actors.replica.actor, rayka.gateway.api\n"
        "print([name for name in ('numba', 'numpy', 'pyarrow') if name in sys.modules])\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout.strip() == "[]"


def without_last_value_byte(value: bytes) -> bytearray:
    """A batch of one record whose value ends one byte early: the count of headers begins there."""
    log = build_batch([Record(0, NOW, None, value)])
    length = len(log) - 1 - len(value) - 1
    assert log[length] == 2 * len(value)
    log[length] -= 2
    seal(log, 0, len(log))
    return log


def test_a_header_count_of_zero_may_take_two_bytes() -> None:
    log = without_last_value_byte(b"ab\x80")
    (record,) = read_records(log)
    assert (record.value, record.headers) == (b"ab", ())
    columns = read(log)
    assert columns.column("value").to_pylist() == [b"ab"]
    assert columns.column("headers").to_pylist() == [None]


def test_a_record_ends_behind_a_header_count_of_zero() -> None:
    log = without_last_value_byte(b"ab\x00")
    assert read(log, columns=["value"]).column("value").to_pylist() == [b"ab"]
    assert refusal(log).code is ErrorCode.CORRUPT_MESSAGE


def test_a_column_costs_a_call_of_compiled_code_only_where_it_has_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls cost as much as the work on records of a kilobyte."""
    calls, run = [], NativeCode.run
    read(build_batch(RECORDS))

    def counting(code: NativeCode, slots: array[int], is_brief: bool) -> None:
        calls.append(code)
        run(code, slots, is_brief)

    monkeypatch.setattr(NativeCode, "run", counting)
    read(build_batch([Record(0, NOW, None, b"value"), Record(1, NOW, None, None)]), max_bytes=LIMIT)
    assert len(calls) == 2  # to locate the records, and to copy the values
    calls.clear()
    read(build_batch([Record(0, NOW, None, None)]), max_bytes=LIMIT)
    assert len(calls) == 1


@pytest.mark.skipif(not has_instruction, reason="the processor has no instruction for the CRC")
def test_one_call_of_compiled_code_reads_a_fetch_of_plain_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [build_batch([Record(0, NOW, None, b"value")] * 100, base_offset=offset) for offset in range(0, 1000, 100)]
    odd = build_batch([Record(0, NOW, None, b"value", (("name", b"x"),))], base_offset=1000)
    read(b"".join([*plain, odd]))
    calls, run = [], NativeCode.run

    def counting(code: NativeCode, slots: array[int], is_brief: bool) -> None:
        calls.append(code)
        run(code, slots, is_brief)

    monkeypatch.setattr(NativeCode, "run", counting)
    assert read(b"".join(plain)).num_rows == 1000
    assert len(calls) == 1
    assert read(b"".join([*plain, odd])).num_rows == 1001
    assert len(calls) > 2


def test_keys_may_begin_late_and_batches_may_be_larger_than_the_first() -> None:
    small, keyed = Record(0, NOW, None, b""), Record(0, NOW, b"key" * 50, None)
    batches = [[small] * 3, [small] * 500, [keyed, small], [keyed] * 2000, [small] * 5, [keyed._replace(value=b"x")]]
    log, offset = b"", 0
    for records in batches:
        log += build_batch(records, base_offset=offset)
        offset += len(records)
    columns, records = read(log), [record for records in batches for record in records]
    assert columns.equals(read(log, max_bytes=LIMIT))
    assert columns.column("offset").to_pylist() == list(range(offset))
    assert columns.column("key").to_pylist() == [record.key for record in records]
    assert columns.column("value").to_pylist() == [record.value for record in records]


@pytest.mark.parametrize(("base_offset", "last_offset_delta"), [(2**63 - 1, 0), (2**63 - 2, 7), (-(2**63), -9)])
def test_impossible_offsets_of_a_batch_are_the_same_whichever_way_it_is_read(
    base_offset: int, last_offset_delta: int
) -> None:
    log = bytearray(build_batch([Record(0, NOW, None, b"value")]))
    header = read_header(log)._replace(base_offset=base_offset, last_offset_delta=last_offset_delta)
    HEADER.pack_into(log, 0, *header)
    seal(log, 0, len(log))
    found, limited = [read_columns(log, topic="orders", partition=3, max_bytes=limit) for limit in (END, LIMIT)]
    assert found.batch.equals(limited.batch)
    assert found.next_offset == limited.next_offset


def test_columns_that_get_more_than_they_expect_are_not_copied_for_each_batch() -> None:
    allocated: list[int] = []

    def allocate(size: int) -> pa.Buffer:
        allocated.append(size)
        return pa.allocate_buffer(size)

    reader = ColumnsReader(("value", "offset"), 1, allocate)
    for offset in range(0, 40_000, 100):
        data = build_batch([Record(0, NOW, None, b"value" * 10)] * 100, base_offset=offset)
        reader.read(data, topic="orders", partition=3)
    assert reader.finish().num_rows == 40_000
    assert len(allocated) < 800


def test_keys_are_not_copied_for_each_batch() -> None:
    """There must be room for keys as large as the batch, which they never are."""
    allocated: list[int] = []

    def allocate(size: int) -> pa.Buffer:
        allocated.append(size)
        return pa.allocate_buffer(size)

    records = [Record(0, NOW, b"key", bytes(1000))] * 10
    data = [build_batch(records, base_offset=offset) for offset in range(0, 2000, 10)]
    reader = ColumnsReader(("key",), sum(map(len, data)), allocate)
    for each in data:
        reader.read(each, topic="orders", partition=3)
    assert reader.finish().column("key").to_pylist() == [b"key"] * 2000
    assert len(allocated) < 50


@pytest.mark.parametrize("time", [-1, -(2**40), 0])
@pytest.mark.parametrize("limit", [END, LIMIT])
def test_a_log_append_time_before_1970_is_that_of_every_record(time: int, limit: int) -> None:
    log = bytearray(build_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME))
    HEADER.pack_into(log, 0, *read_header(log)._replace(max_timestamp=time))
    seal(log, 0, len(log))
    assert [record.timestamp for record in read_records(log)] == [time] * 3
    read_times = read(log, columns=["timestamp"], max_bytes=limit).column("timestamp").cast(pa.int64())
    assert read_times.to_pylist() == [time * 1000] * 3


@pytest.mark.parametrize("names", [["topic"], ["partition"], ["topic", "partition"]])
@pytest.mark.parametrize("codec", Codec)
def test_a_header_that_counts_more_records_than_fit_in_its_batch_makes_no_rows(codec: Codec, names: list[str]) -> None:
    """A hostile producer may send it: the broker does not decode records. Two billion rows would take all memory."""
    claimed = 2**20
    log = bytearray(build_batch(RECORDS, codec=codec))
    HEADER.pack_into(log, 0, *read_header(log)._replace(record_count=claimed, last_offset_delta=claimed - 1))
    seal(log, 0, len(log))
    assert refusal(log, columns=names).code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", Codec)
def test_records_that_are_compressed_very_well_are_counted(codec: Codec) -> None:
    log = build_batch([Record(0, NOW, None, None)] * 100_000, codec=codec)
    assert read(log, columns=["topic"]).num_rows == 100_000


@pytest.mark.parametrize("limit", [END, LIMIT])
@pytest.mark.parametrize("columns", [("value",), ("topic",)])
@pytest.mark.parametrize(("place", "bit"), [(22, 0x20), (23, 0x80), (50, 1)], ids=["control", "delta", "producer"])
def test_records_are_not_left_out_because_of_a_damaged_header(
    place: int, bit: int, columns: tuple[str, ...], limit: int
) -> None:
    """As those of a control batch, of another producer's aborted transaction, or before the first offset."""
    producer = {"producer_id": 6, "producer_epoch": 0, "base_sequence": 0}
    batches = [build_batch(RECORDS, base_offset=offset, is_transactional=True, **producer) for offset in (0, 3)]
    aborted = (AbortedTransaction(7, 0),)
    assert read(b"".join(batches), columns=columns, max_bytes=limit, aborted_transactions=aborted).num_rows == 6
    batches[1][place] ^= bit
    for transactions in (aborted, None):
        error = refusal(b"".join(batches), columns=columns, max_bytes=limit, aborted_transactions=transactions)
        assert error.code is ErrorCode.CORRUPT_MESSAGE
