"""The requests of the classic protocol and their responses, free of versions. Times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rayka.coordinator.request import GroupRequest, GroupsRequest
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
