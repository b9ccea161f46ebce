"""A thousand partitions on one node: there in seconds, again after kill -9, and cheap."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rayka.testing import BrokerProcess, memory_bytes
from tests.faults.load import create_topic

PARTITIONS = 1000
WRITTEN = range(0, PARTITIONS, 8)
RECORDS = 5
CREATED_WITHIN_S = 10.0
SERVED_WITHIN_S = 15.0
ALL_PROCESSES_BYTES = 1_500_000_000
PARTITION_BYTES = 150_000
"""A Python actor for each partition would take 400 times as much."""


def memory(broker: BrokerProcess) -> int:
    return memory_bytes(broker.processes())


def produce(broker: BrokerProcess, topic: str, values: range) -> None:
    """`values` to each partition that is written to, all acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "log_level": 0})
    failed: list[object] = []
    for partition in WRITTEN:
        for value in values:
            producer.produce(
                topic,
                str(value),
                partition=partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
    assert producer.flush(30) == 0
    assert not failed


def read(broker: BrokerProcess, topic: str, count: int) -> dict[int, list[bytes]]:
    """The values of each partition that is written to, `count` in all."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {}
    deadline = time.monotonic() + 30
    while sum(map(len, found.values())) < count:
        assert time.monotonic() < deadline, f"{sum(map(len, found.values()))} of {count} records"
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None
            found.setdefault(message.partition() or 0, []).append(message.value() or b"")
    consumer.close()
    return found


@pytest.mark.alone
def test_a_thousand_partitions_on_one_node(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    try:
        before = memory(broker)
        started = time.monotonic()
        create_topic(broker.bootstrap, "many", PARTITIONS)
        assert time.monotonic() - started < CREATED_WITHIN_S
        produce(broker, "many", range(RECORDS))
        assert memory(broker) - before < PARTITIONS * PARTITION_BYTES
    finally:
        broker.kill()
    started = time.monotonic()
    again = BrokerProcess(tmp_path).start()
    try:
        produce(again, "many", range(RECORDS, 2 * RECORDS))
        assert time.monotonic() - started < SERVED_WITHIN_S
        values = [str(value).encode() for value in range(2 * RECORDS)]
        found = read(again, "many", 2 * RECORDS * len(WRITTEN))
        assert found == dict.fromkeys(WRITTEN, values)
        admin = AdminClient({"bootstrap.servers": again.bootstrap, "log_level": 0})
        leaders = admin.list_topics("many", 20).topics["many"].partitions
        assert len(leaders) == PARTITIONS
        assert all(partition.leader >= 0 for partition in leaders.values())
        assert memory(again) < ALL_PROCESSES_BYTES
    finally:
        again.stop()
    assert again.exit_code == 0
