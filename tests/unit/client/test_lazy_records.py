"""What `poll` gives, record by record and as a table."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer.blocking import Consumer
from rayka.client.consumer.consumer import AsyncConsumer
from rayka.client.consumer.records import ConsumerRecord
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.read import COLUMNS
from rayka.types import TopicPartition
from tests.support.client_connection import LocalConnection
from tests.support.ways import WAYS_TO_DECODE, decode_by

EVENTS = TopicPartition("events", 0)
COUNT = 3_000


@pytest.fixture(params=WAYS_TO_DECODE, autouse=True)
def way_to_decode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer begins with plain Python and goes on with compiled code."""
    decode_by(request.param, monkeypatch)


@pytest.fixture
def consumer(cluster: Cluster) -> Iterator[Consumer]:
    """A consumer of a partition with many records, at their beginning."""
    with cluster.producer(linger_ms=2, batch_size=20_000) as producer:
        for number in range(COUNT):
            key, headers = (b"k%d" % number, {"h": b"%d" % number}) if number % 3 == 0 else (None, None)
            value = None if number % 5 == 0 else b"%d" % number
            producer.send("events", value, key, headers, 0, 1_000_000 + number)
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([EVENTS])
        yield consumer


def expected(number: int) -> tuple[object, ...]:
    """The fields of a record of `consumer`."""
    value = None if number % 5 == 0 else b"%d" % number
    key, headers = (b"k%d" % number, (("h", b"%d" % number),)) if number % 3 == 0 else (None, ())
    return ("events", 0, number, 1_000_000 + number, key, value, headers)


def fields(record: ConsumerRecord) -> tuple[object, ...]:
    """What `expected` gives of it."""
    return (*record[:4], *record[5:])


def test_polled_records_go_to_other_processes(consumer: Consumer) -> None:
    polled = consumer.poll(30_000, 700)[EVENTS]
    there = pickle.loads(pickle.dumps(polled))
    assert there == polled
    assert [fields(record) for record in there] == [expected(number) for number in range(len(polled))]


@pytest.mark.parametrize("deserializer", [None, bytes.upper])
def test_large_records_are_all_there(cluster: Cluster, deserializer: Callable[[bytes], bytes] | None) -> None:
    sent = [b"%d" % number * 2_000 for number in range(200)]
    partition = TopicPartition("large", 0)
    with cluster.producer() as producer:
        producer.send_many("large", sent, partition=0)
    with cluster.consumer(auto_offset_reset="earliest", value_deserializer=deserializer) as consumer:
        consumer.assign([partition])
        seen: list[bytes] = []
        while len(seen) < len(sent):
            seen += [record.value for record in consumer.poll(30_000)[partition]]
        assert seen == sent
        consumer.seek(partition, 150)
        assert [next(consumer).value for _ in range(50)] == sent[150:]


def test_every_record_is_as_it_was_sent(consumer: Consumer) -> None:
    seen: list[ConsumerRecord] = []
    while len(seen) < COUNT:
        polled = consumer.poll(5000, 700)
        assert 0 < len(polled[EVENTS]) <= 700
        seen += polled[EVENTS]
        assert consumer.position(EVENTS) == len(seen)
    assert [fields(record) for record in seen] == [expected(number) for number in range(COUNT)]


def test_iteration_gives_every_record_once_and_follows_a_seek(consumer: Consumer) -> None:
    seen = []
    for record in consumer:
        seen.append(record.offset)
        if len(seen) == 500:
            consumer.seek(EVENTS, COUNT - 10)
        elif record.offset == COUNT - 1:
            break
    assert seen == [*range(500), *range(COUNT - 10, COUNT)]
    assert consumer.position(EVENTS) == COUNT


def test_iteration_and_next_and_poll_go_on_where_the_others_ended(consumer: Consumer) -> None:
    assert next(consumer).offset == 0
    assert next(iter(consumer)).offset == 1
    assert next(consumer).offset == 2
    assert consumer.position(EVENTS) == 3
    assert consumer.poll(5000, 1)[EVENTS][0].offset == 3
    assert next(iter(consumer)).offset == 4


def test_a_sequence_is_like_a_list(consumer: Consumer) -> None:
    polled = consumer.poll(5000, 100)[EVENTS]
    made = list(polled)
    assert len(polled) == len(made) > 10
    assert polled == made
    assert made == polled
    assert polled != made[1:]
    assert (polled[0], polled[-1], polled[7]) == (made[0], made[-1], made[7])
    assert polled[2:5] == made[2:5]
    assert list(polled[::-3]) == made[::-3]
    assert list(reversed(polled)) == made[::-1]
    assert made[3] in polled
    assert [*polled, None] == [*made, None]
    assert polled + made == made + polled == made * 2
    assert repr(polled) == repr(made)
    with pytest.raises(IndexError):
        polled[len(polled)]


def table_of_all(consumer: Consumer, **columns: list[str]) -> pa.Table:
    """Everything, by `poll_table`."""
    tables: list[pa.Table] = []
    while sum(table.num_rows for table in tables) < COUNT:
        tables.append(consumer.poll_table(5000, **columns))
    return pa.concat_tables(tables)


def test_a_table_has_all_columns(consumer: Consumer) -> None:
    table = table_of_all(consumer)
    assert tuple(table.column_names) == COLUMNS
    for number, row in enumerate(table.to_pylist()):
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        timestamp = round(row["timestamp"].timestamp() * 1000)
        found = (row["topic"], row["partition"], row["offset"], timestamp, row["key"], row["value"], headers)
        assert found == expected(number)
    assert consumer.position(EVENTS) == COUNT
    assert consumer.poll_table().num_rows == 0


def test_a_table_of_some_columns_from_a_position(consumer: Consumer) -> None:
    assert consumer.poll_table(columns=["offset"]).column_names == ["offset"]
    consumer.seek(EVENTS, 1_234)
    table = consumer.poll_table(5000, ["offset", "value"])
    assert table.column_names == ["offset", "value"]
    assert table["offset"].to_pylist() == [*range(1_234, 1_234 + table.num_rows)]


def test_a_table_after_single_records(consumer: Consumer) -> None:
    assert [next(consumer).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    assert consumer.poll_table(5000)["offset"][0].as_py() == 5


def test_a_table_that_can_not_be_made_leaves_the_position(consumer: Consumer) -> None:
    next(consumer)
    with pytest.raises(RaykaError) as refused:
        consumer.poll_table(5000, ["colour"])
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert consumer.position(EVENTS) == 1
    assert next(consumer).offset == 1


def test_a_table_of_the_asynchronous_form(connection: LocalConnection, consumer: Consumer) -> None:
    async def program() -> list[int]:
        async with AsyncConsumer(connection.broker, auto_offset_reset="earliest") as other:
            await other.assign([EVENTS])
            offsets: list[int] = []
            while len(offsets) < COUNT:
                offsets += (await other.poll_table(5000))["offset"].to_pylist()
            with pytest.raises(RaykaError):
                await asyncio.wait_for(other.poll_table(0, ["colour"]), 60)
            return offsets

    assert connection.loop.run(program()) == [*range(COUNT)]


def test_a_group_polls_tables_and_commits_behind_them(cluster: Cluster, consumer: Consumer) -> None:
    with cluster.consumer("readers", ["events"], auto_offset_reset="earliest", enable_auto_commit=False) as member:
        rows = 0
        while rows < COUNT:
            rows += member.poll_table(5000).num_rows
        member.commit()
        committed = member.committed(EVENTS)
        assert committed is not None
        assert committed.offset == COUNT
