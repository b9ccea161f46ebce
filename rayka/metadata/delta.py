"""The changes that one batch of records makes to an image."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rayka.metadata.records import (
    ActorChangeRecord,
    BrokerFencingRecord,
    ClusterRecord,
    ConfigRecord,
    ConfigResource,
    FeatureLevelRecord,
    IdFloorsRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterActorRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
    UnregisterActorRecord,
    UnregisterBrokerRecord,
)
from rayka.metadata.values import PartitionImage

if TYPE_CHECKING:
    from rayka.metadata.image import MetadataImage


_MAX_DELETED_TOPICS: Final = 10_000


class MetadataDelta:
    """Copies a map of the base image when a record first touches it, and a topic's partitions likewise."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._changes: dict[str, Any] = {}
        self._partitions: dict[str, list[PartitionImage]] = {}

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record. Raises ValueError if it refers to something that does not exist."""
        _REPLAY[type(record)](self, record)

    def finish(self) -> MetadataImage:
        """The image after all records that were replayed."""
        if self._partitions:
            topics = self._map("topics")
            for name, partitions in self._partitions.items():
                topics[name] = replace(topics[name], partitions=tuple(partitions))
        return replace(self._base, **self._changes)

    def _get(self, name: str) -> Any:
        return self._changes[name] if name in self._changes else getattr(self._base, name)

    def _map(self, name: str) -> dict[Any, Any]:
        if name not in self._changes:
            self._changes[name] = dict(getattr(self._base, name))
        changed: dict[Any, Any] = self._changes[name]
        return changed

    def _topic_partitions(self, topic_id: uuid.UUID) -> list[PartitionImage]:
        names: Mapping[uuid.UUID, str] = self._get("topic_names_by_id")
        name = names.get(topic_id)
        if name is None:
            raise ValueError(f"metadata record for unknown topic id {topic_id}")
        if name not in self._partitions:
            self._partitions[name] = list(self._get("topics")[name].partitions)
        return self._partitions[name]

    def _cluster(self, record: ClusterRecord) -> None:
        self._changes["cluster_id"] = record.cluster_id

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        features = self._map("features")
        if record.feature_level:
            features[record.name] = record.feature_level
        else:
            features.pop(record.name, None)

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        broker = record.image
        self._map("brokers")[broker.broker_id] = broker
        self._id_floors(IdFloorsRecord(broker.broker_id + 1, broker.epoch + 1))

    def _id_floors(self, record: IdFloorsRecord) -> None:
        self._changes["next_broker_id"] = max(self._get("next_broker_id"), record.next_broker_id)
        self._changes["next_broker_epoch"] = max(self._get("next_broker_epoch"), record.next_broker_epoch)

    def _broker_fencing(self, record: BrokerFencingRecord) -> None:
        brokers = self._map("brokers")
        if record.broker_id not in brokers:
            raise ValueError(f"metadata record for unknown broker {record.broker_id}")
        brokers[record.broker_id] = replace(brokers[record.broker_id], fenced=record.fenced)

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._map("brokers").pop(record.broker_id, None)

    def _register_actor(self, record: RegisterActorRecord) -> None:
        self._map("actors")[record.image.name] = record.image

    def _actor_change(self, record: ActorChangeRecord) -> None:
        actors = self._map("actors")
        if record.name not in actors:
            raise ValueError(f"metadata record for unknown actor {record.name}")
        actors[record.name] = replace(actors[record.name], epoch=record.epoch, online=record.online)

    def _unregister_actor(self, record: UnregisterActorRecord) -> None:
        self._map("actors").pop(record.name, None)

    def _topic(self, record: TopicRecord) -> None:
        self._map("topics")[record.image.name] = record.image
        self._map("topic_names_by_id")[record.image.topic_id] = record.image.name

    def _partition(self, record: PartitionRecord) -> None:
        partitions = self._topic_partitions(record.topic_id)
        number = record.image.partition
        if number > len(partitions):
            raise ValueError(f"metadata record skips a partition: {record}")
        partitions[number : number + 1] = [record.image]

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        partitions = self._topic_partitions(record.topic_id)
        if record.partition >= len(partitions):
            raise ValueError(f"metadata record for unknown partition: {record}")
        partitions[record.partition] = replace(partitions[record.partition], **record.changes)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        """A topic that is not known is one of a snapshot's deleted topics with tiered storage."""
        name = self._map("topic_names_by_id").pop(record.topic_id, None)
        if name is None:
            self._remember_tiered(record.topic_id)
            return
        self._map("topics").pop(name)
        self._partitions.pop(name, None)
        resource = ConfigResource(ResourceType.TOPIC, name)
        if resource in self._get("configs"):
            configs = self._map("configs").pop(resource)
            if any(config.startswith("remote.") for config in configs):
                self._remember_tiered(record.topic_id)

    def _remember_tiered(self, topic_id: uuid.UUID) -> None:
        deleted = self._map("deleted_tiered_topics")
        deleted[topic_id] = None
        if len(deleted) > _MAX_DELETED_TOPICS:
            deleted.pop(next(iter(deleted)))

    def _config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(ResourceType(record.resource_type), record.resource_name)
        configs = self._map("configs")
        values = dict(configs.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            configs[resource] = values
        else:
            configs.pop(resource, None)

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        self._changes["next_producer_id"] = record.next_producer_id


_REPLAY: Mapping[type, Callable[[MetadataDelta, Any], None]] = {
    ClusterRecord: MetadataDelta._cluster,
    FeatureLevelRecord: MetadataDelta._feature_level,
    RegisterBrokerRecord: MetadataDelta._register_broker,
    BrokerFencingRecord: MetadataDelta._broker_fencing,
    UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    RegisterActorRecord: MetadataDelta._register_actor,
    ActorChangeRecord: MetadataDelta._actor_change,
    UnregisterActorRecord: MetadataDelta._unregister_actor,
    TopicRecord: MetadataDelta._topic,
    PartitionRecord: MetadataDelta._partition,
    PartitionChangeRecord: MetadataDelta._partition_change,
    RemoveTopicRecord: MetadataDelta._remove_topic,
    ConfigRecord: MetadataDelta._config,
    ProducerIdsRecord: MetadataDelta._producer_ids,
    IdFloorsRecord: MetadataDelta._id_floors,
}
