"""The records of `__consumer_offsets`: keys and values. Their bytes: `record_formats.py`.

Source: the message definitions of Kafka's group-coordinator module, 4.4.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple, TypeAlias

from rayka.coordinator.codec import ZERO_UUID


class OffsetCommitKey(NamedTuple):
    """One partition's committed offset in one group."""

    group: str
    topic: str
    partition: int


class OffsetCommitValue(NamedTuple):
    """A committed offset. Timestamps in milliseconds; `expire_timestamp` -1: by the broker's retention."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = -1
    topic_id: uuid.UUID = ZERO_UUID


class GroupMetadataKey(NamedTuple):
    """A classic group."""

    group: str


class MemberMetadata(NamedTuple):
    """One member of a classic group, with what it subscribed to and what it was assigned (client formats)."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: int = -1
    session_timeout: int = -1
    subscription: bytes = b""
    assignment: bytes = b""


class GroupMetadataValue(NamedTuple):
    """A classic group at the end of its last rebalance."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int = -1
    members: tuple[MemberMetadata, ...] = ()


class ConsumerGroupMetadataKey(NamedTuple):
    """A consumer group's epoch."""

    group_id: str


class ConsumerGroupMetadataValue(NamedTuple):
    """`metadata_hash` covers the topics that the group subscribes to (KIP-1101)."""

    epoch: int
    metadata_hash: int = 0


class ConsumerGroupPartitionMetadataKey(NamedTuple):
    """The subscribed topics of a consumer group, as Kafka 4.0 and before kept them."""

    group_id: str


class PartitionRacks(NamedTuple):
    """The racks of a partition's replicas."""

    partition: int
    racks: tuple[str, ...]


class TopicPartitionMetadata(NamedTuple):
    """One subscribed topic."""

    topic_id: uuid.UUID
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionRacks, ...] = ()


class ConsumerGroupPartitionMetadataValue(NamedTuple):
    """All subscribed topics."""

    topics: tuple[TopicPartitionMetadata, ...]


class ConsumerGroupMemberMetadataKey(NamedTuple):
    """A member of a consumer group."""

    group_id: str
    member_id: str


class ClassicProtocol(NamedTuple):
    """A protocol that a classic member of a consumer group supports."""

    name: str
    metadata: bytes


class ClassicMemberMetadata(NamedTuple):
    """What the coordinator knows of a member that speaks the classic protocol in a consumer group."""

    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]

    def protocol_names(self) -> frozenset[str]:
        """The names of the protocols, each once."""
        return frozenset(protocol.name for protocol in self.supported_protocols)


class ConsumerGroupMemberMetadataValue(NamedTuple):
    """What a member reported of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic_member_metadata: ClassicMemberMetadata | None = None


class ConsumerGroupTargetAssignmentMetadataKey(NamedTuple):
    """The epoch of a group's target assignment."""

    group_id: str


class ConsumerGroupTargetAssignmentMetadataValue(NamedTuple):
    """`assignment_timestamp`: when it was computed, in milliseconds (KIP-1263)."""

    assignment_epoch: int
    assignment_timestamp: int = 0


class ConsumerGroupTargetAssignmentMemberKey(NamedTuple):
    """A member's target assignment."""

    group_id: str
    member_id: str


class TargetPartitions(NamedTuple):
    """Partitions of one topic."""

    topic_id: uuid.UUID
    partitions: tuple[int, ...]


class ConsumerGroupTargetAssignmentMemberValue(NamedTuple):
    """The target assignment of a member."""

    topic_partitions: tuple[TargetPartitions, ...]


class ConsumerGroupCurrentMemberAssignmentKey(NamedTuple):
    """A member's current assignment."""

    group_id: str
    member_id: str


class AssignedPartitions(NamedTuple):
    """Partitions of one topic with, for each, the epoch in which the member got it."""

    topic_id: uuid.UUID
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None


class ConsumerGroupCurrentMemberAssignmentValue(NamedTuple):
    """The current assignment of a member on its way to the target. `state` is a `MemberState`."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[AssignedPartitions, ...] = ()
    partitions_pending_revocation: tuple[AssignedPartitions, ...] = ()


class ConsumerGroupRegularExpressionKey(NamedTuple):
    """A regular expression that members of the group subscribe to."""

    group_id: str
    regular_expression: str


class ConsumerGroupRegularExpressionValue(NamedTuple):
    """The topics that matched, in the metadata of `version`, at `timestamp` (milliseconds)."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


class ShareGroupMemberMetadataKey(NamedTuple):
    """A member of a share group."""

    group_id: str
    member_id: str


class ShareGroupMemberMetadataValue(NamedTuple):
    """What a member reported of itself."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()


class ShareGroupMetadataKey(NamedTuple):
    """A share group's epoch."""

    group_id: str


class ShareGroupMetadataValue(NamedTuple):
    """`metadata_hash` covers the topics that the group subscribes to (KIP-1101)."""

    epoch: int
    metadata_hash: int = 0


class ShareGroupTargetAssignmentMetadataKey(NamedTuple):
    """The epoch of a share group's target assignment."""

    group_id: str


class ShareGroupTargetAssignmentMetadataValue(NamedTuple):
    """`assignment_timestamp`: when it was computed, in milliseconds."""

    assignment_epoch: int
    assignment_timestamp: int = 0


class ShareGroupTargetAssignmentMemberKey(NamedTuple):
    """A member's target assignment."""

    group_id: str
    member_id: str


class ShareGroupTargetAssignmentMemberValue(NamedTuple):
    """The target assignment of a member."""

    topic_partitions: tuple[TargetPartitions, ...]


class ShareGroupCurrentMemberAssignmentKey(NamedTuple):
    """A member's current assignment."""

    group_id: str
    member_id: str


class ShareGroupCurrentMemberAssignmentValue(NamedTuple):
    """The current assignment of a member. Its state is always 0, stable: nothing has to be revoked first."""

    member_epoch: int
    previous_member_epoch: int
    state: int = 0
    assigned_partitions: tuple[TargetPartitions, ...] = ()


class ShareGroupStatePartitionMetadataKey(NamedTuple):
    """Which share-partitions of a group have state."""

    group_id: str


class TopicPartitionsInfo(NamedTuple):
    """Share-partitions of one topic."""

    topic_id: uuid.UUID
    topic_name: str
    partitions: tuple[int, ...]


class TopicInfo(NamedTuple):
    """A topic whose share-partitions are being deleted."""

    topic_id: uuid.UUID
    topic_name: str


class ShareGroupStatePartitionMetadataValue(NamedTuple):
    """The share-partitions that are being initialized, those that are, and topics that are being deleted."""

    initializing_topics: tuple[TopicPartitionsInfo, ...] = ()
    initialized_topics: tuple[TopicPartitionsInfo, ...] = ()
    deleting_topics: tuple[TopicInfo, ...] = ()


Key: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
    | ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)


class CoordinatorRecord(NamedTuple):
    """One record. A value of None deletes the key."""

    key: Key
    value: Any = None
