"""The requests of groups of any kind and their responses: offsets, lists of groups, and what protocols share.

They are free of versions: a handler turns each version into these and back. `classic/requests.py`,
`consumer/requests.py` and `share/requests.py` have those of one protocol. Durations and times are in milliseconds.
Responses carry an `ErrorCode`, which is NONE if there is no error.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.request import GroupRequest, GroupsRequest, Request, TransactionalRequest
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE


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
    """Offset -1: nothing is committed, which is not an error. `topic_id` is zero if the commit did not have it."""

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


class NamedPartitions(NamedTuple):
    """Partitions of one topic."""

    topic_id: uuid.UUID
    topic_name: str
    partitions: tuple[int, ...]


class DescribedModernMember(NamedTuple):
    """A member of a consumer group or share group. A member of a share group has what the groups have in common.

    `member_type` is 0 for the classic protocol and 1 for the consumer protocol.
    """

    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    assignment: tuple[NamedPartitions, ...]
    instance_id: str | None = None
    subscribed_topic_regex: str | None = None
    target_assignment: tuple[NamedPartitions, ...] = ()
    member_type: int = -1


class DescribedModernGroup(NamedTuple):
    """A consumer group or a share group; Kafka's broker calls both modern."""

    group_id: str
    error: ErrorCode = NONE
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedModernMember, ...] = ()
