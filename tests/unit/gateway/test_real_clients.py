"""Kafka clients that are Python packages, against the gateway over a local broker: create, produce, fetch, describe."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import load

ROOT = Path(__file__).parents[3]
VALUES = [b"value %d" % number for number in range(300)]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker in a process of its own."""
    directory = tmp_path_factory.mktemp("broker")
    command = [sys.executable, "-m", "tests.support.local_broker", "0", str(directory), "num.partitions=2"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on "), line
    yield line.split()[-1]
    process.terminate()  # a shell's background job ignores SIGINT
    process.wait(10)


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_confluent_kafka(bootstrap: str, topic: str, codec: str, idempotent: bool) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 5}
    )
    offsets: list[int] = []
    for value in VALUES:
        producer.produce(topic, value, b"key", on_delivery=lambda error, message: offsets.append(message.offset()))
    assert producer.flush(10) == 0
    assert offsets == list(range(len(VALUES)))
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [message.value() for message in consumer.consume(len(VALUES), 10)]
    assert found == VALUES
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 10) == (0, len(VALUES))
    consumer.close()


def test_confluent_kafka_is_told_that_sasl_is_not_served(bootstrap: str) -> None:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

    errors: list[KafkaError] = []
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "error_cb": errors.append}
    settings |= {"sasl.username": "user", "sasl.password": "password"}
    admin = AdminClient({"bootstrap.servers": bootstrap, **settings})
    ends_s = time.monotonic() + 30
    while not errors and time.monotonic() < ends_s:
        admin.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "not valid in current SASL state" in errors[0].str()


def test_confluent_kafka_administers(bootstrap: str, topic: str) -> None:
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "7000"})])[topic].result(60)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(60)
    assert len(admin.list_topics(topic, 10).topics[topic].partitions) == 4
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (described,) = admin.describe_configs([resource]).values()
    assert described.result(60)["retention.ms"].value == "7000"
    assert admin.describe_cluster(request_timeout=60).result(60).cluster_id == "local-cluster"
    offsets = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    assert offsets[TopicPartition(topic, 0)].result(60).offset == 0
    admin.delete_topics([topic])[topic].result(60)
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        admin.delete_topics([topic])[topic].result(60)


def test_the_client_that_was_refused_a_topic_ends_with_its_last_user(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka ends the process if a client ends in its own thread, which keeps the answer a moment longer."""
    from confluent_kafka.admin import AdminClient, NewTopic

    answers: list[object] = []
    clients: list[weakref.ref[AdminClient]] = []

    class Noted(AdminClient):
        def create_topics(self, topics: list[NewTopic], **options: Any) -> Any:
            futures = super().create_topics(topics, **options)
            answers.extend(futures.values())
            clients.append(weakref.ref(self))
            return futures

    monkeypatch.setattr(load, "AdminClient", Noted)
    for _ in range(2):
        load.create_topic(bootstrap, topic, 1)
    assert len(answers) > 2
    assert all(client() is None for client in clients)


def test_kafka_python(bootstrap: str, topic: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    sent = [producer.send(topic, value, partition=1, headers=[("h", b"1")]) for value in VALUES]
    assert [one.get(10).offset for one in sent] == list(range(len(VALUES)))
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=60_000)
    partition = TopicPartition(topic, 1)
    consumer.assign([partition])
    consumer.seek(partition, 100)
    found = [next(consumer) for _ in range(200)]
    assert [record.value for record in found] == VALUES[100:]
    assert [record.offset for record in found] == list(range(100, 300))
    assert found[0].headers == [("h", b"1")]
    assert consumer.end_offsets([partition]) == {partition: 300}
    consumer.close()


def test_aiokafka(bootstrap: str, topic: str) -> None:
    import aiokafka

    async def main() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for value in VALUES:
                await producer.send(topic, value, partition=0)
            await producer.flush()
        partition = aiokafka.TopicPartition(topic, 0)
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            return [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in VALUES]

    assert asyncio.run(main()) == VALUES
