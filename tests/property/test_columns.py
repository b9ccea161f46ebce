"""Columns hold what `read_records` yields, for any batches, and come back as the same records."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.batches import build_batches, write_columns
from rayka.errors import RaykaError
from rayka.storage.columns.read import COLUMNS, END, Columns, ColumnsReader, read_columns
from rayka.storage.format.batch import HEADER, RECORD_BATCH_OVERHEAD, read_header, seal
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.types import TimestampType
from tests.property.record_strategies import CODECS, record_lists
from tests.support.logs import valid_prefix
from tests.support.scale import examples

TIMESTAMP_TYPES = st.sampled_from(list(TimestampType))


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Some batches, one after the other, of any codec, some of them control batches."""
    log = b""
    offset = draw(st.integers(0, 100))
    for records in draw(st.lists(record_lists(max_size=6), max_size=4)):
        log += build_batch(
            records,
            base_offset=offset,
            codec=draw(CODECS),
            timestamp_type=draw(TIMESTAMP_TYPES),
            is_control=draw(st.integers(0, 9)) == 0,
        )
        offset += len(records) + draw(st.integers(0, 2))
    return log


def rows(records: list[Record]) -> list[dict[str, Any]]:
    """What Spark's Kafka source shows of `records`."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 7,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "timestampType": int(record.timestamp_type),
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for record in records
    ]


def read(log: bytes | bytearray, **arguments: Any) -> pa.RecordBatch:
    """What `read_columns` gives. Its two ways, of which a limit excludes that of plain batches, must agree, whether
    values are copied or not.
    """
    found = outcome(log, **arguments)
    for options in ({"max_bytes": END - 1}, {"copy": False}, {"max_bytes": END - 1, "copy": False}):
        other = outcome(log, **arguments, **options)
        if isinstance(found, RaykaError):
            assert isinstance(other, RaykaError)
            assert (found.code, found.message) == (other.code, other.message)
        else:
            assert not isinstance(other, RaykaError)
            assert plain(found.batch) == plain(other.batch)
            assert found[1:] == other[1:]
    if isinstance(found, RaykaError):
        raise found
    return found.batch


def outcome(log: bytes | bytearray, **arguments: Any) -> Columns | RaykaError:
    try:
        columns = read_columns(log, topic="orders", partition=7, **arguments)
    except RaykaError as error:
        return error
    columns.batch.validate(full=True)
    return columns


def plain(columns: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows, with timestamps as microseconds, since years past 9999 are no Python datetimes."""
    if "timestamp" in columns.schema.names:
        index = columns.schema.get_field_index("timestamp")
        columns = columns.set_column(index, "timestamp", columns.column(index).cast(pa.int64()))
    return columns.to_pylist()


@settings(max_examples=examples(200))
@given(logs(), st.data())
def test_columns_are_the_records(log: bytes, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1))
    start = data.draw(st.integers(0, 130))
    end = data.draw(st.integers(0, 130) | st.just(2**63 - 1))
    size = data.draw(st.integers(0, len(log)) | st.just(len(log)))
    expected = [record for record in read_records(log[:size]) if start <= record.offset < end]
    columns = read(log[:size], columns=names, start_offset=start, end_offset=end)
    assert columns.schema.names == names
    assert plain(columns) == [{name: row[name] for name in names} for row in rows(expected)]


@settings(max_examples=examples(100))
@given(st.lists(logs(), max_size=4), st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1), st.integers(0, 130))
def test_columns_of_several_logs_are_those_of_each(many: list[bytes], names: list[str], start: int) -> None:
    expected = [row for log in many for row in plain(read(log, columns=names, start_offset=start))]
    for copy in (True, False):
        reader = ColumnsReader(names, sum(map(len, many)), copy=copy)
        for log in many:
            reader.read(log, topic="orders", partition=7, start_offset=start)
        columns = reader.finish()
        columns.validate(full=True)
        assert plain(columns) == expected


@settings(max_examples=examples(250))
@given(record_lists(min_size=1), CODECS, st.data())
def test_damaged_batches_give_the_same_error_as_read_records(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    """Behind a right CRC, as a hostile client sends it: equal records, or an error from both."""
    built = build_batch(records, codec=codec)
    place = data.draw(st.integers(RECORD_BATCH_OVERHEAD, len(built) - 1))
    built[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del built[data.draw(st.integers(RECORD_BATCH_OVERHEAD, len(built))) :]
        HEADER.pack_into(built, 0, *read_header(built)._replace(batch_length=len(built) - 12))
    seal(built, 0, len(built))
    expected: list[Record] | None = None
    with contextlib.suppress(RaykaError):
        expected = list(read_records(built))
    columns: pa.RecordBatch | None = None
    with contextlib.suppress(RaykaError):
        columns = read(built, columns=("key", "value", "headers"), start_offset=-(2**63))
    assert (columns is None) == (expected is None)
    if columns is not None and expected is not None:
        assert columns.column("key").to_pylist() == [record.key for record in expected]
        assert columns.column("value").to_pylist() == [record.value for record in expected]


@settings(max_examples=examples(200))
@given(st.binary(max_size=300), st.sampled_from([None, 2, 3]))
def test_garbage_raises_nothing_else(garbage: bytes, magic: int | None) -> None:
    built = bytearray(RECORD_BATCH_OVERHEAD) + garbage
    HEADER.pack_into(built, 0, 0, len(built) - 12, 0, magic or 2, 0, 0, 0, 0, 0, -1, -1, -1, min(len(garbage) // 7, 5))
    seal(built, 0, len(built))
    for log in (built, garbage):
        with contextlib.suppress(RaykaError):
            read(log)


@settings(max_examples=examples(150))
@given(record_lists(max_size=30), CODECS, st.integers(100, 20_000), st.data())
def test_written_columns_are_read_back(
    records: list[Record], codec: Codec, max_batch_size: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(records)))
    size = data.draw(st.integers(0, len(records) - start))
    log = build_batch(records)
    part = read(log).slice(start, size)
    batches = list(write_columns(part, now_ms=5, codec=codec, max_batch_size=max_batch_size, base_offset=start))
    written = b"".join(batches)
    assert valid_prefix(written) == len(written)
    assert list(read_records(written)) == records[start : start + size]
    expected = list(build_batches(records[start : start + size], max_batch_size=max_batch_size, base_offset=start))
    assert len(batches) <= len(expected)
    if codec is Codec.NONE:
        assert all(len(batch) <= max_batch_size or read_header(batch).record_count == 1 for batch in batches)
