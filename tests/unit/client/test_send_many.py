"""Lists of values as records: as if each had been sent."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayka.client.cluster import Cluster
from rayka.client.compiled import Compiled
from rayka.client.producer import filling
from rayka.client.producer.partitioner import key_partition
from rayka.errors import ErrorCode, RaykaError
from tests.support.ways import PLAIN, WAYS, fill_by
from tests.unit.client.reading import read_all, values

PARTITIONS = 5


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with a topic of five partitions."""
    cluster.admin().create_topic("events", PARTITIONS)
    return cluster


@pytest.mark.parametrize("compression_type", [None, "zstd"])
def test_lists_are_the_records_that_single_sends_make(cluster: Cluster, compression_type: str | None) -> None:
    chance = random.Random(3)
    maybe = lambda given: None if chance.random() < 0.1 else given  # noqa: E731
    sent = [maybe(chance.randbytes(chance.randint(0, 900))) for _ in range(5_000)]
    keys = [maybe(chance.randbytes(chance.randint(0, 30))) for _ in sent]
    headers = [maybe([(f"h{n}", maybe(b"x" * n)) for n in range(chance.randint(0, 3))]) for _ in sent]
    with cluster.producer(compression_type=compression_type) as producer:
        futures = producer.send_many("events", sent, keys, headers, timestamps_ms=range(1_000, 6_000))
        assert sum(future.get(10).record_count for future in futures) == 5_000
    by_time = {record.timestamp: record for record in read_all(cluster, "events")}
    assert len(by_time) == 5_000
    for number, value in enumerate(sent):
        record = by_time[1_000 + number]
        assert (record.value, record.key, [*record.headers]) == (value, keys[number], headers[number] or [])
        if record.key is not None:
            assert record.partition == key_partition(record.key, PARTITIONS)


def test_values_alone_go_in_order_to_the_partition_asked_for(cluster: Cluster) -> None:
    sent = [b"%06d" % number for number in range(70_000)]
    with cluster.producer() as producer:
        producer.send("events", b"before", partition=2)
        producer.send_many("events", sent, partition=2)
        producer.send("events", b"after", partition=2)
    records = read_all(cluster, "events")
    assert {record.partition for record in records} == {2}
    assert [record.value for record in records] == [b"before", *sent, b"after"]


def test_values_without_keys_are_spread(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send_many("events", [b"x" * 1_000] * 8_000)
    assert len({record.partition for record in read_all(cluster, "events")}) > 1


def test_serializers_and_what_is_like_bytes(cluster: Cluster) -> None:
    with cluster.producer(value_serializer=str.encode) as producer:
        producer.send_many("events", ["ä", "b", None], partition=0)
    with cluster.producer() as producer:
        producer.send_many("events", [bytearray(b"c"), memoryview(b"d")], [b"k", bytearray(b"l")], partition=0)
    assert values(cluster, "events") == ["ä".encode(), b"b", None, b"c", b"d"]


def test_nothing_to_send(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        assert producer.send_many("events", []) == []
        assert producer.send_table("events", {"value": []}) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"values": ["text"]}, ErrorCode.INVALID_REQUEST),
        ({"values": [7]}, ErrorCode.INVALID_REQUEST),
        ({"values": [b"a"], "keys": ["text"]}, ErrorCode.INVALID_REQUEST),
        ({"values": [b"a"], "keys": [b"a", b"b"]}, ErrorCode.INVALID_REQUEST),
        ({"values": [b"a"], "headers": [[("h", "text")]]}, ErrorCode.INVALID_REQUEST),
        ({"values": [b"a"], "timestamps_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"values": [b"a"], "timestamps_ms": [1, 2]}, ErrorCode.INVALID_REQUEST),
        ({"values": [b"a", b"b"], "timestamps_ms": [1]}, ErrorCode.INVALID_REQUEST),
        ({"values": [b"a"], "partition": PARTITIONS}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"values": [b"a" * 1_100_000]}, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_lists_that_can_not_be_sent_are_refused(cluster: Cluster, arguments: dict[str, Any], code: ErrorCode) -> None:
    with cluster.producer() as producer:
        with pytest.raises(RaykaError) as refused:
            producer.send_many("events", **arguments)
        assert refused.value.code is code
    assert read_all(cluster, "events") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": b"hello"}, "values must be a list, not bytes"),
        ({"values": "hello"}, "values must be a list, not str"),
        ({"values": (b"a" for _ in range(2))}, "values must be a list, not generator"),
        ({"values": {b"a": b"b"}}, "values must be a list, not dict"),
        ({"values": [b"a"], "keys": b"k"}, "keys must be a list, not bytes"),
        ({"values": [b"a"], "headers": {"h": b"1"}}, "headers must be a list, not dict"),
        ({"values": [b"a", b"b"], "timestamps_ms": [1]}, "there are 2 values and 1 timestamps_ms"),
    ],
)
def test_the_error_names_the_argument_that_is_not_a_list(
    cluster: Cluster, arguments: dict[str, Any], message: str
) -> None:
    with cluster.producer(value_serializer=lambda value: b"%a" % value) as producer:
        with pytest.raises(RaykaError, match=message) as refused:
            producer.send_many("events", **arguments)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert read_all(cluster, "events") == []


