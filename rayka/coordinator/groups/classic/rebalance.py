"""Moves a classic group through its rebalances: who is waited for, for how long, and who gets which answer.

Every function changes soft state and puts answers into the `Outcome`. Records appear where a phase ends with something
to keep: an empty group, or a generation with its assignment.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.classic.group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
)
from rayka.coordinator.groups.requests import UNKNOWN_MEMBER_ID, JoinGroupResponse, SyncGroupResponse
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.result import Outcome, append_error
from rayka.coordinator.timers import TimerQueue
from rayka.errors import ErrorCode


class Timer(enum.Enum):
    """What becomes due."""

    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"
    REBALANCE = "rebalance"
    MEMBER_JOIN = "member join"
    MEMBER_SYNC = "member sync"
    ASSIGNMENT = "assignment"
    OFFSETS = "offsets"


class TimerKey(NamedTuple):
    """A deadline of a group, or of a member in it."""

    timer: Timer
    group_id: str = ""
    member_id: str = ""


class InitialDelay(NamedTuple):
    """The wait for more members before a group's first rebalance (KIP-134): this step, and what may still be added."""

    delay_ms: int
    remaining_ms: int


class Rebalance:
    """The rules of classic rebalances."""

    def __init__(self, settings: GroupSettings, timers: TimerQueue[TimerKey]) -> None:
        self.settings = settings
        self._timers = timers

    def keep_alive(self, group: ClassicGroup, member: ClassicMember, now: Now) -> None:
        """Starts the member's session anew."""
        self._timers.schedule(
            TimerKey(Timer.SESSION, group.group_id, member.member_id), now.ms + member.session_timeout_ms
        )

    def forget_session(self, group: ClassicGroup, member_id: str) -> None:
        """The member's session will not run out."""
        self._timers.cancel(TimerKey(Timer.SESSION, group.group_id, member_id))

    def forget(self, group: ClassicGroup) -> None:
        """Cancels all deadlines of a group that goes away."""
        for member_id in (*group.members, *group.pending_join_members):
            self.forget_session(group, member_id)
        self._timers.cancel(TimerKey(Timer.JOIN, group.group_id))
        self._timers.cancel(TimerKey(Timer.SYNC, group.group_id))

    def prepare_or_complete(self, group: ClassicGroup, now: Now, outcome: Outcome) -> None:
        """Starts a rebalance, or sees whether the one that is under way can go on."""
        if group.can_move_to(PREPARING_REBALANCE):
            self.prepare(group, now, outcome)
        else:
            self.complete_if_all_joined(group, now, outcome)

    def prepare(self, group: ClassicGroup, now: Now, outcome: Outcome) -> None:
        """Starts a rebalance: the members have to join again."""
        if group.state is COMPLETING_REBALANCE:
            self.abandon_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS, now, outcome)
        group.pending_sync_members.clear()
        self._timers.cancel(TimerKey(Timer.SYNC, group.group_id))
        is_initial = group.is_empty
        group.move_to(PREPARING_REBALANCE, now.wall_ms)
        if is_initial:
            self._delay_initially(group, now)
        elif group.has_all_members_joined:
            self.complete(group, now, outcome)
        else:
            self._wait_for_joins(group, now)

    def _delay_initially(self, group: ClassicGroup, now: Now) -> None:
        delay_ms = max(self.settings.initial_rebalance_delay_ms, self.settings.initial_rebalance_quiet_ms)
        remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        key = TimerKey(Timer.JOIN, group.group_id)
        self._timers.schedule(key, now.ms + delay_ms, InitialDelay(delay_ms, remaining_ms))

    def _wait_for_joins(self, group: ClassicGroup, now: Now) -> None:
        self._timers.schedule(TimerKey(Timer.JOIN, group.group_id), now.ms + group.rebalance_timeout_ms)

    def complete_if_all_joined(self, group: ClassicGroup, now: Now, outcome: Outcome) -> None:
        """Ends the join phase if nobody is missing. The first one ends by its timer, so that more can come."""
        if group.state is PREPARING_REBALANCE and group.previous_state is not EMPTY and group.has_all_members_joined:
            self.complete(group, now, outcome)

    def complete(self, group: ClassicGroup, now: Now, outcome: Outcome) -> None:
        """Ends the join phase with those who came; absent dynamic members are out, static ones stay (KIP-345)."""
        self._timers.cancel(TimerKey(Timer.JOIN, group.group_id))
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.group_instance_id is None:
                group.remove(member.member_id)
                self.forget_session(group, member.member_id)
        if group.members and not group.elect_joined_leader():
            self._wait_for_joins(group, now)
            return
        group.begin_generation(now.wall_ms)
        if group.is_empty:
            outcome.records.append(group.metadata_record())
        else:
            self._answer_joins(group, now, outcome)

    def _answer_joins(self, group: ClassicGroup, now: Now, outcome: Outcome) -> None:
        for member in group.members.values():
            handle = group.take_awaiting_join(member)
            if handle is not None:
                outcome.complete(handle, joined(group, member))
            self.keep_alive(group, member, now)
            member.is_new = False
            group.pending_sync_members.add(member.member_id)
        key = TimerKey(Timer.SYNC, group.group_id)
        self._timers.schedule(key, now.ms + group.rebalance_timeout_ms, group.generation_id)

    def expire_join(self, group: ClassicGroup, delay: InitialDelay | None, now: Now, outcome: Outcome) -> None:
        """The time to join is over, or a step of the first delay, which goes on while members keep coming."""
        if delay is None or not group.new_member_added or delay.remaining_ms == 0:
            if group.state is PREPARING_REBALANCE:
                self.complete(group, now, outcome)
            return
        group.new_member_added = False
        step_ms = max(
            min(self.settings.initial_rebalance_delay_ms, delay.remaining_ms), self.settings.initial_rebalance_quiet_ms
        )
        key = TimerKey(Timer.JOIN, group.group_id)
        following = InitialDelay(step_ms, max(delay.remaining_ms - delay.delay_ms, 0))
        self._timers.schedule(key, now.ms + step_ms, following)

    def expire_sync(self, group: ClassicGroup, generation_id: int, now: Now, outcome: Outcome) -> None:
        """Members that joined the generation and never asked for their assignment are out."""
        if generation_id != group.generation_id or group.state not in (COMPLETING_REBALANCE, STABLE):
            return
        if group.pending_sync_members:
            for member_id in list(group.pending_sync_members):
                group.remove(member_id)
                self.forget_session(group, member_id)
            self.prepare(group, now, outcome)

    def received_sync(self, group: ClassicGroup, member_id: str) -> None:
        """A member asked for its assignment."""
        group.pending_sync_members.discard(member_id)
        if not group.pending_sync_members:
            self._timers.cancel(TimerKey(Timer.SYNC, group.group_id))

    def expire_session(self, group: ClassicGroup, member_id: str, now: Now, outcome: Outcome) -> None:
        """A member was silent for too long."""
        if member_id in group.pending_join_members:
            self.remove_pending(group, member_id, now, outcome)
        elif member_id in group.members and not group.members[member_id].has_satisfied_heartbeat:
            self.remove(group, group.members[member_id], outcome)
            self.after_removal(group, now, outcome)

    def remove(self, group: ClassicGroup, member: ClassicMember, outcome: Outcome) -> None:
        """Takes a member out of the group; whatever it waits for ends with UNKNOWN_MEMBER_ID."""
        self.forget_session(group, member.member_id)
        group.remove(member.member_id)
        if member.awaiting_join is not None:
            outcome.complete(member.awaiting_join, JoinGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID))
        if member.awaiting_sync is not None:
            outcome.complete(member.awaiting_sync, SyncGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID))

    def fence(self, member: ClassicMember, outcome: Outcome) -> None:
        """Answers what a static member waits for whose instance has another member id now."""
        if member.awaiting_join is not None:
            outcome.complete(member.awaiting_join, JoinGroupResponse(ErrorCode.FENCED_INSTANCE_ID, member.member_id))
        if member.awaiting_sync is not None:
            outcome.complete(member.awaiting_sync, SyncGroupResponse(ErrorCode.FENCED_INSTANCE_ID))

    def remove_pending(self, group: ClassicGroup, member_id: str, now: Now, outcome: Outcome) -> None:
        """Forgets a member that got its id and never came back with it."""
        group.remove(member_id)
        if group.state is PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete(group, now, outcome)

    def after_removal(self, group: ClassicGroup, now: Now, outcome: Outcome) -> None:
        """The others share what the removed members had."""
        if group.state in (STABLE, COMPLETING_REBALANCE):
            self.prepare(group, now, outcome)
        elif group.state is PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete(group, now, outcome)

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes], now: Now, outcome: Outcome) -> None:
        """The leader's assignment: once it is in the log the generation is complete and everybody gets its part."""
        outcome.records.append(group.metadata_record(assignments))
        waiting = [member for member in group.members.values() if member.awaiting_sync is not None]
        for member in waiting:
            assert member.awaiting_sync is not None
            answer = synced(group, assignments.get(member.member_id, b""))
            outcome.complete(member.awaiting_sync, answer)
        outcome.commits.append(lambda: self._assigned(group, assignments, waiting, now))
        outcome.rollbacks.append(lambda error, failed: self._not_assigned(group, error, now, failed))

    def _assigned(
        self, group: ClassicGroup, assignments: dict[str, bytes], waiting: list[ClassicMember], now: Now
    ) -> None:
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        for member in waiting:
            member.awaiting_sync = None
            self.keep_alive(group, member, now)
        group.move_to(STABLE, now.wall_ms)

    def _not_assigned(self, group: ClassicGroup, error: ErrorCode, now: Now, outcome: Outcome) -> None:
        self.abandon_assignment(group, append_error(error), now, outcome)
        self.prepare_or_complete(group, now, outcome)

    def abandon_assignment(self, group: ClassicGroup, error: ErrorCode, now: Now, outcome: Outcome) -> None:
        """The generation will not complete: all who wait for their part get the error."""
        for member in group.members.values():
            member.assignment = b""
            if member.awaiting_sync is not None:
                outcome.complete(member.awaiting_sync, SyncGroupResponse(error))
                member.awaiting_sync = None
                self.keep_alive(group, member, now)

    def answer_all(self, group: ClassicGroup, error: ErrorCode, outcome: Outcome) -> None:
        """Gives the error to all who wait, of a group that goes away from here."""
        for member in group.members.values():
            if member.awaiting_join is not None:
                outcome.complete(member.awaiting_join, JoinGroupResponse(error, member.member_id))
            if member.awaiting_sync is not None:
                outcome.complete(member.awaiting_sync, SyncGroupResponse(error))


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
