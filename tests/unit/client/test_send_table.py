"""Arrow columns as records: as if each row had been sent."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
from typing import Any

import pyarrow as pa
import pytest

from rayka.client.cluster import Cluster
from rayka.client.producer.partitioner import key_partition
from rayka.errors import ErrorCode, RaykaError
from tests.unit.client.reading import read_all

pytestmark = pytest.mark.usefixtures("way_to_fill")
PARTITIONS = 5
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with a topic of five partitions, and another one."""
    cluster.admin().create_topic("events", PARTITIONS)
    cluster.admin().create_topic("rows", PARTITIONS)
    return cluster


def table(count: int, seed: int = 1) -> pa.Table:
    """Rows with and without each of the columns."""
    chance = random.Random(seed)

    def maybe(value: object) -> object:
        return None if chance.random() < 0.2 else value

    rows = [
        {
            "value": maybe(chance.randbytes(chance.randint(0, 300))),
            "key": maybe(chance.randbytes(chance.randint(0, 30))),
            "headers": maybe([{"key": f"h{n}", "value": maybe(b"x" * n)} for n in range(chance.randint(0, 3))]),
            "timestamp": 1_000_000 + n,
            "partition": maybe(chance.randrange(PARTITIONS)),
            "offset": n,
        }
        for n in range(count)
    ]
    schema = pa.schema(
        [("value", pa.binary()), ("key", pa.binary()), ("headers", HEADERS), ("timestamp", pa.int64()),
         ("partition", pa.int32()), ("offset", pa.int64())]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema)


@pytest.mark.parametrize("compression_type", [None, "lz4", "zstd"])
def test_rows_are_the_records_that_single_sends_make(cluster: Cluster, compression_type: str | None) -> None:
    whole = table(3_000)
    with cluster.producer(compression_type=compression_type) as producer:
        sent = producer.send_table("events", pa.concat_tables([whole.slice(0, 999), whole.slice(999)]))
        assert sum(future.result(60).record_count for future in sent) == 3_000
    records = read_all(cluster, "events")
    assert len(records) == 3_000
    by_time = {record.timestamp: record for record in records}
    for row in whole.to_pylist():
        record = by_time[row["timestamp"]]
        assert (record.key, record.value) == (row["key"], row["value"])
        assert [*record.headers] == [(each["key"], each["value"]) for each in row["headers"] or ()]
        if row["partition"] is not None:
            assert record.partition == row["partition"]
        elif row["key"] is not None:
            assert record.partition == key_partition(row["key"], PARTITIONS)
    for partition in range(PARTITIONS):
        times = [record.timestamp for record in records if record.partition == partition]
        assert times == sorted(times)


@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": False}, {"transactional_id": "writer"}], ids=str)
def test_the_leader_accepts_the_crc_of_every_kind_of_producer(cluster: Cluster, settings: dict[str, object]) -> None:
    with cluster.producer(**settings) as producer:
        with producer.transaction() if "transactional_id" in settings else contextlib.nullcontext():
            sent = producer.send_table("events", table(1_000))
        assert sum(future.result(60).record_count for future in sent) == 1_000


def test_rows_without_a_key_go_a_batch_at_a_time(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send_table("events", pa.table({"value": [b"x" * 1_000] * 8_000}))
        producer.flush()
    counts = [sum(record.partition == partition for record in read_all(cluster, "events")) for partition in range(5)]
    assert sum(counts) == 8_000
    assert sum(map(bool, counts)) > 1


def test_text_times_serializers_and_a_partitioner_of_ones_own(cluster: Cluster) -> None:
    moment = datetime.datetime(2024, 5, 6, tzinfo=datetime.UTC)
    rows = pa.table(
        {"value": ["ä", None], "key": ["a", "b"], "timestamp": pa.array([moment, None], pa.timestamp("us", "UTC"))}
    )
    with cluster.producer(
        partitioner=lambda key, every, _: every[-1] if key == b"k:b" else every[0],
        key_serializer=lambda key: b"k:" + key.encode(),
    ) as producer:
        producer.send_table("events", rows)
    first, second = read_all(cluster, "events")
    assert (first.partition, first.key, first.value) == (0, b"k:a", "ä".encode())
    assert first.timestamp == moment.timestamp() * 1000
    assert (second.partition, second.key, second.value) == (PARTITIONS - 1, b"k:b", None)
    assert second.timestamp > first.timestamp


def test_columns_keep_their_place_among_other_sends(cluster: Cluster) -> None:
    with cluster.producer(linger_ms=50) as producer:
        for n in range(30):
            producer.send("events", b"%d" % n, partition=0)
            producer.send_table("events", pa.table({"value": [b"%d" % n, b"%d" % n], "partition": [0, 0]}))
    assert [int(record.value) for record in read_all(cluster, "events")] == [n for n in range(30) for _ in range(3)]


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"value": [1.5]}, ErrorCode.INVALID_RECORD),
        ({"value": [b"a"], "headers": ["text"]}, ErrorCode.INVALID_RECORD),
        ({"value": [b"a"], "partition": [PARTITIONS]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"value": [b"a"], "partition": [-2]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"value": [b"a"], "partition": ["x"]}, ErrorCode.INVALID_RECORD),
        ({"value": [b"a"], "timestamp": [-5]}, ErrorCode.INVALID_REQUEST),
        ({"value": [b"a"], "timestamp": pa.array([-5_000], pa.timestamp("us"))}, ErrorCode.INVALID_REQUEST),
        ({"value": [b"a"], "timestamp": pa.array([2**60], pa.timestamp("s"))}, ErrorCode.INVALID_RECORD),
        ({"value": [b"a"], "timestamp": pa.array([2**63], pa.uint64())}, ErrorCode.INVALID_RECORD),
        ({"value": [b"a" * 1_100_000]}, ErrorCode.MESSAGE_TOO_LARGE),
        ({"value": [b"a"], "kye": [b"b"]}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_rows_that_can_not_be_sent_are_refused(cluster: Cluster, columns: dict[str, Any], code: ErrorCode) -> None:
    with cluster.producer() as producer:
        with pytest.raises(RaykaError) as refused:
            producer.send_table("events", pa.table(columns))
        assert refused.value.code is code
    assert read_all(cluster, "events") == []


def test_the_error_names_the_column_that_a_record_does_not_have(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        with pytest.raises(RaykaError, match=r"Unknown column: kye \(a record has value, key, headers"):
            producer.send_table("events", {"value": [b"a"], "kye": [b"b"]})
        twice = pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], ["value", "value"])
        with pytest.raises(RaykaError, match="more than one column value"):
            producer.send_table("events", twice)


def test_a_table_that_was_polled_can_be_sent(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send("events", b"value", key=b"key", headers=[("name", b"header")], partition=3, timestamp_ms=1_000)
        producer.flush()
        consumer = cluster.consumer(auto_offset_reset="earliest")
        consumer.assign([("events", 3)])
        producer.send_table("rows", consumer.poll_table(timeout_ms=10_000))
        consumer.close()
    (record,) = read_all(cluster, "rows")
    assert record[5:] == (b"key", b"value", (("name", b"header"),))
    assert (record.partition, record.timestamp) == (3, 1_000)


def test_the_asynchronous_form(cluster: Cluster) -> None:
    async def program() -> int:
        async with cluster.async_producer() as producer:
            futures = await producer.send_table("events", pa.table({"value": [b"a", b"b"]}))
            return sum([(await future).record_count for future in futures])

    assert asyncio.run(program()) == 2
    assert len(read_all(cluster, "events")) == 2
