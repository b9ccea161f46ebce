"""The requests of groups and their responses, free of versions: a handler turns each version into these and back.

Durations and times are in milliseconds. Responses carry an `ErrorCode`, which is NONE if there is no error.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.records import TargetPartitions
from rayka.coordinator.request import GroupRequest, GroupsRequest, Request, TransactionalRequest
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE
UNKNOWN_MEMBER_ID = ""


class Protocol(NamedTuple):
    """A protocol (for consumers an assignor) that a member supports, with its metadata (their subscription)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """`members` is for the leader only. A version without null protocol names says "" instead."""

    error: ErrorCode = NONE
    member_id: str = UNKNOWN_MEMBER_ID
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinGroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinGroupRequest(GroupRequest[JoinGroupResponse]):
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


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    """The assignment of the member."""

    error: ErrorCode = NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class SyncGroupRequest(GroupRequest[SyncGroupResponse]):
    """`assignments` (member id, bytes) come from the leader only."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """REBALANCE_IN_PROGRESS asks the member to join again."""

    error: ErrorCode = NONE


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(GroupRequest[HeartbeatResponse]):
    """Renews the session of a classic member."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class MemberIdentity(NamedTuple):
    """A member that leaves; a static one may be named by its instance id alone."""

    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    reason: str | None = None


class LeftMember(NamedTuple):
    """The outcome for one member that leaves."""

    member_id: str
    group_instance_id: str | None
    error: ErrorCode = NONE


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse:
    """In the order of the request. Versions 0 to 2 answer with the one member's error."""

    error: ErrorCode = NONE
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest(GroupRequest[LeaveGroupResponse]):
    """Members that leave. Versions 0 to 2 name one."""

    group_id: str
    members: tuple[MemberIdentity, ...]


class CommittedOffset(NamedTuple):
    """One partition of an offset commit. `commit_timestamp` -1: now (only version 1 of the request has one)."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    commit_timestamp: int = -1
    topic_id: uuid.UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    """An error for each offset, in the order of the request."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest(GroupRequest[OffsetCommitResponse]):
    """`knows_member_epochs`: version 9 or later, or any TxnOffsetCommit. `retention_time_ms` is of versions 2 to 4."""

    group_id: str
    offsets: tuple[CommittedOffset, ...]
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    knows_member_epochs: bool = True


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest(TransactionalRequest[OffsetCommitResponse]):
    """Offsets that count when the producer's transaction commits (KIP-98, KIP-447)."""

    group_id: str
    offsets: tuple[CommittedOffset, ...]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_support: int = 0
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    @property
    def coordinator_key(self) -> str:
        """The id of the group."""
        return self.group_id

    def refused(self, error: ErrorCode) -> OffsetCommitResponse:
        """The same error for all."""
        return OffsetCommitResponse((error,) * len(self.offsets))


class OffsetPartition(NamedTuple):
    """A partition to look up. With a `topic_id` (version 10) offsets of earlier topics of that name do not count."""

    topic: str
    partition: int
    topic_id: uuid.UUID = ZERO_UUID


class FetchedOffset(NamedTuple):
    """Offset -1: nothing is committed, which is no error. `topic_id` is zero if the commit did not have it."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = NONE
    topic_id: uuid.UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    """In the order of the request."""

    group_id: str
    error: ErrorCode = NONE
    offsets: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(GroupRequest[OffsetFetchResponse]):
    """`partitions` None: all that the group has committed. Without a member id no membership is checked (KIP-848).

    `require_stable`: offsets in open transactions answer UNSTABLE_OFFSET_COMMIT (KIP-447).
    """

    group_id: str
    partitions: tuple[OffsetPartition, ...] | None = None
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse:
    """`errors` in the order of the request; none if `error` is set."""

    error: ErrorCode = NONE
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest(GroupRequest[OffsetDeleteResponse]):
    """Offsets to delete."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    """An error for each group, in the order of the request."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest(GroupsRequest[DeleteGroupsResponse]):
    """Empty groups to delete, with their offsets."""

    group_ids: tuple[str, ...]


class ListedGroup(NamedTuple):
    """One group. `group_type` is classic or consumer."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class ListGroupsResponse:
    """The groups of one coordinator."""

    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest(Request[ListGroupsResponse]):
    """Asks one coordinator for its groups of these states and types, in any case; none given means all."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse:
    """In the order of the request."""

    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest(GroupsRequest[DescribeGroupsResponse]):
    """Classic groups to describe."""

    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatResponse:
    """`assignment` None: as before."""

    error: ErrorCode = NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TargetPartitions, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest(GroupRequest[ConsumerGroupHeartbeatResponse]):
    """A heartbeat of the consumer protocol. A field that has not changed since the last one is None, the timeout -1.

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


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeResponse:
    """In the order of the request."""

    groups: tuple[DescribedConsumerGroup, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest(GroupsRequest[ConsumerGroupDescribeResponse]):
    """Consumer groups to describe."""

    group_ids: tuple[str, ...]
