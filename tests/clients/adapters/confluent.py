"""confluent-kafka: librdkafka of today."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from tests.clients.record import Record, Refused

TIMEOUT_S = 120.0


def refused(error: KafkaError) -> Refused:
    return Refused(error.code(), error.str())


def done(futures: dict[Any, Any]) -> Any:
    """The answer to an admin request about one thing."""
    (future,) = futures.values()
    try:
        return future.result(TIMEOUT_S)
    except KafkaException as failure:
        raise refused(failure.args[0]) from failure


def to_record(message: Message) -> Record:
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Record(message.key(), message.value(), headers, message.timestamp()[1], message.offset())


class Confluent:
    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.producers: dict[frozenset[tuple[str, Any]], Producer] = {}

    def producer(self, settings: dict[str, Any]) -> Producer:
        """One for each set of settings: a new idempotent producer of this library takes half a second to begin."""
        key = frozenset(settings.items())
        if key not in self.producers:
            self.producers[key] = Producer(
                {"bootstrap.servers": self.bootstrap, "delivery.timeout.ms": 120_000, "log_level": 0, **settings}
            )
        return self.producers[key]

    def consumer(self, **settings: Any) -> Consumer:
        """A consumer that is only ever assigned: the group id is demanded by the library and never used."""
        defaults = {"group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "error", "log_level": 0}
        return Consumer({"bootstrap.servers": self.bootstrap, **defaults, **settings})

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
        offsets: list[int] = []
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(message.offset())

        options = {"compression.type": codec, "acks": acks, "enable.idempotence": acks == -1}
        # `flush` sends at once: until then no batch ends early because this thread had to wait for its turn.
        options = {"message.max.bytes": 20_000_000, "linger.ms": 60_000, **options, **settings}
        producer = self.producer(options)
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=delivered,
                timestamp=record.timestamp or 0,
                headers=list(record.headers),
            )
        assert producer.flush(TIMEOUT_S) == 0
        if errors:
            self.producers.clear()
            raise refused(errors[0])
        return offsets if acks else []

    def fetch(self, topic: str, *, partition: int = 0, offset: int = 0, count: int, **settings: Any) -> list[Record]:
        consumer = self.consumer(**settings)
        consumer.assign([TopicPartition(topic, partition, offset)])
        deadline = time.monotonic() + TIMEOUT_S
        records: list[Record] = []
        try:
            while len(records) < count:
                assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
                for message in consumer.consume(count - len(records), 1.0):
                    if message.error():
                        raise refused(message.error())
                    records.append(to_record(message))
        finally:
            consumer.close()
        return records

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = self.consumer()
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        except KafkaException as failure:
            raise refused(failure.args[0]) from failure
        finally:
            consumer.close()
        return low, high

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        consumer = self.consumer()
        (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp)], TIMEOUT_S)
        consumer.close()
        return None if found.offset in (OFFSET_INVALID, -1) else found.offset

    def create_topic(
        self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None, **options: Any
    ) -> None:
        done(self.admin.create_topics([NewTopic(topic, partitions, 1, config=configs or {})], **options))

    def delete_topic(self, topic: str) -> None:
        done(self.admin.delete_topics([topic]))

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=TIMEOUT_S).topics)

    def partition_count(self, topic: str) -> int:
        return len(self.admin.list_topics(timeout=TIMEOUT_S).topics[topic].partitions)

    def create_partitions(self, topic: str, total: int, **options: Any) -> None:
        done(self.admin.create_partitions([NewPartitions(topic, total)], **options))

    def config_entries(self, kind: ConfigResource.Type, name: str) -> dict[str, ConfigEntry]:
        entries: dict[str, ConfigEntry] = done(self.admin.describe_configs([ConfigResource(kind, name)]))
        return entries

    def topic_configs(self, topic: str) -> dict[str, str]:
        return {name: entry.value for name, entry in self.config_entries(ConfigResource.Type.TOPIC, topic).items()}

    def alter_topic_configs(self, topic: str, configs: dict[str, str]) -> None:
        self.alter_incrementally(ConfigResource.Type.TOPIC, topic, configs, AlterConfigOpType.SET)

    def alter_incrementally(
        self,
        kind: ConfigResource.Type,
        name: str,
        configs: dict[str, str | None],
        operation: AlterConfigOpType,
        **options: Any,
    ) -> None:
        entries = [ConfigEntry(key, value, incremental_operation=operation) for key, value in configs.items()]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        done(self.admin.incremental_alter_configs([resource], **options))

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> int:
        deleted = done(self.admin.delete_records([TopicPartition(topic, partition, before_offset)]))
        return int(deleted.low_watermark)
