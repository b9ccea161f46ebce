"""JoinGroup in a classic group.

A new dynamic member first gets an id and comes back with it (KIP-394). A static member that comes without an id takes
the place of the instance's old id (KIP-345): while the group is Stable and its choice of protocol does not change,
without a rebalance. A known member that joins again starts a rebalance if it is the leader or has changed its mind.
"""

from __future__ import annotations

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.classic.group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
)
from rayka.coordinator.groups.classic.rebalance import Rebalance, Timer, TimerKey, joined
from rayka.coordinator.groups.requests import UNKNOWN_MEMBER_ID, JoinGroupRequest, JoinGroupResponse
from rayka.coordinator.groups.settings import NEW_MEMBER_JOIN_TIMEOUT_MS
from rayka.coordinator.result import Outcome, append_error
from rayka.coordinator.timers import TimerQueue
from rayka.errors import ErrorCode


class ClassicJoin:
    """Takes members into classic groups. `handle` names the request; its answer goes to the outcome."""

    def __init__(self, rebalance: Rebalance, timers: TimerQueue[TimerKey]) -> None:
        self._rebalance = rebalance
        self._timers = timers

    def join(self, group: ClassicGroup, request: JoinGroupRequest, handle: int, now: Now, outcome: Outcome) -> None:
        """Answers at once or lets the request wait for the end of the join phase."""
        member_id = request.member_id
        if not self._has_room(group, member_id):
            group.remove(member_id)
            outcome.complete(handle, JoinGroupResponse(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID))
        elif not group.supports(request.protocol_type, request.protocols):
            outcome.complete(handle, JoinGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif member_id == UNKNOWN_MEMBER_ID:
            self._join_new(group, request, handle, now, outcome)
        elif member_id in group.pending_join_members and request.group_instance_id is None:
            self._add(group, member_id, request, handle, now, outcome)
        else:
            self._join_again(group, request, handle, now, outcome)

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
        self, group: ClassicGroup, request: JoinGroupRequest, handle: int, now: Now, outcome: Outcome
    ) -> None:
        instance_id = request.group_instance_id
        member_id = f"{request.client_id if instance_id is None else instance_id}-{request.new_id}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static(group, member_id, request, handle, now, outcome)
        elif instance_id is None and request.require_known_member_id:
            group.pending_join_members.add(member_id)
            key = TimerKey(Timer.SESSION, group.group_id, member_id)
            self._timers.schedule(key, now.ms + request.session_timeout_ms)
            outcome.complete(handle, JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(group, member_id, request, handle, now, outcome)

    def _add(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinGroupRequest,
        handle: int,
        now: Now,
        outcome: Outcome,
    ) -> None:
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
        )
        if group.state is PREPARING_REBALANCE and group.previous_state is EMPTY:
            group.new_member_added = True
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member, handle)
        key = TimerKey(Timer.SESSION, group.group_id, member_id)
        self._timers.schedule(key, now.ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.prepare_or_complete(group, now, outcome)

    def _join_again(
        self, group: ClassicGroup, request: JoinGroupRequest, handle: int, now: Now, outcome: Outcome
    ) -> None:
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            outcome.complete(handle, JoinGroupResponse(error, request.member_id))
            return
        member = group.members[request.member_id]
        if self._needs_rebalance(group, member, request):
            self._update(group, member, request, handle, outcome)
            self._rebalance.prepare_or_complete(group, now, outcome)
        else:
            answer = joined(group, member)
            outcome.complete(handle, answer if group.state is COMPLETING_REBALANCE else answer._replace(members=()))

    def _needs_rebalance(self, group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest) -> bool:
        """Not if the member only asks again because it missed the answer."""
        if group.state is PREPARING_REBALANCE or member.supported_protocols != request.protocols:
            return True
        return group.state is STABLE and group.leader_id == member.member_id

    def _update(
        self, group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest, handle: int, outcome: Outcome
    ) -> None:
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        abandoned = group.await_join(member, handle)
        if abandoned is not None:
            outcome.complete(abandoned, JoinGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def _replace_static(
        self,
        group: ClassicGroup,
        new_member_id: str,
        request: JoinGroupRequest,
        handle: int,
        now: Now,
        outcome: Outcome,
    ) -> None:
        assert request.group_instance_id is not None
        leader_before = group.leader_id or ""
        old, new = group.replace_static_member(request.group_instance_id, new_member_id)
        self._rebalance.fence(old, outcome)
        self._rebalance.forget_session(group, old.member_id)
        self._rebalance.keep_alive(group, new, now)
        self._update(group, new, request, handle, outcome)
        if group.state is STABLE and group.select_protocol() == group.protocol_name:
            self._replace_silently(group, old, new, request, leader_before, now, outcome)
        else:
            if old.member_id in group.pending_sync_members:
                group.pending_sync_members.discard(old.member_id)
                group.pending_sync_members.add(new.member_id)
            self._rebalance.prepare_or_complete(group, now, outcome)

    def _replace_silently(
        self,
        group: ClassicGroup,
        old: ClassicMember,
        new: ClassicMember,
        request: JoinGroupRequest,
        leader_before: str,
        now: Now,
        outcome: Outcome,
    ) -> None:
        """The new id goes into the log and the generation goes on; the old answer to it is taken back on failure."""
        handle = group.take_awaiting_join(new)
        assert handle is not None
        outcome.records.append(group.metadata_record())
        answer = joined(group, new)
        if request.supports_skipping_assignment:
            answer = answer._replace(skip_assignment=group.leader_id == new.member_id)
        else:
            answer = answer._replace(leader=leader_before, members=())
        outcome.complete(handle, answer)

        def undo(error: ErrorCode, failed: Outcome) -> None:
            group.restore_static_member(old, new)
            self._rebalance.forget_session(group, new.member_id)
            self._rebalance.keep_alive(group, old, now)
            failed.complete(handle, JoinGroupResponse(append_error(error), UNKNOWN_MEMBER_ID, leader=leader_before))

        outcome.rollbacks.append(undo)
