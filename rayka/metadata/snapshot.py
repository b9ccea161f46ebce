"""An image as the shortest list of records whose replay results in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rayka.metadata.image import MetadataImage
from rayka.metadata.records import (
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    IdFloorsRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterActorRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)


def snapshot_records(image: MetadataImage) -> tuple[MetadataRecord, ...]:
    """The records from which an empty image becomes this one, but for its version."""
    return tuple(_records(image))


def _records(image: MetadataImage) -> Iterator[MetadataRecord]:
    yield ClusterRecord(image.cluster_id)
    yield from (FeatureLevelRecord(name, level) for name, level in image.features.items())
    yield from map(RegisterBrokerRecord, image.brokers.values())
    yield from map(RegisterActorRecord, image.actors.values())
    for topic in image.topics.values():
        yield TopicRecord(replace(topic, partitions=()))
        yield from (PartitionRecord(topic.topic_id, partition) for partition in topic.partitions)
    for resource, configs in image.configs.items():
        yield from (ConfigRecord(int(resource.type), resource.name, name, value) for name, value in configs.items())
    yield from map(RemoveTopicRecord, image.deleted_tiered_topics)
    yield ProducerIdsRecord(image.next_producer_id)
    yield IdFloorsRecord(image.next_broker_id, image.next_broker_epoch)
