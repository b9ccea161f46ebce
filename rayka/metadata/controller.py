"""The controller's core: commands in, records and responses out.

A command reads the image and changes nothing. The shell appends its records to the metadata log, passes them
to `replay`, and then sends the response. If the disk fails in between, the state is unchanged. Loading the log
after a crash uses the same `replay`.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rayka.config import BrokerConfig, ConfigDef
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import (
    PRODUCER_ID_BLOCK_SIZE,
    ActorRegistered,
    ActorRegistration,
    AssignReplicasToDirs,
    BrokerRegistered,
    BrokerRegistration,
    ConfigAlteration,
    ConfigReplacement,
    ConfigResult,
    ControllerResult,
    NewPartitions,
    NewTopic,
    ProducerIdBlock,
    TopicResult,
    UpdateFeatures,
)
from rayka.metadata.config_changes import ConfigChanges
from rayka.metadata.features import update_features
from rayka.metadata.image import MetadataImage
from rayka.metadata.internal_topics import MIN_ISR
from rayka.metadata.nodes import Nodes
from rayka.metadata.records import (
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    ResourceType,
)
from rayka.metadata.topics import TopicCreation, create_partitions, delete_topics
from rayka.metadata.validation import validate_image

KEPT_BATCHES = 1000
KEPT_REMOVALS = 10_000
"""Of how many deleted topics followers that get the image hear, beside it, that they were deleted."""


class Position(NamedTuple):
    """The last version of the image that a follower has applied. The default is for a follower that has none.

    `incarnation` names the start of the controller from which the follower heard last.
    """

    cluster_id: str = ""
    incarnation: str = ""
    version: int = -1


class RemovedTopic(NamedTuple):
    """A topic that was deleted, and the version of the image that first had it no longer."""

    version: int
    topic_id: uuid.UUID


class Changes(NamedTuple):
    """What a follower lacked: the batches of records since its version, or, if that was too long ago, the image.

    `position` is the follower's position after it has applied them. `removed` are topics that were deleted since its
    version; absence from the image alone is not a deletion.
    """

    position: Position
    snapshot: MetadataImage | None
    batches: tuple[tuple[MetadataRecord, ...], ...]
    removed: tuple[RemovedTopic, ...] = ()


def removed_topics(version: int, records: Iterable[MetadataRecord]) -> list[RemovedTopic]:
    """The topics that one batch of records removes; `version` is that of the image after it."""
    return [RemovedTopic(version, each.topic_id) for each in records if isinstance(each, RemoveTopicRecord)]


class HistoryLost(RaykaError):
    """A follower has seen changes that the metadata log does not have: the log went back."""

    def __init__(self, position: Position, version: int) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the metadata log went back: a follower has version {position.version}, the log had {version}",
        )


class Controller:
    """`configs` are the texts of the broker's settings; `group_configs` what can be set for a group.

    `image` is what the metadata log gave, with the topics that its records `removed`; `incarnation` names this start of
    the controller.
    """

    def __init__(
        self,
        image: MetadataImage,
        configs: Mapping[str, str],
        group_configs: Mapping[str, ConfigDef] | None = None,
        incarnation: str = "",
        removed: Iterable[RemovedTopic] = (),
    ) -> None:
        self.image = image
        self.incarnation = incarnation
        self._loaded_version = image.version
        self._static = BrokerConfig.parse(configs)
        self._config = self._static.with_dynamic(image.default_broker_configs)
        self._group_configs = group_configs or {}
        self._recent: deque[tuple[MetadataRecord, ...]] = deque(maxlen=KEPT_BATCHES)
        self._removed = deque(removed, maxlen=KEPT_REMOVALS)

    def replay(self, records: Sequence[MetadataRecord]) -> None:
        """Apply one batch: the records of one command, which are in the log."""
        before = self.image
        self.image = before.apply_all(records)
        self._recent.append(tuple(records))
        self._removed += removed_topics(self.image.version, records)
        if self.image.default_broker_configs is not before.default_broker_configs:
            self._config = self._static.with_dynamic(self.image.default_broker_configs)

    def check_records(self, records: Sequence[MetadataRecord]) -> None:
        """Raises InvalidState if these records would break an invariant; only what they change is examined."""
        validate_image(self.image.apply_all(records), self.image)

    def validate_state(self) -> None:
        """Raises InvalidState if an invariant does not hold."""
        validate_image(self.image)

    def check_follower(self, position: Position) -> None:
        """Raises HistoryLost for a follower that is ahead of the log, INCONSISTENT_CLUSTER_ID for another cluster's."""
        if position.version < 0:
            return
        if position.cluster_id != self.image.cluster_id:
            raise RaykaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"this is cluster {self.image.cluster_id}, the follower is of {position.cluster_id}",
            )
        known = self.image.version if position.incarnation == self.incarnation else self._loaded_version
        if position.version > known:
            raise HistoryLost(position, known)

    def changes_since(self, position: Position, *, has_replicas: bool = False) -> Changes:
        """What a follower at `position` lacks; with replicas, also which topics were deleted. As `check_follower`."""
        self.check_follower(position)
        image = self.image
        after = Position(image.cluster_id, self.incarnation, image.version)
        missing = image.version - position.version
        if position.version < 0 or missing > len(self._recent):
            known = self._removed if has_replicas else ()
            removed = tuple(each for each in known if each.version > position.version)
            return Changes(after, image, (), removed)
        return Changes(after, None, tuple(self._recent)[len(self._recent) - missing :])

    def create_cluster(self, cluster_id: str, features: Mapping[str, int] | None = None) -> ControllerResult[None]:
        """Name a new cluster, and finalize its feature levels. Without effect if it has a name.

        As Kafka under KIP-966, it gets `min.insync.replicas` as a dynamic default of all brokers.
        """
        if self.image.cluster_id:
            return ControllerResult((), None)
        levels = (FeatureLevelRecord(name, level) for name, level in (features or {}).items())
        least = ConfigRecord(ResourceType.BROKER, "", MIN_ISR, str(self._static[MIN_ISR]))
        return ControllerResult((ClusterRecord(cluster_id), *levels, least), None)

    def register_broker(self, registration: BrokerRegistration) -> ControllerResult[BrokerRegistered]:
        """See `Nodes.register_broker`."""
        return Nodes(self.image, self._config).register_broker(registration)

    def broker_died(self, broker_id: int) -> ControllerResult[None]:
        """See `Nodes.broker_died`."""
        return Nodes(self.image, self._config).broker_died(broker_id)

    def unregister_broker(self, broker_id: int) -> ControllerResult[None]:
        """See `Nodes.unregister_broker`."""
        return Nodes(self.image, self._config).unregister_broker(broker_id)

    def register_actor(self, registration: ActorRegistration) -> ControllerResult[ActorRegistered]:
        """See `Nodes.register_actor`."""
        return Nodes(self.image, self._config).register_actor(registration)

    def assign_replicas_to_dirs(self, request: AssignReplicasToDirs) -> ControllerResult[None]:
        """See `Nodes.assign_replicas_to_dirs`."""
        return Nodes(self.image, self._config).assign_replicas_to_dirs(request)

    def actor_died(self, name: str, epoch: int | None = None) -> ControllerResult[None]:
        """See `Nodes.actor_died`."""
        return Nodes(self.image, self._config).actor_died(name, epoch)

    def retire_actor(self, name: str) -> ControllerResult[None]:
        """See `Nodes.retire_actor`."""
        return Nodes(self.image, self._config).retire_actor(name)

    def create_topics(
        self, topics: Sequence[NewTopic], validate_only: bool, topic_ids: Sequence[uuid.UUID]
    ) -> ControllerResult[list[TopicResult]]:
        """Create topics, each on its own; `topic_ids` are random and as many as `topics`."""
        return TopicCreation(self.image, self._config).create_all(topics, topic_ids, validate_only)

    def delete_topics(self, topics: Sequence[str | uuid.UUID]) -> ControllerResult[list[TopicResult]]:
        """Delete topics by name or id, each on its own."""
        return delete_topics(self.image, self._config, topics)

    def create_partitions(
        self, requests: Sequence[NewPartitions], validate_only: bool
    ) -> ControllerResult[list[TopicResult]]:
        """Add partitions to topics, each on its own."""
        return create_partitions(self.image, requests, validate_only)

    def incremental_alter_configs(
        self, alterations: Sequence[ConfigAlteration], validate_only: bool
    ) -> ControllerResult[list[ConfigResult]]:
        """Set, delete, append to or subtract from single configs (KIP-339)."""
        return self._config_changes().apply(alterations, validate_only)

    def alter_configs(
        self, replacements: Sequence[ConfigReplacement], validate_only: bool
    ) -> ControllerResult[list[ConfigResult]]:
        """Replace all dynamic configs of resources."""
        return self._config_changes().apply(replacements, validate_only)

    def update_features(self, request: UpdateFeatures) -> ControllerResult[None]:
        """Change the levels of features. Raises as `features.update_features`."""
        records = update_features(self.image.features, request.updates)
        return ControllerResult(() if request.validate_only else records, None)

    def allocate_producer_ids(self, broker_id: int) -> ControllerResult[ProducerIdBlock]:
        """Give a broker the next block of producer ids. No block is given twice."""
        first = self.image.next_producer_id
        record = ProducerIdsRecord(first + PRODUCER_ID_BLOCK_SIZE, broker_id)
        return ControllerResult((record,), ProducerIdBlock(first, PRODUCER_ID_BLOCK_SIZE))

    def _config_changes(self) -> ConfigChanges:
        return ConfigChanges(self.image, self._config, self._group_configs)
