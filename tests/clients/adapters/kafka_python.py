"""kafka-python 3."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import BrokerResponseError

from tests.clients.record import Record, Refused

TIMEOUT_S = 120.0


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except BrokerResponseError as failure:
        raise Refused(failure.errno, str(failure)) from failure


class KafkaPython:
    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            with refusals():
                yield client
        finally:
            client.close()

    @contextmanager
    def consumer(self, **settings: Any) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None, **settings)
        try:
            with refusals():
                yield consumer
        finally:
            consumer.close()

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: int = -1,
        **settings: Any,
    ) -> list[int]:
        options = {
            "compression_type": None if codec == "none" else codec,
            "acks": acks,
            "enable_idempotence": acks == -1,
            "max_request_size": 20_000_000,
            "linger_ms": 5,
        }
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, **{**options, **settings})
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            producer.flush(TIMEOUT_S)
            with refusals():
                offsets = [future.get(TIMEOUT_S).offset for future in futures]
        finally:
            producer.close()
        return offsets if acks else []

    def fetch(self, topic: str, *, partition: int = 0, offset: int = 0, count: int, **settings: Any) -> list[Record]:
        deadline = time.monotonic() + TIMEOUT_S
        records: list[Record] = []
        with self.consumer(**{"auto_offset_reset": "none", **settings}) as consumer:
            consumer.assign([TopicPartition(topic, partition)])
            consumer.seek(TopicPartition(topic, partition), offset)
            while len(records) < count:
                assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
                for batch in consumer.poll(1000, max_records=count - len(records)).values():
                    records += [
                        Record(got.key, got.value, tuple(map(tuple, got.headers)), got.timestamp, got.offset)
                        for got in batch
                    ]
        return records

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        where = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            return consumer.beginning_offsets([where])[where], consumer.end_offsets([where])[where]

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        where = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            found = consumer.offsets_for_times({where: timestamp})[where]
        return None if found is None else found.offset

    def create_topic(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        with self.admin() as admin:
            admin.create_topics(
                {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": configs or {}}},
                wait_for_metadata=False,
            )

    def delete_topic(self, topic: str) -> None:
        with self.admin() as admin:
            admin.delete_topics([topic])

    def topics(self) -> set[str]:
        with self.admin() as admin:
            return set(admin.list_topics())

    def partition_count(self, topic: str) -> int:
        with self.admin() as admin:
            (described,) = admin.describe_topics([topic])
        return len(described["partitions"])

    def create_partitions(self, topic: str, total: int) -> None:
        with self.admin() as admin:
            admin.create_partitions({topic: total})

    def topic_configs(self, topic: str) -> dict[str, str]:
        with self.admin() as admin:
            described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        return {name: entry["value"] for name, entry in described["topic"][topic].items()}

    def alter_topic_configs(self, topic: str, configs: dict[str, str]) -> None:
        with self.admin() as admin:
            result = admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(configs))])
        if result["topic"][topic] != "OK":
            raise Refused(None, result["topic"][topic])

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> None:
        with self.admin() as admin:
            admin.delete_records({TopicPartition(topic, partition): before_offset})
