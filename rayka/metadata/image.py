"""The cluster as the metadata records describe it: an immutable value.

`apply_all` copies each map that a batch changes once, so a batch that creates a thousand partitions costs
one copy. Readers may keep an older image.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rayka.metadata.delta import MetadataDelta
from rayka.metadata.records import ConfigResource, MetadataRecord, ResourceType
from rayka.metadata.values import ActorImage, BrokerImage, PartitionImage, TopicImage
from rayka.types import TopicPartition

__all__ = ["ActorImage", "BrokerImage", "MetadataImage", "PartitionImage", "TopicImage"]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class MetadataImage:
    """Everything that the records up to `version` (the number of batches applied) say."""

    version: int = 0
    cluster_id: str = ""
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names_by_id: Mapping[uuid.UUID, str] = field(default_factory=dict)
    actors: Mapping[str, ActorImage] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    next_broker_epoch: int = 0
    next_broker_id: int = 1
    deleted_tiered_topics: Mapping[uuid.UUID, None] = field(default_factory=dict)
    """The topics deleted last of those with settings of tiered storage: the remote store may still have segments."""

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicImage | None:
        """The topic with this id, None if there is none."""
        name = self.topic_names_by_id.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """The partition, None if there is none."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The topic's own configs (overrides)."""
        return self.configs.get(ConfigResource(ResourceType.TOPIC, name), {})

    def broker_configs(self, broker_id: int) -> Mapping[str, str]:
        """The dynamic configs that hold for a broker: those of all brokers, overridden by its own."""
        return {**self.default_broker_configs, **self.own_broker_configs(broker_id)}

    @property
    def default_broker_configs(self) -> Mapping[str, str]:
        """The dynamic configs of all brokers."""
        return self.configs.get(ConfigResource(ResourceType.BROKER, ""), {})

    def own_broker_configs(self, broker_id: int) -> Mapping[str, str]:
        """The dynamic configs of one broker only."""
        return self.configs.get(ConfigResource(ResourceType.BROKER, str(broker_id)), {})

    def replicas_of_actor(self, name: str) -> list[tuple[TopicImage, PartitionImage]]:
        """The partitions of which this actor holds a replica, by topic name and partition."""
        return [
            (topic, partition)
            for topic in self.topics.values()
            for partition in topic.partitions
            if name in partition.actors
        ]

    def apply(self, record: MetadataRecord) -> MetadataImage:
        """The image after one more record; its version is one higher."""
        return self.apply_all((record,))

    def apply_all(self, records: Iterable[MetadataRecord]) -> MetadataImage:
        """The image after a batch of records; its version is one higher.

        Raises ValueError if a record refers to something that does not exist: the log is damaged.
        """
        delta = MetadataDelta(self)
        for record in records:
            delta.replay(record)
        return replace(delta.finish(), version=self.version + 1)
