"""Moves a classic group through its rebalances: which members it waits for, how long, and how it answers them.

Every function works on the draft of a `ClassicChanges`. A phase adds a record where its result must be durable: an
empty group, or a generation with its assignment.
"""

from __future__ import annotations

from collections.abc import Mapping

from rayka.coordinator.groups.classic.changes import ClassicChanges
from rayka.coordinator.groups.classic.group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
)
from rayka.coordinator.groups.classic.requests import UNKNOWN_MEMBER_ID, JoinGroupResponse, SyncGroupResponse
from rayka.coordinator.groups.deadlines import GroupTimer, InitialDelay
from rayka.coordinator.groups.settings import GroupSettings
from rayka.errors import ErrorCode


class Rebalance:
    """The rules of classic rebalances."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings

    def prepare_or_complete(self, changes: ClassicChanges) -> None:
        """Start a rebalance, or complete the join phase of the present one if all have joined."""
        if changes.group.can_move_to(PREPARING_REBALANCE):
            self.prepare(changes)
        else:
            self.complete_if_all_joined(changes)

    def prepare(self, changes: ClassicChanges) -> None:
        """Start a rebalance: the members have to join again."""
        group = changes.group
        if group.state is COMPLETING_REBALANCE:
            self.abandon_assignment(changes, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync_members = {}
        changes.cancel(GroupTimer.SYNC)
        is_initial = group.is_empty
        group.move_to(PREPARING_REBALANCE, changes.now.wall_ms)
        if is_initial:
            self._delay_initially(changes)
        elif group.has_all_members_joined:
            self.complete(changes)
        else:
            changes.schedule(GroupTimer.JOIN, group.rebalance_timeout_ms)

    def _delay_initially(self, changes: ClassicChanges) -> None:
        delay_ms = max(self.settings.initial_rebalance_delay_ms, self.settings.initial_rebalance_quiet_ms)
        remaining_ms = max(changes.group.rebalance_timeout_ms - delay_ms, 0)
        changes.schedule(GroupTimer.JOIN, delay_ms, InitialDelay(delay_ms, remaining_ms))

    def complete_if_all_joined(self, changes: ClassicChanges) -> None:
        """End the join phase if nobody is missing. The first one ends by its timer, so that more can come."""
        group = changes.group
        if group.state is PREPARING_REBALANCE and group.previous_state is not EMPTY and group.has_all_members_joined:
            self.complete(changes)

    def complete(self, changes: ClassicChanges) -> None:
        """End the join phase. Dynamic members that did not join are removed, static ones stay (KIP-345)."""
        group = changes.group
        changes.cancel(GroupTimer.JOIN)
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.group_instance_id is None:
                group.remove(member.member_id)
                changes.cancel_session(member.member_id)
        if group.members and not group.elect_joined_leader():
            changes.schedule(GroupTimer.JOIN, group.rebalance_timeout_ms)
            return
        group.begin_generation(changes.now.wall_ms)
        if group.is_empty:
            changes.records.append(group.metadata_record())
        else:
            self._answer_joins(changes)

    def _answer_joins(self, changes: ClassicChanges) -> None:
        group = changes.group
        for member in list(group.members.values()):
            changes.complete(member.awaiting_join, joined(group, member))
            changes.renew_session(changes.update(member, awaiting_join=None, is_new=False))
            group.pending_sync_members[member.member_id] = None
        changes.schedule(GroupTimer.SYNC, group.rebalance_timeout_ms, group.generation_id)

    def expire_join(self, changes: ClassicChanges, delay: InitialDelay | None) -> None:
        """The time to join is over, or one step of the first delay, which continues while members keep coming."""
        group = changes.group
        if delay is None or not group.new_member_added or delay.remaining_ms == 0:
            if group.state is PREPARING_REBALANCE:
                self.complete(changes)
            return
        group.new_member_added = False
        step_ms = max(
            min(self.settings.initial_rebalance_delay_ms, delay.remaining_ms), self.settings.initial_rebalance_quiet_ms
        )
        following = InitialDelay(step_ms, max(delay.remaining_ms - delay.delay_ms, 0))
        changes.schedule(GroupTimer.JOIN, step_ms, following)

    def expire_sync(self, changes: ClassicChanges, generation_id: int) -> None:
        """Remove members that joined the generation and never asked for their assignment."""
        group = changes.group
        if generation_id != group.generation_id or group.state not in (COMPLETING_REBALANCE, STABLE):
            return
        if group.pending_sync_members:
            for member_id in list(group.pending_sync_members):
                group.remove(member_id)
                changes.cancel_session(member_id)
            self.prepare(changes)

    def received_sync(self, changes: ClassicChanges, member_id: str) -> None:
        """A member asked for its assignment."""
        changes.group.pending_sync_members.pop(member_id, None)
        if not changes.group.pending_sync_members:
            changes.cancel(GroupTimer.SYNC)

    def expire_session(self, changes: ClassicChanges, member_id: str) -> None:
        """Remove a member whose session is over."""
        group = changes.group
        if member_id in group.pending_join_members:
            self._remove_pending(changes, member_id)
        elif member_id in group.members and not group.members[member_id].has_satisfied_heartbeat:
            self.remove(changes, group.members[member_id])
            self.after_removal(changes)

    def remove(self, changes: ClassicChanges, member: ClassicMember) -> None:
        """Remove a member; its waiting requests end with UNKNOWN_MEMBER_ID."""
        changes.cancel_session(member.member_id)
        changes.group.remove(member.member_id)
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        changes.complete(member.awaiting_join, JoinGroupResponse(unknown, UNKNOWN_MEMBER_ID))
        changes.complete(member.awaiting_sync, SyncGroupResponse(unknown))

    def _remove_pending(self, changes: ClassicChanges, member_id: str) -> None:
        """Remove a member that got its id and never came back with it."""
        changes.group.remove(member_id)
        if changes.group.state is PREPARING_REBALANCE and changes.group.has_all_members_joined:
            self.complete(changes)

    def after_removal(self, changes: ClassicChanges) -> None:
        """Distribute among the others what the removed members had."""
        group = changes.group
        if group.state in (STABLE, COMPLETING_REBALANCE):
            self.prepare(changes)
        elif group.state is PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete(changes)

    def complete_generation(self, changes: ClassicChanges, assignments: Mapping[str, bytes]) -> None:
        """The leader's assignment is in the log: every member gets its part."""
        group = changes.group
        for member in list(group.members.values()):
            assignment = assignments.get(member.member_id, b"")
            changes.complete(member.awaiting_sync, synced(group, assignment))
            if member.awaiting_sync is not None:
                changes.renew_session(member)
            changes.update(member, assignment=assignment, awaiting_sync=None)
        group.move_to(STABLE, changes.now.wall_ms)

    def fail_generation(self, changes: ClassicChanges, error: ErrorCode) -> None:
        """The leader's assignment could not be written: rebalance again."""
        self.abandon_assignment(changes, error)
        self.prepare_or_complete(changes)

    def abandon_assignment(self, changes: ClassicChanges, error: ErrorCode) -> None:
        """The generation will not complete: all who wait for their part get the error.

        Members keep the assignments of the generation before. A cooperative member continues reading its partitions, so
        they must not go to anybody else if the group becomes a consumer group now.
        """
        for member in list(changes.group.members.values()):
            changes.complete(member.awaiting_sync, SyncGroupResponse(error))
            if member.awaiting_sync is not None:
                changes.renew_session(member)
            changes.update(member, awaiting_sync=None)

    def answer_all(self, changes: ClassicChanges, error: ErrorCode) -> None:
        """Answer all who wait with the error."""
        for member in changes.group.members.values():
            answer_waiting(changes, member, error)


def answer_waiting(changes: ClassicChanges, member: ClassicMember, error: ErrorCode) -> None:
    """Answer the waiting requests of a member with an error."""
    changes.complete(member.awaiting_join, JoinGroupResponse(error, member.member_id))
    changes.complete(member.awaiting_sync, SyncGroupResponse(error))


def joined(group: ClassicGroup, member: ClassicMember) -> JoinGroupResponse:
    """The answer to a member of the current generation; the leader gets the list."""
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        members=group.join_members() if group.leader_id == member.member_id else (),
    )


def synced(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    """A member's part of the current generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )
