"""SyncGroup, Heartbeat and LeaveGroup in a classic group."""

from __future__ import annotations

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.classic.group import EMPTY, PREPARING_REBALANCE, STABLE, ClassicGroup
from rayka.coordinator.groups.classic.rebalance import Rebalance, synced
from rayka.coordinator.groups.requests import (
    UNKNOWN_MEMBER_ID,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from rayka.coordinator.result import Outcome
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE


class ClassicMembership:
    """What members do between joining and having left."""

    def __init__(self, rebalance: Rebalance) -> None:
        self._rebalance = rebalance

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, handle: int, now: Now, outcome: Outcome) -> None:
        """Gives a member its part of the assignment, which the leader brings."""
        error = self._check_sync(group, request)
        if error is not NONE:
            outcome.complete(handle, SyncGroupResponse(error))
            return
        member = group.members[request.member_id]
        self._rebalance.received_sync(group, member.member_id)
        if group.state is STABLE:
            outcome.complete(handle, synced(group, member.assignment))
            return
        if member.awaiting_sync is not None:
            outcome.complete(member.awaiting_sync, SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = handle
        if group.leader_id == member.member_id:
            self._rebalance.assign(group, dict(request.assignments), now, outcome)

    def _check_sync(self, group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not NONE:
            return error
        if request.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol_name, group.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING_REBALANCE else NONE

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest, now: Now) -> HeartbeatResponse:
        """Keeps a member alive, and calls it to join again when there is a rebalance."""
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not NONE:
            return HeartbeatResponse(error)
        if request.generation_id != group.generation_id:
            return HeartbeatResponse(ErrorCode.ILLEGAL_GENERATION)
        self._rebalance.keep_alive(group, group.members[request.member_id], now)
        is_rebalancing = group.state is PREPARING_REBALANCE
        return HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else NONE)

    def leave(self, group: ClassicGroup, request: LeaveGroupRequest, now: Now, outcome: Outcome) -> LeaveGroupResponse:
        """Takes members out; one rebalance serves them all."""
        left = tuple(self._leave(group, member, outcome) for member in request.members)
        if any(member.error is NONE for member in left):
            self._after_leaving(group, now, outcome)
        return LeaveGroupResponse(members=left)

    def _after_leaving(self, group: ClassicGroup, now: Now, outcome: Outcome) -> None:
        """A group's first rebalance ends by its timer, so that more can come, unless nobody is left."""
        is_first = group.state is PREPARING_REBALANCE and group.previous_state is EMPTY
        if not is_first or not group.members:
            self._rebalance.after_removal(group, now, outcome)

    def _leave(self, group: ClassicGroup, identity: MemberIdentity, outcome: Outcome) -> LeftMember:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER_ID and instance_id is not None:
            member_id = group.static_members.get(instance_id, UNKNOWN_MEMBER_ID)
        if member_id in group.pending_join_members:
            group.remove(member_id)
            self._rebalance.forget_session(group, member_id)
            return LeftMember(identity.member_id, instance_id)
        error = group.check_member(member_id, instance_id)
        if error is NONE:
            self._rebalance.remove(group, group.members[member_id], outcome)
        return LeftMember(identity.member_id, instance_id, error)


def _differ(asked: str | None, current: str | None) -> bool:
    return asked is not None and current is not None and asked != current
