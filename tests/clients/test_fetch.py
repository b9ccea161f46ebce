"""Where a consumer starts, what it waits for, and what it gets when that is not there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from kafka import TopicPartition as KafkaPythonPartition

from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.conftest import CLIENTS
from tests.clients.record import CODECS, Record, Refused

OFFSET_OUT_OF_RANGE = 1
LIBRDKAFKA_AUTO_OFFSET_RESET = -140


@pytest.fixture
def ten(topic: str, confluent: Confluent) -> str:
    """A topic of ten records in one batch."""
    confluent.produce(topic, [Record(None, b"%d" % number) for number in range(10)])
    return topic


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_from_the_middle_of_a_batch(client: Any, topic: str, confluent: Confluent, codec: str) -> None:
    confluent.produce(topic, [Record(None, b"%d" % number) for number in range(100)], codec=codec)

    assert [record.value for record in client.fetch(topic, offset=57, count=3)] == [b"57", b"58", b"59"]


@pytest.mark.parametrize("name", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_out_of_range_with_reset_to_earliest(clients: Callable[[str], Any], ten: str, name: str) -> None:
    key = "auto.offset.reset" if name == "confluent-kafka" else "auto_offset_reset"

    got = clients(name).fetch(ten, offset=1000, count=2, **{key: "earliest"})

    assert [record.offset for record in got] == [0, 1]


def test_out_of_range_with_reset_to_latest(clients: Callable[[str], Any], ten: str) -> None:
    client: KafkaPython = clients("kafka-python")
    where = KafkaPythonPartition(ten, 0)
    deadline = time.monotonic() + 90
    with client.consumer(auto_offset_reset="latest") as consumer:
        consumer.assign([where])
        consumer.seek(where, 1000)
        while consumer.position(where) != 10:
            assert time.monotonic() < deadline
            assert not consumer.poll(100)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("confluent-kafka", LIBRDKAFKA_AUTO_OFFSET_RESET),
        ("kafka-python", OFFSET_OUT_OF_RANGE),
        ("aiokafka", OFFSET_OUT_OF_RANGE),
        ("kafkajs", OFFSET_OUT_OF_RANGE),
        ("java", OFFSET_OUT_OF_RANGE),
    ],
)
def test_out_of_range_without_reset(clients: Callable[[str], Any], ten: str, name: str, code: int) -> None:
    with pytest.raises(Refused) as refusal:
        clients(name).fetch(ten, offset=1000, count=1)

    assert refusal.value.code == code


def test_a_waiting_consumer_is_woken_by_the_record(confluent: Confluent, topic: str) -> None:
    wait_ms = 120_000
    limits = {"fetch.wait.max.ms": wait_ms, "socket.timeout.ms": 2 * wait_ms, "session.timeout.ms": wait_ms}
    consumer = confluent.consumer(**limits)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(1.0) is None

    confluent.produce(topic, [Record(None, b"at last")])
    message = consumer.poll(wait_ms / 2000)

    assert message is not None
    assert message.value() == b"at last"
    consumer.close()


def test_a_fetch_of_min_bytes_is_woken_when_they_are_there(confluent: Confluent, topic: str) -> None:
    consumer = confluent.consumer(
        **{"fetch.wait.max.ms": 120_000, "socket.timeout.ms": 240_000, "fetch.min.bytes": 5000}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(1.0) is None

    for _ in range(5):
        confluent.produce(topic, [Record(None, b"x" * 1000)])
    messages = consumer.consume(5, 60.0)

    assert len(messages) == 5
    consumer.close()


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("confluent-kafka", {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1000, "message.max.bytes": 1000}),
        ("kafka-python", {"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 1000}),
        ("aiokafka", {"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 1000}),
    ],
)
def test_a_batch_larger_than_the_fetch_comes_whole(
    clients: Callable[[str], Any], topic: str, name: str, limits: dict[str, int]
) -> None:
    records = [Record(None, b"%d" % number * 50_000) for number in range(5)]
    for record in records:
        clients("confluent-kafka").produce(topic, [record])

    got = clients(name).fetch(topic, count=5, **limits)

    assert [record.value for record in got] == [record.value for record in records]


@pytest.mark.parametrize(
    ("name", "setting"),
    [("confluent-kafka", "isolation.level"), ("kafka-python", "isolation_level"), ("aiokafka", "isolation_level")],
)
def test_read_committed_without_transactions(clients: Callable[[str], Any], ten: str, name: str, setting: str) -> None:
    got = clients(name).fetch(ten, count=10, **{setting: "read_committed"})

    assert [record.offset for record in got] == list(range(10))


def test_one_consumer_of_many_partitions(confluent: Confluent, new_topic: Callable[..., str]) -> None:
    topic, each = new_topic(20), 200
    for partition in range(20):
        confluent.produce(topic, [Record(None, b"%d" % n) for n in range(each)], partition=partition)
    consumer = confluent.consumer()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(20)])

    offsets: dict[int, list[int]] = {partition: [] for partition in range(20)}
    for _ in range(20 * each):
        message = consumer.poll(60.0)
        offsets[message.partition()].append(message.offset())
    consumer.close()

    assert offsets == {partition: list(range(each)) for partition in range(20)}


def test_pause_seek_and_resume(confluent: Confluent, ten: str) -> None:
    where = TopicPartition(ten, 0, 0)
    consumer = confluent.consumer()
    consumer.assign([where])
    assert consumer.poll(60).offset() == 0

    consumer.pause([where])
    consumer.seek(TopicPartition(ten, 0, 8))
    consumer.resume([where])

    assert [message.offset() for message in consumer.consume(2, 60.0)] == [8, 9]
    consumer.close()


@pytest.mark.parametrize("client", ["confluent-kafka", "java"], indirect=True)
def test_a_deleted_topic_cannot_be_read(client: Any, confluent: Confluent, ten: str) -> None:
    confluent.delete_topic(ten)

    with pytest.raises(Refused):
        client.offsets(ten)
