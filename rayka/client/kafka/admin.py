"""Topics, settings and records, by Kafka's admin requests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from rayka.client.kafka.cluster import KafkaCluster, raise_for
from rayka.client.kafka.connection import BrokerConnection, entity
from rayka.client.kafka.values import Config, TopicDescription
from rayka.errors import ErrorCode, RaykaError
from rayka.types import IsolationLevel, TopicPartition

_TIMEOUT = timedelta(seconds=30)
_NO_ID = uuid.UUID(int=0)
_SET, _DELETE = 0, 1
_SOURCES = (
    "UNKNOWN",
    "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER_CONFIG",
    "DEFAULT_CONFIG",
    "DYNAMIC_BROKER_LOGGER_CONFIG",
    "CLIENT_METRICS_CONFIG",
    "GROUP_CONFIG",
)


class Resource(NamedTuple):
    """What has settings, with the protocol's number: a topic, a broker (name "" stands for all of them), a group."""

    kind: int
    name: str

    def __str__(self) -> str:
        kinds = {2: "topic", 4: "broker", 32: "group"}
        return "all brokers" if self == (4, "") else f"{kinds[self.kind]} {self.name}"


TOPIC, BROKER, GROUP = 2, 4, 32


class Created(NamedTuple):
    """The outcome of creating a topic."""

    name: str
    error: ErrorCode
    message: str
    partitions: int


class KafkaAdmin:
    """Kafka's admin requests. Every method raises RaykaError with Kafka's code."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        """These topics in the order given, or all in order of their names. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        found = self._cluster.metadata(names).topics
        return [found[name] for name in (sorted(found) if names is None else dict.fromkeys(names))]

    def create_topics(
        self, names: Sequence[str], partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> list[Created]:
        """Create topics, all with the same settings; -1 means the broker's default."""
        from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

        settings = tuple(entity(CreatableTopicConfig, name, value) for name, value in configs.items())
        topics = tuple(entity(CreatableTopic, name, partitions, replication_factor, (), settings) for name in names)
        request = entity(CreateTopicsRequest, topics, _TIMEOUT, False)
        return [
            Created(one.name, ErrorCode(one.error_code), one.error_message or "", one.num_partitions)
            for one in self._from_controller(request).topics
        ]

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics and their records."""
        from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState

        topics = tuple(entity(DeleteTopicState, name, _NO_ID) for name in names)
        request = entity(DeleteTopicsRequest, topics, _TIMEOUT)
        for one in self._from_controller(request).responses:
            raise_for(one.error_code, f"can't delete {one.name}: " + _reason(one.error_code, one.error_message))

    def create_partitions(self, name: str, count: int) -> None:
        """Raise a topic's number of partitions to `count`."""
        from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic

        topic = entity(CreatePartitionsTopic, name, count, None)
        response = self._from_controller(entity(CreatePartitionsRequest, (topic,), _TIMEOUT, False))
        for one in response.results:
            what = f"can't add partitions to {one.name}: "
            raise_for(one.error_code, what + _reason(one.error_code, one.error_message))

    def describe_configs(self, resource: Resource) -> list[Config]:
        """The settings of a resource, in order of their names."""
        from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource

        wanted = entity(DescribeConfigsResource, resource.kind, resource.name, None)
        (found,) = self._from_owner(resource, entity(DescribeConfigsRequest, (wanted,), False, True)).results
        raise_for(found.error_code, found.error_message or f"{resource} cannot be described")
        return sorted(
            Config(one.name, one.value, _SOURCES[one.config_source], one.read_only, one.is_sensitive, one.documentation)
            for one in found.configs
        )

    def alter_configs(self, resource: Resource, changes: Mapping[str, str | None]) -> None:
        """Change settings of a resource; None restores the default. The others stay as they are."""
        from kio.schema.incremental_alter_configs.v1.request import (
            AlterableConfig,
            AlterConfigsResource,
            IncrementalAlterConfigsRequest,
        )

        operations = tuple(
            entity(AlterableConfig, name, _DELETE if value is None else _SET, value) for name, value in changes.items()
        )
        wanted = entity(AlterConfigsResource, resource.kind, resource.name, operations)
        (found,) = self._from_owner(resource, entity(IncrementalAlterConfigsRequest, (wanted,), False)).responses
        raise_for(found.error_code, found.error_message or f"{resource} cannot be changed")

    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timestamp: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """The first offset at or after `timestamp` (ms since the epoch, or an `OffsetSpec`); -1 where there is none."""
        from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

        def ask(leader: BrokerConnection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
            topics = tuple(
                entity(
                    ListOffsetsTopic,
                    topic,
                    tuple(entity(ListOffsetsPartition, number, -1, timestamp) for number in numbers),
                )
                for topic, numbers in by_topic(led).items()
            )
            response = leader.request(entity(ListOffsetsRequest, -1, int(isolation), topics))
            found = {}
            for topic in response.topics:
                for one in topic.partitions:
                    topic_partition = TopicPartition(topic.name, one.partition_index)
                    raise_for(one.error_code, f"offsets of {topic_partition} cannot be looked up")
                    found[topic_partition] = one.offset
            return found

        return self._cluster.by_leader(partitions, ask)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before these offsets (-1: all); returns the new log start offsets."""
        from kio.schema.delete_records.v2.request import (
            DeleteRecordsPartition,
            DeleteRecordsRequest,
            DeleteRecordsTopic,
        )

        def ask(leader: BrokerConnection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
            topics = nested(
                DeleteRecordsTopic,
                DeleteRecordsPartition,
                {topic_partition: (offsets[topic_partition],) for topic_partition in led},
            )
            response = leader.request(entity(DeleteRecordsRequest, topics, _TIMEOUT))
            found = {}
            for topic in response.topics:
                for one in topic.partitions:
                    topic_partition = TopicPartition(topic.name, one.partition_index)
                    raise_for(
                        one.error_code,
                        f"records of {topic_partition} before offset {offsets[topic_partition]} cannot be deleted",
                    )
                    found[topic_partition] = one.low_watermark
            return found

        return self._cluster.by_leader(offsets, ask)

    def _from_controller(self, request: Any) -> Any:
        return self._cluster.controller().request(request)

    def _from_owner(self, resource: Resource, request: Any) -> Any:
        """A broker answers for its own settings; anything else any broker can answer."""
        if resource.kind != BROKER or not resource.name:
            return self._cluster.any_broker().request(request)
        broker = self._cluster.metadata().brokers.get(int(resource.name))
        if broker is None:
            raise RaykaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {resource.name}")
        return self._cluster.broker(broker).request(request)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions' numbers by topic."""
    topics: dict[str, list[int]] = {}
    for topic_partition in partitions:
        topics.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    return topics


def nested(topic_class: Any, partition_class: Any, fields: Mapping[TopicPartition, Sequence[Any]]) -> tuple[Any, ...]:
    """Topics with their partitions as requests hold them; `fields` follow the partition's number."""
    return tuple(
        entity(
            topic_class,
            topic,
            tuple(entity(partition_class, number, *fields[TopicPartition(topic, number)]) for number in numbers),
        )
        for topic, numbers in by_topic(fields).items()
    )


def _reason(code: int, message: str | None) -> str:
    return message or (ErrorCode(code).name if code else "")