def test_a_single_value_is_not_a_list_of_records(cluster: Cluster) -> None:
    producer = cluster.producer(value_serializer=str.encode)
    with pytest.raises(RaykaError, match="records must be a list, not str"):
        producer.send_batch("events", 0, "hello")
    assert read_all(cluster, "events") == []


def test_all_values_may_have_one_time(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send_many("events", [b"a", b"b"], timestamps_ms=1_000)
        producer.send_many("events", [b"c", b"d"], timestamps_ms=np.array([1_000, 1_000]))
        producer.send_many("events", [b"e"], timestamps_ms=np.array(1_000))
    assert [record.timestamp for record in read_all(cluster, "events")] == [1_000] * 5


def test_headers_may_come_from_a_generator(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send_many("events", [b"a", b"b"], headers=({"name": value} for value in (b"1", b"2")))  # type: ignore[arg-type]
    assert [record.headers for record in read_all(cluster, "events")] == [(("name", b"1"),), (("name", b"2"),)]


@pytest.mark.parametrize(
    "table",
    [
        {"value": [b"ab", b"cd"]},
        {"value": np.array([b"ab", b"cd"])},
        {"value": np.array([[97, 98], [99, 100]], np.uint8)},
        pd.DataFrame({"value": [b"ab", b"cd"], "offset": [1, 2]}),
    ],
    ids=["lists", "NumPy", "NumPy rows", "pandas"],
)
def test_tables_of_other_libraries(cluster: Cluster, table: Any) -> None:
    with cluster.producer() as producer:
        producer.send_table("events", table)
    assert values(cluster, "events") == [b"ab", b"cd"]


def test_a_value_that_is_not_a_table_is_refused(cluster: Cluster) -> None:
    with cluster.producer() as producer, pytest.raises(RaykaError, match="a table is a pyarrow"):
        producer.send_table("events", 7)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"value": "hello"}, "column value must be a list or an array with a value for each row, not str"),
        ({"value": [b"a"], "key": b"hello"}, "column key must be a list or an array .* not bytes"),
        ({"value": [b"a"], "partition": 3}, "column partition can't be an Arrow array"),
        ({"value": [b"a", 1]}, "column value can't be an Arrow array"),
        ({"value": [b"a", b"b"], "key": [b"k"]}, "equally long: value has 2 rows, key has 1 rows"),
        (pd.Series([b"a"]), "a table is a pyarrow.Table, a DataFrame or a dict of columns, not Series"),
    ],
)
def test_the_error_names_the_column_that_is_not_a_list(cluster: Cluster, table: Any, message: str) -> None:
    with cluster.producer() as producer:
        with pytest.raises(RaykaError, match=message) as refused:
            producer.send_table("events", table)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert read_all(cluster, "events") == []


def test_single_sends_are_the_same_with_and_without_compiled_code(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    sent = [
        (
            chance.randbytes(chance.randint(0, 300)) if chance.random() < 0.9 else None,
            chance.randbytes(9) if chance.random() < 0.3 else None,
            {"h": b"1"} if chance.random() < 0.1 else None,
            chance.choice([None, 5, 2**60]),
        )
        for _ in range(600)
    ]
    loaded = Compiled("rayka.storage.columns.rows", "encode_lists", lambda _: None)
    loaded.load()
    missing = Compiled("no such module", "", lambda _: None)
    for topic, compiled, way in (("plain", missing, PLAIN), ("quick", loaded, PLAIN), ("native", missing, WAYS[-1])):
        cluster.admin().create_topic(topic, configs={"message.timestamp.after.max.ms": 2**62})
        monkeypatch.setattr(filling, "_compiled", compiled)
        fill_by(way, monkeypatch)
        with cluster.producer(linger_ms=50) as producer:
            for value, key, headers, timestamp_ms in sent:
                producer.send(topic, value, key, headers, timestamp_ms=timestamp_ms)
        records = read_all(cluster, topic)
        assert [(record.value, record.key, dict(record.headers) or None) for record in records] == [
            (value, key, headers) for value, key, headers, _ in sent
        ]
        assert [record.timestamp for record in records if record.timestamp in (5, 2**60)] == [
            timestamp_ms for *_, timestamp_ms in sent if timestamp_ms is not None
        ]


def test_the_asynchronous_form(cluster: Cluster) -> None:
    async def program() -> int:
        async with cluster.async_producer() as producer:
            futures = await producer.send_many("events", [b"a", b"b"])
            futures += await producer.send_table("events", {"value": [b"c"]})
            return sum([(await future).record_count for future in futures])

    assert asyncio.run(program()) == 3
    assert sorted(values(cluster, "events")) == [b"a", b"b", b"c"]
