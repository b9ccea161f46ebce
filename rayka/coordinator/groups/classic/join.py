"""JoinGroup in a classic group.

A new dynamic member first gets an id and comes back with it (KIP-394). A static member that comes without an id
replaces the old id of its instance (KIP-345): without a rebalance, if the group is Stable and its choice of protocol
does not change. A known member that joins again starts a rebalance if it is the leader or its protocols have changed.
"""

from __future__ import annotations

from dataclasses import replace

from rayka.coordinator.groups.classic.changes import ClassicChanges
from rayka.coordinator.groups.classic.group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
)
from rayka.coordinator.groups.classic.rebalance import Rebalance, answer_waiting, joined
from rayka.coordinator.groups.classic.requests import UNKNOWN_MEMBER_ID, JoinGroupRequest, JoinGroupResponse
from rayka.coordinator.groups.deadlines import GroupTimer
from rayka.coordinator.groups.settings import NEW_MEMBER_JOIN_TIMEOUT_MS
from rayka.coordinator.groups.steps import ReplaceStaticMember
from rayka.coordinator.result import Result
from rayka.errors import ErrorCode


class ClassicJoin:
    """Takes members into classic groups. `request_id` names the request; its response is among the changes."""

    def __init__(self, rebalance: Rebalance) -> None:
        self._rebalance = rebalance

    def join(self, changes: ClassicChanges, request: JoinGroupRequest, request_id: int) -> Result[JoinGroupResponse]:
        """Answer at once, or let the request wait for the end of the join phase."""
        group, member_id = changes.group, request.member_id
        if not self._has_room(group, member_id):
            group.remove(member_id)
            changes.complete(request_id, JoinGroupResponse(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID))
        elif not group.supports(request.protocol_type, request.protocols):
            changes.complete(request_id, JoinGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif member_id == UNKNOWN_MEMBER_ID:
            return self._join_new(changes, request, request_id)
        elif member_id in group.pending_join_members and request.group_instance_id is None:
            self._add(changes, member_id, request, request_id)
        else:
            self._join_again(changes, request, request_id)
        return changes.result(request_id)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        max_size = self._rebalance.settings.max_size
        member = group.members.get(member_id)
        if group.state is PREPARING_REBALANCE:
            is_waiting = member is not None and member.awaiting_join is not None
            return is_waiting or group.awaiting_join_count < max_size
        if group.state in (COMPLETING_REBALANCE, STABLE):
            return member is not None or len(group.members) < max_size
        return True

    def _join_new(
        self, changes: ClassicChanges, request: JoinGroupRequest, request_id: int
    ) -> Result[JoinGroupResponse]:
        instance_id = request.group_instance_id
        member_id = f"{request.client_id if instance_id is None else instance_id}-{request.new_id}"
        if instance_id is not None and instance_id in changes.group.static_members:
            return self._replace_static(changes, member_id, request, request_id)
        if instance_id is None and request.require_known_member_id:
            changes.group.pending_join_members[member_id] = None
            changes.schedule(GroupTimer.SESSION, request.session_timeout_ms, member_id=member_id)
            changes.complete(request_id, JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(changes, member_id, request, request_id)
        return changes.result(request_id)

    def _add(self, changes: ClassicChanges, member_id: str, request: JoinGroupRequest, request_id: int) -> None:
        group = changes.group
        if group.state is PREPARING_REBALANCE and group.previous_state is EMPTY:
            group.new_member_added = True
        if not group.members:
            group.protocol_type = request.protocol_type
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            awaiting_join=request_id,
            is_new=True,
        )
        group.add(member)
        changes.schedule(GroupTimer.SESSION, NEW_MEMBER_JOIN_TIMEOUT_MS, member_id=member_id)
        self._rebalance.prepare_or_complete(changes)

    def _join_again(self, changes: ClassicChanges, request: JoinGroupRequest, request_id: int) -> None:
        group = changes.group
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            changes.complete(request_id, JoinGroupResponse(error, request.member_id))
            return
        member = group.members[request.member_id]
        if self._needs_rebalance(group, member, request):
            in_progress = JoinGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            changes.complete(member.awaiting_join, in_progress)
            group.put(_updated(member, request, request_id))
            self._rebalance.prepare_or_complete(changes)
        else:
            answer = joined(group, member)
            changes.complete(request_id, answer if group.state is COMPLETING_REBALANCE else replace(answer, members=()))

    def _needs_rebalance(self, group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest) -> bool:
        """Not if the member only asks again because it missed the answer."""
        if group.state is PREPARING_REBALANCE or member.supported_protocols != request.protocols:
            return True
        return group.state is STABLE and group.leader_id == member.member_id

    def _replace_static(
        self, changes: ClassicChanges, new_member_id: str, request: JoinGroupRequest, request_id: int
    ) -> Result[JoinGroupResponse]:
        group, instance_id = changes.group, request.group_instance_id
        assert instance_id is not None
        previous_leader = group.leader_id or ""
        old = group.members[group.static_members[instance_id]]
        new = _updated(old, request, request_id)._replace(member_id=new_member_id, awaiting_sync=None)
        group.replace_static_member(instance_id, new)
        answer_waiting(changes, old, ErrorCode.FENCED_INSTANCE_ID)
        changes.cancel_session(old.member_id)
        changes.renew_session(new)
        if group.state is STABLE and group.select_protocol() == group.protocol_name:
            return self._keep_generation(changes, new, request, request_id, previous_leader)
        self._rebalance.prepare_or_complete(changes)
        return changes.result(request_id)

    def _keep_generation(
        self,
        changes: ClassicChanges,
        new: ClassicMember,
        request: JoinGroupRequest,
        request_id: int,
        previous_leader: str,
    ) -> Result[JoinGroupResponse]:
        """The new id goes into the log and the generation continues (KIP-345)."""
        group = changes.group
        answer = joined(group, changes.update(new, awaiting_join=None))
        if request.supports_skipping_assignment:
            answer = replace(answer, skip_assignment=group.leader_id == new.member_id)
        else:
            answer = replace(answer, leader=previous_leader, members=())
        changes.records.append(group.metadata_record())
        changes.complete(request_id, answer)
        return changes.result(request_id, ReplaceStaticMember(changes.update_step(), previous_leader))


def _updated(member: ClassicMember, request: JoinGroupRequest, request_id: int) -> ClassicMember:
    """A member that joins again, with what its request says."""
    return member._replace(
        supported_protocols=request.protocols,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        awaiting_join=request_id,
    )
