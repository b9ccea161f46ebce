"""What a producer is promised, and what it is refused."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource

from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import CLIENTS
from tests.clients.record import CODECS, Record, Refused

RECORDS = [Record(b"k", b"one"), Record(b"k", b"two"), Record(b"k", b"three")]


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_acks(client: Any, topic: str, acks: int) -> None:
    client.produce(topic, RECORDS, acks=acks)

    assert [record.value for record in client.fetch(topic, count=3)] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "kcat"], indirect=True)
def test_acknowledged_offsets_are_where_the_records_are(client: Any, topic: str) -> None:
    assert client.produce(topic, RECORDS) + client.produce(topic, RECORDS) == list(range(6))
    assert [record.offset for record in client.fetch(topic, count=6)] == list(range(6))


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_a_batch_above_max_message_bytes_is_refused(client: Any, new_topic: Callable[..., str], acks: int) -> None:
    topic = new_topic(**{"max.message.bytes": "5000"})

    with pytest.raises(Refused) as refusal:
        client.produce(topic, [Record(None, os.urandom(5000).hex().encode())], acks=acks)

    assert refusal.value.code == 10
    client.produce(topic, [Record(None, b"small")], acks=acks)
    assert client.offsets(topic) == (0, 1)


def test_an_idempotent_producer_with_many_small_requests_in_flight(confluent: Confluent, topic: str) -> None:
    records = [Record(None, b"%d" % number) for number in range(5000)]
    in_flight = {"batch.num.messages": 1, "linger.ms": 0, "max.in.flight.requests.per.connection": 5}

    assert confluent.produce(topic, records, **in_flight) == list(range(5000))
    assert [record.value for record in confluent.fetch(topic, count=5000)] == [record.value for record in records]


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_refuses_a_record_without_a_key(
    confluent: Confluent, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(**{"cleanup.policy": "compact"})

    with pytest.raises(Refused) as refusal:
        confluent.produce(topic, [Record(b"k", b"with"), Record(None, b"without")], codec=codec)

    assert refusal.value.code == 87
    assert confluent.offsets(topic) == (0, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_only_the_bad_records_of_a_batch_are_called_invalid(
    bootstrap: str, new_topic: Callable[..., str], codec: str
) -> None:
    """librdkafka tells the 10 of 100 records that have no key from the 90 that were in their batch (KIP-467)."""
    topic = new_topic(**{"cleanup.policy": "compact"})
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 60_000, "compression.type": codec, "log_level": 0}
    )
    errors: Counter[str] = Counter()
    for number in range(100):
        key = None if number % 10 == 3 else b"k"
        producer.produce(topic, b"v", key, 0, on_delivery=lambda error, _: errors.update([error.name()]))

    assert producer.flush(90) == 0
    assert errors == {"INVALID_RECORD": 10, "_INVALID_DIFFERENT_RECORD": 90}


def test_internal_topics_take_no_records_and_lose_none(confluent: Confluent, topic: str) -> None:
    commit_an_offset(confluent.bootstrap, topic)
    internal = "__consumer_offsets"

    with pytest.raises(Refused) as refusal:
        confluent.produce(internal, [Record(b"k", b"v")])
    assert refusal.value.code == 17

    (future,) = confluent.admin.delete_records([TopicPartition(internal, 0, 0)]).values()
    with pytest.raises(KafkaException) as failure:
        future.result(90)
    assert failure.value.args[0].code() == 17


def commit_an_offset(bootstrap: str, topic: str) -> None:
    """Now the topic of offsets exists."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("producers", CODECS)
@pytest.mark.parametrize("topics", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_compression_type_of_the_topic_changes_no_record(
    confluent: Confluent, new_topic: Callable[..., str], topics: str, producers: str
) -> None:
    topic = new_topic(**{"compression.type": topics})
    records = [Record(b"key %d" % n, b"value" * n, (("h", b"%d" % n),), 1_700_000_000_000 + n) for n in range(50)]

    confluent.produce(topic, records, codec=producers)

    got = confluent.fetch(topic, count=50)
    assert got == [record._replace(offset=offset) for offset, record in enumerate(records)]


def test_producing_to_an_unknown_topic_creates_it(confluent: Confluent, topic_name: str, broker_id: int) -> None:
    confluent.produce(topic_name, RECORDS)

    default = confluent.config_entries(ConfigResource.Type.BROKER, str(broker_id))["num.partitions"].value
    assert confluent.partition_count(topic_name) == int(default)
    assert [record.value for record in confluent.fetch(topic_name, count=3)] == [b"one", b"two", b"three"]


def test_partitions_are_independent(confluent: Confluent, new_topic: Callable[..., str]) -> None:
    topic = new_topic(5)
    for partition in range(5):
        values = [Record(None, b"%d-%d" % (partition, n)) for n in range(partition)]
        assert confluent.produce(topic, values, partition=partition) == list(range(partition))

    for partition in range(5):
        got = confluent.fetch(topic, partition=partition, count=partition)
        assert [record.value for record in got] == [b"%d-%d" % (partition, n) for n in range(partition)]
