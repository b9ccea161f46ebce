"""The commands of groups and their answers, free of versions: a handler turns each version into these and back.

Durations and times are in milliseconds. Answers carry an `ErrorCode`; what is not an error has its field at NONE.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.records import TargetPartitions
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE
UNKNOWN_MEMBER_ID = ""


class Protocol(NamedTuple):
    """A protocol (for consumers an assignor) that a member supports, with its metadata (their subscription)."""

    name: str
    metadata: bytes


class JoinGroupRequest(NamedTuple):
    """`new_id` is the unique part of the member id that a new member gets.

    `require_known_member_id`: a new dynamic member must come back with its id first (KIP-394, version 4).
    `supports_skipping_assignment`: the answer can tell a leader not to assign (KIP-814, version 9).
    Version 0 has no rebalance timeout: it is the session timeout.
    """

    group_id: str
    member_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    new_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    require_known_member_id: bool = True
    supports_skipping_assignment: bool = True


class JoinGroupMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResponse(NamedTuple):
    """`members` is for the leader only. A version without null protocol names says "" instead."""

    error: ErrorCode = NONE
    member_id: str = UNKNOWN_MEMBER_ID
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinGroupMember, ...] = ()


class SyncGroupRequest(NamedTuple):
    """`assignments` (member id, bytes) come from the leader only."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncGroupResponse(NamedTuple):
    """What the member was assigned."""

    error: ErrorCode = NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatRequest(NamedTuple):
    """A classic member is alive."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatResponse(NamedTuple):
    """REBALANCE_IN_PROGRESS calls the member to join again."""

    error: ErrorCode = NONE


class MemberIdentity(NamedTuple):
    """A member that leaves; a static one may be named by its instance id alone."""

    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveGroupRequest(NamedTuple):
    """Members that leave. Versions 0 to 2 name one."""

    group_id: str
    members: tuple[MemberIdentity, ...]


class LeftMember(NamedTuple):
    """What became of one member that wanted to leave."""

    member_id: str
    group_instance_id: str | None
    error: ErrorCode = NONE


class LeaveGroupResponse(NamedTuple):
    """In the order of the request. Versions 0 to 2 answer with the one member's error."""

    error: ErrorCode = NONE
    members: tuple[LeftMember, ...] = ()


class CommittedOffset(NamedTuple):
    """One partition of an offset commit. `commit_timestamp` -1: now (only version 1 of the request has one)."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    commit_timestamp: int = -1
    topic_id: uuid.UUID = ZERO_UUID


class OffsetCommitRequest(NamedTuple):
    """`knows_member_epochs`: version 9 or later, or any TxnOffsetCommit. `retention_time_ms` is of versions 2 to 4."""

    group_id: str
    offsets: tuple[CommittedOffset, ...]
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    knows_member_epochs: bool = True


class OffsetCommitResponse(NamedTuple):
    """An error for each offset, in the order of the request."""

    errors: tuple[ErrorCode, ...]


class OffsetPartition(NamedTuple):
    """A partition to look up. With a `topic_id` (version 10) the offset of an earlier topic of that name is none."""

    topic: str
    partition: int
    topic_id: uuid.UUID = ZERO_UUID


class OffsetFetchRequest(NamedTuple):
    """`partitions` None: all that the group has committed. Without a member id no membership is checked (KIP-848).

    `require_stable`: offsets in open transactions answer UNSTABLE_OFFSET_COMMIT (KIP-447).
    """

    group_id: str
    partitions: tuple[OffsetPartition, ...] | None = None
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    """Offset -1: nothing is committed, which is no error. `topic_id` is zero where the commit did not know it."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = NONE
    topic_id: uuid.UUID = ZERO_UUID


class OffsetFetchResponse(NamedTuple):
    """In the order of the request."""

    group_id: str
    error: ErrorCode = NONE
    offsets: tuple[FetchedOffset, ...] = ()


class OffsetDeleteRequest(NamedTuple):
    """Offsets to forget."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


class OffsetDeleteResponse(NamedTuple):
    """`errors` in the order of the request; none if `error` is set."""

    error: ErrorCode = NONE
    errors: tuple[ErrorCode, ...] = ()


class DeleteGroupsResponse(NamedTuple):
    """An error for each group, in the order of the request."""

    errors: tuple[ErrorCode, ...]


class ListedGroup(NamedTuple):
    """One group. `group_type` is Classic or Consumer."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class DescribedMember(NamedTuple):
    """A member of a classic group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A classic group. Before version 6 a group that is not there is Dead, without an error."""

    group_id: str
    error: ErrorCode = NONE
    error_message: str | None = None
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()


class ConsumerGroupHeartbeatRequest(NamedTuple):
    """A heartbeat of the consumer protocol. What did not change since the last one is None, -1 for the timeout.

    `member_id` is never empty: for version 0, whose new members have none, the handler makes one.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TargetPartitions, ...] | None = None
    client_id: str = ""
    client_host: str = ""


class ConsumerGroupHeartbeatResponse(NamedTuple):
    """`assignment` None: as before."""

    error: ErrorCode = NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TargetPartitions, ...] | None = None


class NamedPartitions(NamedTuple):
    """Partitions of one topic."""

    topic_id: uuid.UUID
    topic_name: str
    partitions: tuple[int, ...]


class DescribedConsumer(NamedTuple):
    """A member of a consumer group. `member_type` is 0 for the classic protocol and 1 for the consumer protocol."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: tuple[NamedPartitions, ...]
    target_assignment: tuple[NamedPartitions, ...]
    member_type: int


class DescribedConsumerGroup(NamedTuple):
    """A consumer group."""

    group_id: str
    error: ErrorCode = NONE
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumer, ...] = ()
