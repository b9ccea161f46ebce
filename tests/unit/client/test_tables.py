"""Tables of what several fetches brought: one array for each column, with the rows of each fetch in their place."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rayka.client.consumer import tables
from rayka.client.consumer.read_buffers import TableBuffers
from rayka.client.consumer.records import RecordBatches
from rayka.client.consumer.tables import first_part_of, table_of
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.read import SCHEMA, ColumnsTooLarge, read_columns
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch
from rayka.types import TimestampType, TopicPartition

ORDERS, EVENTS = TopicPartition("orders", 0), TopicPartition("events, a longer name", 12)
NOW = 1_700_000_000_000


def fetched(
    partition: TopicPartition,
    base_offset: int,
    *,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    position: int = 0,
    is_control: bool = False,
) -> RecordBatches:
    records = [
        Record(base_offset, NOW, None, b"x" * base_offset, ()),
        Record(base_offset + 1, NOW + 1, b"key", None, (("name", b"header"),)),
        Record(base_offset + 2, NOW + 2, None, b"", ()),
    ]
    batch = build_batch(
        records, base_offset=base_offset, codec=codec, timestamp_type=timestamp_type, is_control=is_control
    )
    return RecordBatches(partition, memoryview(batch), position, base_offset + 3, None)


POLLED = {
    ORDERS: [fetched(ORDERS, 0), fetched(ORDERS, 3, codec=Codec.LZ4, position=4)],
    EVENTS: [
        fetched(EVENTS, 300, timestamp_type=TimestampType.LOG_APPEND_TIME),
        fetched(EVENTS, 303, is_control=True),
        fetched(EVENTS, 306),
    ],
}


def table_of_each() -> pa.Table:
    """The same as tables of one fetch each."""
    parts = [
        read_columns(
            batches.data, topic=partition.topic, partition=partition.partition, start_offset=batches.position
        ).batch
        for partition, of_partition in POLLED.items()
        for batches in of_partition
    ]
    return pa.concat_tables([pa.Table.from_batches([part]) for part in parts])


def test_all_fetches_of_a_poll_are_one_array_for_each_column() -> None:
    table = table_of(POLLED, None, check_crcs=True)
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert table.equals(table_of_each())
    assert {column.num_chunks for column in table.columns} == {1}
    assert table["offset"].to_pylist() == [0, 1, 2, 4, 5, 300, 301, 302, 306, 307, 308]
    assert table["partition"].to_pylist() == [0] * 5 + [12] * 6
    assert set(table["topic"].to_pylist()) == {ORDERS.topic, EVENTS.topic}


def test_the_memory_of_a_table_is_taken_again_once_it_is_gone() -> None:
    buffers = TableBuffers()

    def table_of_value(value: bytes) -> pa.Table:
        data = memoryview(build_batch([Record(0, 0, None, value)] * 20_000))
        batches = RecordBatches(ORDERS, data, 0, 20_000, None)
        return table_of({ORDERS: [batches]}, None, check_crcs=True, allocate=buffers.allocate)

    first = table_of_value(b"first")
    addresses = [buffer.address for column in first.columns for buffer in column.chunk(0).buffers() if buffer]
    part, second = first["value"].slice(7, 1), table_of_value(b"second")
    del first
    third = table_of_value(b"third")
    assert part.to_pylist() == [b"first"]
    assert set(second["value"].to_pylist()) == {b"second"}
    assert set(third["value"].to_pylist()) == {b"third"}
    del part, second, third
    again = table_of_value(b"again")
    assert {buffer.address for buffer in again["value"].chunk(0).buffers() if buffer} <= {*addresses}
    assert all(buffer.address % 64 == 0 for buffer in again["offset"].chunk(0).buffers() if buffer)


def test_a_large_part_of_a_table_is_not_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_PART_BYTES", 300)
    table = table_of(POLLED, None, check_crcs=True)
    table.validate(full=True)
    assert table["value"].num_chunks > 1
    assert table.equals(table_of_each())


def test_a_part_of_a_table_reserves_no_memory_for_the_parts_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_PART_BYTES", 100_000)
    data = build_batch([Record(offset, NOW, None, bytes(1000), ()) for offset in range(20)])
    polled = {ORDERS: [RecordBatches(ORDERS, memoryview(data), 0, 20, None) for _ in range(50)]}
    before = pa.total_allocated_bytes()
    table = table_of(polled, ["value"], check_crcs=True)
    assert table["value"].num_chunks == 10
    assert pa.total_allocated_bytes() - before < 1.2 * table.nbytes


@pytest.mark.parametrize("names", [["topic"], ["partition", "topic"], ["timestampType"]])
def test_some_columns_of_several_fetches(names: list[str]) -> None:
    table = table_of(POLLED, names, check_crcs=True)
    table.validate(full=True)
    assert table.column_names == names
    for number, name in enumerate(names):
        assert table.column(number).to_pylist() == table_of_each()[name].to_pylist()


def test_a_poll_without_records_is_an_empty_table() -> None:
    assert table_of({}, None, check_crcs=True).equals(SCHEMA.empty_table())
    assert table_of({ORDERS: [fetched(ORDERS, 0, is_control=True)]}, None, check_crcs=True).num_rows == 0


@pytest.mark.parametrize("damaged", [POLLED[ORDERS][1], POLLED[EVENTS][2]])
def test_a_damaged_batch_in_any_fetch_is_found(damaged: RecordBatches) -> None:
    data = bytearray(damaged.data)
    data[-1] ^= 1
    polled = {
        partition: [each._replace(data=memoryview(data)) if each is damaged else each for each in of_partition]
        for partition, of_partition in POLLED.items()
    }
    with pytest.raises(RaykaError) as raised:
        table_of(polled, None, check_crcs=True)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def test_records_that_are_too_many_for_a_table_are_left_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed records are a few bytes in the log, and may be gigabytes in a table."""
    monkeypatch.setattr(tables, "_MOST_BYTES", 1_000_000)
    batches = [
        build_batch([Record(0, NOW, None, bytes(100_000))] * 2, base_offset=offset, codec=Codec.ZSTD)
        for offset in range(0, 40, 2)
    ]
    compressed = [RecordBatches(ORDERS, memoryview(b"".join(batches)), 1, 40, None)]
    polled = {ORDERS: compressed, EVENTS: [fetched(EVENTS, 300, position=300), fetched(EVENTS, 303)]}
    with pytest.raises(ColumnsTooLarge):
        table_of(polled, None, check_crcs=True)
    table, rest = first_part_of(polled, None, check_crcs=True)
    table.validate(full=True)
    assert rest == {ORDERS: table["offset"][-1].as_py() + 1, EVENTS: 300}
    assert table["offset"].to_pylist() == [*range(1, rest[ORDERS])]
    assert 1_000_000 <= table.nbytes < 2_000_000
    assert first_part_of({EVENTS: polled[EVENTS]}, None, check_crcs=True)[1] == {}
