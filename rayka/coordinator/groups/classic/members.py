"""The members of a classic group between joining and leaving: SyncGroup, Heartbeat, LeaveGroup, expired deadlines."""

from __future__ import annotations

from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.classic.changes import ClassicChanges
from rayka.coordinator.groups.classic.group import EMPTY, PREPARING_REBALANCE, STABLE, ClassicGroup
from rayka.coordinator.groups.classic.rebalance import Rebalance, synced
from rayka.coordinator.groups.classic.requests import (
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
from rayka.coordinator.groups.deadlines import GroupTimer, GroupTimerKey
from rayka.coordinator.groups.steps import StoreAssignment
from rayka.coordinator.result import Result
from rayka.coordinator.timers import TimerQueue
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE


class ClassicMembers:
    """Serves the members of classic groups."""

    def __init__(self, rebalance: Rebalance, timers: TimerQueue[GroupTimerKey]) -> None:
        self._rebalance = rebalance
        self._timers = timers

    def sync(self, changes: ClassicChanges, request: SyncGroupRequest, request_id: int) -> Result[SyncGroupResponse]:
        """Give a member its part of the assignment, or let it wait for the leader, which brings it."""
        group = changes.group
        error = self._check_sync(group, request)
        if error is not NONE:
            return Result(SyncGroupResponse(error))
        member = group.members[request.member_id]
        self._rebalance.received_sync(changes, member.member_id)
        if group.state is STABLE:
            changes.complete(request_id, synced(group, member.assignment))
            return changes.result(request_id)
        changes.complete(member.awaiting_sync, SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        changes.update(member, awaiting_sync=request_id)
        if group.leader_id != member.member_id:
            return changes.result(request_id)
        changes.records.append(group.metadata_record(dict(request.assignments)))
        return changes.result(request_id, StoreAssignment(changes.update_step(), request_id, request.assignments))

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
        """Renew a member's session; REBALANCE_IN_PROGRESS asks it to join again."""
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not NONE:
            return HeartbeatResponse(error)
        if request.generation_id != group.generation_id:
            return HeartbeatResponse(ErrorCode.ILLEGAL_GENERATION)
        self._renew_session(group, request.member_id, now)
        is_rebalancing = group.state is PREPARING_REBALANCE
        return HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else NONE)

    def committed(self, group: ClassicGroup, member_id: str, now: Now) -> None:
        """A commit renews the session like a heartbeat, as long as the generation lasts."""
        if member_id in group.members and group.state in (STABLE, PREPARING_REBALANCE):
            self._renew_session(group, member_id, now)

    def _renew_session(self, group: ClassicGroup, member_id: str, now: Now) -> None:
        key = GroupTimerKey(GroupTimer.SESSION, group.group_id, member_id)
        self._timers.schedule(key, now.ms + group.members[member_id].session_timeout_ms)

    def leave(self, changes: ClassicChanges, request: LeaveGroupRequest) -> Result[LeaveGroupResponse]:
        """Remove members; one rebalance serves them all."""
        left = tuple(self._leave(changes, member) for member in request.members)
        if any(member.error is NONE for member in left):
            self._after_leaving(changes)
        return changes.respond(LeaveGroupResponse(members=left))

    def _after_leaving(self, changes: ClassicChanges) -> None:
        """A group's first rebalance ends by its timer, so that more can come, unless nobody is left."""
        group = changes.group
        is_first = group.state is PREPARING_REBALANCE and group.previous_state is EMPTY
        if not is_first or not group.members:
            self._rebalance.after_removal(changes)

    def _leave(self, changes: ClassicChanges, identity: MemberIdentity) -> LeftMember:
        group = changes.group
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER_ID and instance_id is not None:
            member_id = group.static_members.get(instance_id, UNKNOWN_MEMBER_ID)
        if member_id in group.pending_join_members:
            group.remove(member_id)
            changes.cancel_session(member_id)
            return LeftMember(identity.member_id, instance_id)
        error = group.check_member(member_id, instance_id)
        if error is NONE:
            self._rebalance.remove(changes, group.members[member_id])
        return LeftMember(identity.member_id, instance_id, error)

    def expire(self, changes: ClassicChanges, key: GroupTimerKey, argument: Any) -> Result[None]:
        """A deadline of the group or of a member has come."""
        match key.timer:
            case GroupTimer.SESSION:
                self._rebalance.expire_session(changes, key.member_id)
            case GroupTimer.JOIN:
                self._rebalance.expire_join(changes, argument)
            case GroupTimer.SYNC:
                self._rebalance.expire_sync(changes, argument)
        return changes.result()


def _differ(asked: str | None, current: str | None) -> bool:
    return asked is not None and current is not None and asked != current
