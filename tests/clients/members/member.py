"""The Python libraries as members of a group: print the value of every record, then commit; leave at SIGTERM.

    python -m tests.clients.members.member LIBRARY BOOTSTRAP GROUP TOPIC

A topic that begins with ^ is a pattern.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

SESSION_MS = 3000
HEARTBEAT_MS = 300
METADATA_MS = 500


def show(values: list[bytes]) -> None:
    """Print before the commit, so that a record that nobody printed is read again."""
    sys.stdout.buffer.write(b"".join(value + b"\n" for value in values))
    sys.stdout.buffer.flush()


def confluent(bootstrap: str, group: str, topic: str, stop: threading.Event, protocol: str = "classic") -> None:
    from confluent_kafka import Consumer, KafkaException

    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol}
    settings |= {"auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 3}
    settings |= {"topic.metadata.refresh.interval.ms": METADATA_MS, "reconnect.backoff.max.ms": 500}
    if protocol == "classic":
        settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        settings["partition.assignment.strategy"] = "roundrobin"
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    while not stop.is_set():
        values = [message.value() for message in consumer.consume(200, 0.1) if message.error() is None]
        if values:
            show(values)
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as refused:
                print(refused, file=sys.stderr)
    consumer.close()


def confluent_consumer(bootstrap: str, group: str, topic: str, stop: threading.Event) -> None:
    confluent(bootstrap, group, topic, stop, "consumer")


def python_settings(bootstrap: str, group: str) -> dict[str, Any]:
    """The settings of kafka-python and aiokafka, which have the same names."""
    return {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "metadata_max_age_ms": METADATA_MS,
    }


def subscription(topic: str) -> dict[str, Any]:
    """The arguments of their `subscribe`."""
    return {"pattern": topic} if topic.startswith("^") else {"topics": [topic]}


def kafka_python(bootstrap: str, group: str, topic: str, stop: threading.Event) -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import KafkaError

    consumer = KafkaConsumer(
        partition_assignment_strategy=[RoundRobinPartitionAssignor], **python_settings(bootstrap, group)
    )
    consumer.subscribe(**subscription(topic))
    while not stop.is_set():
        # kafka-python 3.0 loses its assignment if `poll` times out just when the group has been joined.
        # Joining seldom takes as long as this.
        polled = consumer.poll(5000, max_records=200)
        if polled:
            show([record.value for records in polled.values() for record in records])
            try:
                consumer.commit()
            except KafkaError as refused:
                print(refused, file=sys.stderr)
    consumer.close()


def aiokafka(bootstrap: str, group: str, topic: str, stop: threading.Event) -> None:
    asyncio.run(_aiokafka(bootstrap, group, topic, stop))


async def _aiokafka(bootstrap: str, group: str, topic: str, stop: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    consumer = AIOKafkaConsumer(
        partition_assignment_strategy=[RoundRobinPartitionAssignor], **python_settings(bootstrap, group)
    )
    consumer.subscribe(**subscription(topic))
    await consumer.start()
    while not stop.is_set():
        polled = await consumer.getmany(timeout_ms=100, max_records=200)
        if polled:
            show([record.value for records in polled.values() for record in records])
            try:
                await consumer.commit()
            except KafkaError as refused:
                print(refused, file=sys.stderr)
    await consumer.stop()


LIBRARIES: dict[str, Callable[[str, str, str, threading.Event], None]] = {
    "confluent-kafka": confluent,
    "confluent-kafka-consumer": confluent_consumer,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def main(library: str, bootstrap: str, group: str, topic: str) -> None:
    if topic.startswith("^"):
        re.compile(topic)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    LIBRARIES[library](bootstrap, group, topic, stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
