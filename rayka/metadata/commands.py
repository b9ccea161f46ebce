"""Requests to the controller, and its responses."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from rayka.config import ConfigEntry
from rayka.errors import ErrorCode
from rayka.metadata.records import ConfigResource, MetadataRecord
from rayka.metadata.values import UNASSIGNED

Response = TypeVar("Response", covariant=True)
PRODUCER_ID_BLOCK_SIZE = 1000


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[Response]):
    """Records to append and replay, and the response to send afterwards. Without effect there are no records."""

    records: tuple[MetadataRecord, ...]
    response: Response


class ControllerRequest(Generic[Response]):
    """What a process asks of the controller; `Response` is the type of the answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 means the broker's default; with `assignments` (partition -> broker ids,
    preferred leader first) both numbers must be -1."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The outcome for one topic. `num_partitions`, `replication_factor` and `configs` (every entry that
    DescribeConfigs would show) are known after a successful CreateTopics only."""

    name: str | None
    topic_id: uuid.UUID | None = None
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic's new total number of partitions; `assignments` holds the broker ids of each added one."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


class AlterOperation(enum.IntEnum):
    """The operations of IncrementalAlterConfigs (KIP-339); APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigOperation(NamedTuple):
    """One change to one config. `operation` is kept as the number that the client sent."""

    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigAlteration:
    """Changes to a resource's configs, applied together or not at all."""

    resource: ConfigResource
    operations: tuple[ConfigOperation, ...]


@dataclass(frozen=True, slots=True)
class ConfigReplacement:
    """All dynamic configs of a resource, replacing those that it has (the AlterConfigs API)."""

    resource: ConfigResource
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """The outcome for one resource."""

    resource: ConfigResource
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A node that wants to be a broker.

    `broker_id` -1 asks for the id that its directories had before, or a new one. `directory_ids` are the
    ids in the directories' meta.properties. `node_id` is Ray's id of the node, new at each start of it: the
    same registration with the same node id changes nothing.
    """

    node_id: str
    host: str
    port: int
    broker_id: int = -1
    rack: str | None = None
    directory_ids: tuple[str, ...] = ()
    log_dirs: tuple[str, ...] = ()


class BrokerRegistered(NamedTuple):
    """The id and epoch that a broker got."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ActorRegistration(ControllerRequest["ActorRegistered"]):
    """A partition actor that is ready to serve the replicas in `log_dir`, whose id is `directory_id`.

    `incarnation` is new for each start of the process, so that a registration delivered twice counts once.
    """

    name: str
    broker_id: int
    log_dir: str
    incarnation: str
    directory_id: uuid.UUID = UNASSIGNED


@dataclass(frozen=True, slots=True)
class AssignReplicasToDirs(ControllerRequest[None]):
    """Where an actor has its replicas (topic id, partition): its own directory, or LOST (KIP-858)."""

    actor: str
    incarnation: str
    directories: Mapping[tuple[uuid.UUID, int], uuid.UUID]


class ActorRegistered(NamedTuple):
    """The epoch of this start of the actor."""

    epoch: int


class ProducerIdBlock(NamedTuple):
    """Producer ids `first` to `first + size - 1`, given to one broker."""

    first: int
    size: int


@dataclass(frozen=True, slots=True)
class ActorDied(ControllerRequest[None]):
    """A partition actor serves no longer; `epoch` is the one in which it had registered."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class CreateTopics(ControllerRequest[list[TopicResult]]):
    """Create topics, or only say whether they could be created."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopics(ControllerRequest[list[TopicResult]]):
    """Delete topics, given by name or by id."""

    topics: tuple[str | uuid.UUID, ...]


@dataclass(frozen=True, slots=True)
class CreatePartitions(ControllerRequest[list[TopicResult]]):
    """Raise the numbers of partitions of topics, or only say whether they could be raised."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigs(ControllerRequest[list[ConfigResult]]):
    """Change single configs of resources (KIP-339)."""

    alterations: tuple[ConfigAlteration, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigs(ControllerRequest[list[ConfigResult]]):
    """Replace all dynamic configs of resources."""

    replacements: tuple[ConfigReplacement, ...]
    validate_only: bool = False


class UpgradeType(enum.IntEnum):
    """What an update may do to a feature's level (KIP-584)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A level that a feature is to have; 0 turns it off. `upgrade_type` is a value of `UpgradeType`."""

    feature: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True)
class UpdateFeatures(ControllerRequest[None]):
    """Change the levels of features: all, or with an error none. Or only say whether they could be changed."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class ReadVersion(ControllerRequest[int]):
    """The version of the newest metadata."""


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(ControllerRequest[ProducerIdBlock]):
    """Producer ids that no other process gets, for the producers that a broker serves."""

    broker_id: int
