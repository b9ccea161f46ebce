"""Metadata records: the facts that the controller writes down.

Everything that the cluster knows about itself is a sequence of these records. A record says what is now
so (a leader, an epoch, a value), never how to compute it, so that applying one twice changes nothing.

A record that makes something carries the whole value (`rayka.metadata.values`). Their bytes: `rayka.metadata.codec`.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from rayka.metadata.values import ActorImage, BrokerImage, PartitionImage, TopicImage


class ResourceType(enum.IntEnum):
    """What a configuration belongs to, with the protocol's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """The owner of a set of configs. A BROKER with an empty name means all brokers."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The identity of the cluster; the first record of a metadata log."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """The finalized level of a feature such as `transaction.version` (KIP-584); 0 removes it."""

    name: str
    feature_level: int


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """A node of the cluster with the address that clients are given."""

    image: BrokerImage


@dataclass(frozen=True, slots=True)
class BrokerFencingRecord:
    """A broker was found dead (fenced) or alive again."""

    broker_id: int
    broker_epoch: int
    fenced: bool


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    """A broker was removed from the cluster."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class RegisterActorRecord:
    """A partition actor came up."""

    image: ActorImage


@dataclass(frozen=True, slots=True)
class ActorChangeRecord:
    """An actor was found dead, or serving again in the same epoch."""

    name: str
    epoch: int
    online: bool


@dataclass(frozen=True, slots=True)
class UnregisterActorRecord:
    """An actor without replicas was retired."""

    name: str


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic begins to exist; its partitions follow in records of their own."""

    image: TopicImage


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition begins to exist."""

    topic_id: uuid.UUID
    image: PartitionImage


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """The fields of a partition that changed, by name."""

    topic_id: uuid.UUID
    partition: int
    changes: Mapping[str, Any]

    @classmethod
    def between(cls, topic_id: uuid.UUID, before: PartitionImage, after: PartitionImage) -> PartitionChangeRecord:
        """What leads from one state of a partition to another, in the next partition epoch."""
        after = replace(after, partition_epoch=before.partition_epoch + 1)
        names = (field.name for field in fields(PartitionImage))
        changes = {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}
        return cls(topic_id, before.partition, changes)


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic with all its partitions and configs is gone."""

    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A dynamic config of a resource; a value of None removes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """All producer ids below `next_producer_id` are given away (KIP-730)."""

    next_producer_id: int
    broker_id: int = -1


@dataclass(frozen=True, slots=True)
class IdFloorsRecord:
    """Broker ids and epochs below these were given away; part of a snapshot, since their brokers may be gone."""

    next_broker_id: int
    next_broker_epoch: int


MetadataRecord = (
    ClusterRecord
    | FeatureLevelRecord
    | RegisterBrokerRecord
    | BrokerFencingRecord
    | UnregisterBrokerRecord
    | RegisterActorRecord
    | ActorChangeRecord
    | UnregisterActorRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | ProducerIdsRecord
    | IdFloorsRecord
)

KINDS: Mapping[str, type[MetadataRecord]] = {
    "cluster": ClusterRecord,
    "feature-level": FeatureLevelRecord,
    "register-broker": RegisterBrokerRecord,
    "broker-fencing": BrokerFencingRecord,
    "unregister-broker": UnregisterBrokerRecord,
    "register-actor": RegisterActorRecord,
    "actor-change": ActorChangeRecord,
    "unregister-actor": UnregisterActorRecord,
    "topic": TopicRecord,
    "partition": PartitionRecord,
    "partition-change": PartitionChangeRecord,
    "remove-topic": RemoveTopicRecord,
    "config": ConfigRecord,
    "producer-ids": ProducerIdsRecord,
    "id-floors": IdFloorsRecord,
}
