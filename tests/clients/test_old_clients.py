"""Clients from before 2017, which know only messages of magic 0 and 1. Apache Kafka serves them up to version 3.9."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.clients.adapters import old
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.piped import Piped
from tests.clients.conftest import CLIENTS, require, unique
from tests.clients.record import Record, Refused

OLD_CLIENTS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "kafka-python-0.9.5": (old.kafka_python_0_9, ("none", "gzip", "snappy")),
    "kafka-python-1.0.2": (old.kafka_python_1_0, ("none", "gzip", "snappy")),
    "pykafka-for-0.8.2": (partial(old.pykafka, broker_version="0.8.2"), ("none", "gzip", "snappy", "lz4")),
    "pykafka-for-0.10.0": (partial(old.pykafka, broker_version="0.10.0"), ("none", "gzip", "snappy", "lz4")),
} | {
    f"librdkafka-for-{version}": (
        partial(old.OldConfluent, broker_version=version),
        ("none", "gzip", "snappy", "lz4"),
    )
    for version in ("0.8.2", "0.9.0", "0.10.0", "0.10.1", "0.10.2")
}
"""How to start each, and the codecs that it writes."""
WITH_CODEC = [(name, codec) for name, (_, codecs) in OLD_CLIENTS.items() for codec in codecs]
RECORDS = [
    Record(b"key", b"value"),
    Record(None, b"no key"),
    Record(b"empty", b""),
    Record("ключ".encode(), "значение".encode()),
    Record(b"long", b"0123456789abcdef" * 6_000),
]


@pytest.fixture(scope="module")
def old_clients(bootstrap: str) -> Iterator[Callable[[str], Any]]:
    """`old_clients(name)` is the one instance of that client."""
    started: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in started:
            started[name] = require(lambda: OLD_CLIENTS[name][0](bootstrap))
        return started[name]

    yield get
    for client in started.values():
        if isinstance(client, Piped):
            client.close()


@pytest.fixture(scope="module")
def written(confluent: Confluent) -> Callable[[str], str]:
    """`written(codec)` is a topic with records of today's librdkafka, with headers, in several batches."""
    topics: dict[str, str] = {}

    def write(codec: str) -> str:
        if codec not in topics:
            topics[codec] = unique(f"for-old-clients-{codec}")
            confluent.create_topic(topics[codec])
            for _ in range(2):
                headed = [record._replace(headers=(("name", b"x"),)) for record in RECORDS]
                confluent.produce(topics[codec], headed, codec=codec)
        return topics[codec]

    return write


def contents(records: list[Record]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


@pytest.mark.parametrize(("name", "codec"), WITH_CODEC)
def test_what_an_old_client_writes_is_read_by_itself_and_by_a_new_one(
    name: str, codec: str, topic: str, old_clients: Callable[[str], Any], confluent: Confluent
) -> None:
    client = old_clients(name)
    for first in (0, len(RECORDS)):
        assert client.produce(topic, RECORDS, codec=codec) == list(range(first, first + len(RECORDS)))
    for reader in (client, confluent):
        got = reader.fetch(topic, count=2 * len(RECORDS))
        assert contents(got) == contents(RECORDS * 2)
        assert [record.offset for record in got] == list(range(2 * len(RECORDS)))


@pytest.mark.parametrize("reader", CLIENTS)
def test_every_new_client_reads_what_old_ones_wrote(
    reader: str, topic: str, old_clients: Callable[[str], Any], clients: Callable[[str], Any]
) -> None:
    names = ("kafka-python-0.9.5", "pykafka-for-0.10.0", "librdkafka-for-0.8.2", "librdkafka-for-0.10.2")
    for name in names:
        for codec in OLD_CLIENTS[name][1]:
            old_clients(name).produce(topic, RECORDS[:2], codec=codec)
    count = 2 * sum(len(OLD_CLIENTS[name][1]) for name in names)
    assert contents(clients(reader).fetch(topic, count=count)) == contents(RECORDS[:2] * (count // 2))


@pytest.mark.parametrize(("name", "codec"), WITH_CODEC)
def test_an_old_client_reads_what_a_new_one_wrote(
    name: str, codec: str, written: Callable[[str], str], old_clients: Callable[[str], Any]
) -> None:
    client, topic = old_clients(name), written(codec)
    assert client.offsets(topic) == (0, 2 * len(RECORDS))
    assert contents(client.fetch(topic, count=2 * len(RECORDS))) == contents(RECORDS * 2)
    got = client.fetch(topic, offset=3, count=3)
    assert [record.offset for record in got] == [3, 4, 5]
    assert contents(got) == contents([*RECORDS[3:], RECORDS[0]])


@pytest.mark.parametrize("name", ["librdkafka-for-0.8.2", "librdkafka-for-0.10.2"])
def test_an_old_client_reads_a_long_topic_in_many_fetches(
    name: str, topic: str, old_clients: Callable[[str], Any], confluent: Confluent
) -> None:
    """Large batches with small fetches: each fetch ends within a batch, and the next goes on from there."""
    records = [Record(None, b"%06d" % number + bytes(200)) for number in range(20_000)]
    confluent.produce(topic, records, codec="lz4", **{"linger.ms": 200, "batch.num.messages": 100_000})
    got = old_clients(name).fetch(topic, count=len(records), **{"fetch.message.max.bytes": 20_000})
    assert [record.value for record in got] == [record.value for record in records]


@pytest.mark.parametrize("name", ["librdkafka-for-0.8.2", "librdkafka-for-0.10.0"])
def test_timestamps_are_those_of_each_format(
    name: str, topic: str, old_clients: Callable[[str], Any], confluent: Confluent
) -> None:
    old_clients(name).produce(topic, [Record(b"k", b"v", timestamp=1_450_000_000_000)])
    (record,) = confluent.fetch(topic, count=1)
    assert record.timestamp == (-1 if name.endswith("0.8.2") else 1_450_000_000_000)


@pytest.mark.parametrize("name", ["librdkafka-for-0.8.2", "librdkafka-for-0.10.2"])
def test_an_old_client_is_told_what_a_compacted_topic_refuses(
    name: str, new_topic: Callable[..., str], old_clients: Callable[[str], Any]
) -> None:
    topic = new_topic(**{"cleanup.policy": "compact"})
    with pytest.raises(Refused) as raised:
        old_clients(name).produce(topic, [Record(None, b"no key")])
    assert raised.value.code == 87
    assert old_clients(name).produce(topic, [Record(b"key", b"value")]) == [0]


def test_list_offsets_0_names_the_beginnings_of_segments(
    new_topic: Callable[..., str], old_clients: Callable[[str], Any]
) -> None:
    """As Kafka 0.10 does: newest first, and none that began after the time asked for."""
    topic = new_topic(**{"segment.bytes": "1048576"})
    client = old_clients("kafka-python-0.9.5")
    for _ in range(3):
        client.produce(topic, [Record(None, bytes(600_000))])

    def offsets(when: int, most: int) -> list[int]:
        found: list[int] = client.call("list_offsets", topic=topic, partition=0, when=when, most=most)
        return found

    assert offsets(-1, 10) == [3, 2, 1, 0]
    assert offsets(-1, 2) == [3, 2]
    assert offsets(-2, 10) == [0]
    assert offsets(int(time.time() * 1000) + 60_000, 1) == [3]
    assert offsets(int(time.time() * 1000) - 3_600_000, 10) == []
