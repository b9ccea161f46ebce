"""An image as the shortest list of records that gives it again."""

from __future__ import annotations

from collections.abc import Iterator

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
    TopicRecord,
)


def snapshot_records(image: MetadataImage) -> tuple[MetadataRecord, ...]:
    """The records from which an empty image becomes this one, but for its version."""
    return tuple(_records(image))


def _records(image: MetadataImage) -> Iterator[MetadataRecord]:
    yield ClusterRecord(image.cluster_id)
    yield from (FeatureLevelRecord(name, level) for name, level in image.features.items())
    yield from _nodes(image)
    for topic in image.topics.values():
        yield TopicRecord(topic.name, topic.topic_id, topic.is_internal)
        for partition in topic.partitions:
            yield PartitionRecord(
                topic_id=topic.topic_id,
                partition=partition.partition,
                replicas=partition.replicas,
                isr=partition.isr,
                actors=partition.actors,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
            )
    for resource, configs in image.configs.items():
        yield from (ConfigRecord(int(resource.type), resource.name, name, value) for name, value in configs.items())
    yield ProducerIdsRecord(image.next_producer_id)
    yield IdFloorsRecord(image.next_broker_id, image.next_broker_epoch)


def _nodes(image: MetadataImage) -> Iterator[MetadataRecord]:
    for broker in image.brokers.values():
        yield RegisterBrokerRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,
            node_id=broker.node_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            fenced=broker.fenced,
            directory_ids=broker.directory_ids,
            log_dirs=broker.log_dirs,
        )
    for actor in image.actors.values():
        yield RegisterActorRecord(
            name=actor.name,
            broker_id=actor.broker_id,
            log_dir=actor.log_dir,
            epoch=actor.epoch,
            incarnation=actor.incarnation,
            online=actor.online,
        )
