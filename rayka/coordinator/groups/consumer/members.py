"""The commands of members of consumer groups, whichever protocol they speak, and what follows their appends.

A consumer group whose last consumer leaves becomes a classic group, if it can; a classic group becomes a consumer group
with the first consumer that joins (`migration.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from rayka.coordinator.clock import Now
from rayka.coordinator.groups import migration
from rayka.coordinator.groups.classic.changes import ClassicChanges
from rayka.coordinator.groups.classic.group import ClassicGroup
from rayka.coordinator.groups.classic.rebalance import Rebalance
from rayka.coordinator.groups.classic.requests import (
    UNKNOWN_MEMBER_ID,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from rayka.coordinator.groups.consumer.classic_member import ClassicConsumer
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.heartbeat import ConsumerHeartbeat, check_request
from rayka.coordinator.groups.consumer.member import JOIN_EPOCH, LEAVE_STATIC_EPOCH, ConsumerMember, MemberState
from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from rayka.coordinator.groups.consumer.update import ConsumerGroupUpdate
from rayka.coordinator.groups.deadlines import GroupTimer, GroupTimerKey, SessionWarning
from rayka.coordinator.groups.records import CoordinatorRecord, GroupMetadataKey
from rayka.coordinator.groups.settings import GroupSettings, SettingsByGroup
from rayka.coordinator.groups.share.group import ShareGroup
from rayka.coordinator.groups.state import NO_METADATA, Group, GroupState
from rayka.coordinator.groups.steps import (
    AcceptHeartbeat,
    AdmitClassicMember,
    DowngradeGroup,
    RemoveMembers,
    Respond,
)
from rayka.coordinator.result import Completion, Result
from rayka.coordinator.timers import TimerQueue
from rayka.errors import ErrorCode, RaykaError

R = TypeVar("R")


class ConsumerMembers:
    """Serves the members of consumer groups. A request that is refused raises the error that the member gets."""

    def __init__(
        self,
        settings: GroupSettings,
        group_settings: SettingsByGroup,
        state: GroupState,
        timers: TimerQueue[GroupTimerKey],
    ) -> None:
        self._settings = settings
        self._group_settings = group_settings
        self._state = state
        self._timers = timers
        self._rebalance = Rebalance(settings)
        self._heartbeats = ConsumerHeartbeat(settings, timers)
        self._classic = ClassicConsumer(self._heartbeats, timers)

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, now: Now) -> Result[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat: join, stay or leave."""
        group, topics = self._state.groups.get(request.group_id), self._state.topics
        if topics.version == NO_METADATA:
            raise RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the topics of the cluster are not known yet")
        if isinstance(group, ConsumerGroup):
            group_settings = self._group_settings.of(request.group_id)
            unchanged = self._heartbeats.unchanged_heartbeat(group, request, topics, group_settings, now)
            if unchanged is not None:
                return Result(unchanged)
        check_request(request, self._settings)
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(group, request, now)
        return self._heartbeat(group, request, now)

    def _heartbeat(
        self, group: Group | None, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        draft, records = self._draft(group, request)
        changes = self._update(draft, now)
        replaced = draft.static_member(request.instance_id)
        answer = self._heartbeats.heartbeat(changes, request, self._group_settings.of(request.group_id), now)
        step = AcceptHeartbeat(
            request.group_id,
            request.member_id,
            None if replaced is None else replaced.member_id,
            group if isinstance(group, ClassicGroup) else None,
            ConsumerGroupHeartbeatResponse,
        )
        return Result(answer, (*records, *changes.records), self._interrupted(group, now), step)

    def _draft(
        self, group: Group | None, request: ConsumerGroupHeartbeatRequest
    ) -> tuple[ConsumerGroup, Iterable[CoordinatorRecord]]:
        """The group to work on, as it is, new or converted, and the records of that. Raises GROUP_ID_NOT_FOUND."""
        if isinstance(group, ConsumerGroup):
            return group.draft(), ()
        if request.member_epoch != JOIN_EPOCH or isinstance(group, ShareGroup):
            reason = "Consumer group {} not found." if group is None else "Group {} is not a consumer group."
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, reason.format(request.group_id))
        if group is None:
            return ConsumerGroup(request.group_id), ()
        if group.is_empty:
            return ConsumerGroup(request.group_id), (CoordinatorRecord(GroupMetadataKey(request.group_id)),)
        migration.check_upgrade(group, self._settings)
        return migration.upgrade(group, self._state.topics)

    def _interrupted(self, group: Group | None, now: Now) -> tuple[Completion, ...]:
        """Members of a classic group that wait have to join again, in the consumer group."""
        if not isinstance(group, ClassicGroup):
            return ()
        changes = ClassicChanges(group, now)
        self._rebalance.answer_all(changes, ErrorCode.REBALANCE_IN_PROGRESS)
        return tuple(changes.completions)

    def accept_heartbeat(self, step: AcceptHeartbeat, now: Now) -> None:
        """A heartbeat's records are in the log."""
        group = self._state.groups[step.group_id]
        assert isinstance(group, ConsumerGroup)
        if step.upgraded is not None:
            self._upgraded(step.upgraded, now)
        self._forget_replaced(step.group_id, step.replaced_id, step.member_id)
        group.checked_version = self._state.topics.version
        self._heartbeats.renew_session(step.group_id, step.member_id, self._group_settings.of(step.group_id), now)
        self._heartbeats.watch_revocation(step.group_id, group.members[step.member_id], now)
        for timer in (GroupTimer.MEMBER_JOIN, GroupTimer.MEMBER_SYNC):
            self._timers.cancel(GroupTimerKey(timer, step.group_id, step.member_id))

    def _upgraded(self, classic: ClassicGroup, now: Now) -> None:
        """The sessions of a classic group's members continue in the consumer group."""
        for timer in (GroupTimer.JOIN, GroupTimer.SYNC):
            self._timers.cancel(GroupTimerKey(timer, classic.group_id))
        for member_id in classic.pending_join_members:
            self._timers.cancel(GroupTimerKey(GroupTimer.SESSION, classic.group_id, member_id))
        for member in classic.members.values():
            key = GroupTimerKey(GroupTimer.SESSION, classic.group_id, member.member_id)
            self._timers.schedule(key, now.ms + member.session_timeout_ms)

    def _forget_replaced(self, group_id: str, replaced_id: str | None, member_id: str) -> None:
        if replaced_id is not None and replaced_id != member_id:
            self._heartbeats.forget(group_id, replaced_id)

    def _leave(
        self, group: Group | None, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        if not isinstance(group, ConsumerGroup):
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
        member = self._heartbeats.leaving(group, request)
        answer = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
        if request.member_epoch != LEAVE_STATIC_EPOCH:
            removed = RemoveMembers(group.group_id, (member.member_id,), ConsumerGroupHeartbeatResponse)
            return self._fence(group, removed, answer, now)
        changes = self._update(group.draft(), now)
        self._heartbeats.leave_static_member(changes, member)
        return Result(answer, tuple(changes.records), step=Respond(ConsumerGroupHeartbeatResponse))

    def _fence(self, group: ConsumerGroup, removed: RemoveMembers, answer: R, now: Now) -> Result[R]:
        """Remove members, which may turn the group into a classic group."""
        changes = self._update(group.draft(), now)
        is_last_consumer = all(group.members[member_id].classic is None for member_id in removed.member_ids)
        if is_last_consumer and migration.can_downgrade(group, removed.member_ids, self._settings):
            for member_id in removed.member_ids:
                changes.extend(changes.group.member_tombstones(member_id))
            return self._downgrade(changes, removed, answer, now)
        changes.remove(sorted(removed.member_ids))
        return Result(answer, tuple(changes.records), step=removed)

    def _downgrade(self, changes: ConsumerGroupUpdate, removed: RemoveMembers, answer: R, now: Now) -> Result[R]:
        members = tuple(changes.group.members.values())
        changes.extend(migration.downgrade(changes.group, self._state.topics, now.wall_ms))
        return Result(answer, tuple(changes.records), step=DowngradeGroup(members, removed))

    def remove_members(self, step: RemoveMembers) -> None:
        """Members are out of the log."""
        for member_id in step.member_ids:
            self._heartbeats.forget(step.group_id, member_id)

    def downgrade(self, step: DowngradeGroup, now: Now) -> ClassicChanges:
        """The group is a classic group in the log: its members' sessions continue, and it rebalances."""
        group_id = step.removed.group_id
        self.remove_members(step.removed)
        classic = self._state.groups[group_id]
        assert isinstance(classic, ClassicGroup)
        changes = ClassicChanges(classic, now)
        for member in step.members:
            self._heartbeats.forget(group_id, member.member_id)
            changes.renew_session(migration.restore_protocols(changes.group, member))
        self._rebalance.prepare(changes)
        return changes

    def join_classic(self, group: ConsumerGroup, request: JoinGroupRequest, now: Now) -> Result[JoinGroupResponse]:
        """JoinGroup of a member that speaks the classic protocol."""
        if self._state.topics.version == NO_METADATA:
            raise RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the topics of the cluster are not known yet")
        is_new = request.member_id == UNKNOWN_MEMBER_ID
        new_id = f"{request.group_instance_id or request.client_id}-{request.new_id}"
        member_id = new_id if is_new else request.member_id
        self._classic.check_join(group, request, member_id)
        if is_new and request.group_instance_id is None and request.require_known_member_id:
            return Result(JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        replaced = group.static_member(request.group_instance_id)
        changes = self._update(group.draft(), now)
        member = self._classic.join(changes, request, member_id, self._group_settings.of(group.group_id))
        answer = self._classic.answer(member)
        may_downgrade = migration.can_downgrade(changes.group, (), self._settings)
        if replaced is not None and replaced.classic is None and may_downgrade:
            # The last consumer came back as a classic member.
            answer = replace(answer, generation_id=changes.group.epoch)
            removed = RemoveMembers(group.group_id, (replaced.member_id,), JoinGroupResponse)
            return self._downgrade(changes, removed, answer, now)
        replaced_id = None if replaced is None else replaced.member_id
        step = AdmitClassicMember(group.group_id, member, replaced_id, JoinGroupResponse)
        return Result(answer, tuple(changes.records), step=step)

    def admit_classic_member(self, step: AdmitClassicMember, now: Now) -> None:
        """The join of a classic member is in the log."""
        self._forget_replaced(step.group_id, step.replaced_id, step.member.member_id)
        self._classic.joined(step.group_id, step.member, now)

    def sync_classic(self, group: ConsumerGroup, request: SyncGroupRequest, now: Now) -> SyncGroupResponse:
        """SyncGroup of a classic member."""
        return self._classic.sync(group, request, self._state.topics, self._group_settings.of(group.group_id), now)

    def heartbeat_classic(self, group: ConsumerGroup, request: HeartbeatRequest, now: Now) -> HeartbeatResponse:
        """Heartbeat of a classic member."""
        return HeartbeatResponse(self._classic.heartbeat(group, request, self._group_settings.of(group.group_id), now))

    def leave_classic(self, group: ConsumerGroup, request: LeaveGroupRequest, now: Now) -> Result[LeaveGroupResponse]:
        """LeaveGroup of classic members."""
        left = tuple(self._left(group, identity) for identity in request.members)
        leaving = tuple(dict.fromkeys(member.member_id for member in left if member.error is ErrorCode.NONE))
        answer = LeaveGroupResponse(members=left)
        if not leaving:
            return Result(answer)
        return self._fence(group, RemoveMembers(group.group_id, leaving, LeaveGroupResponse), answer, now)

    def _left(self, group: ConsumerGroup, identity: MemberIdentity) -> LeftMember:
        try:
            member = self._classic.leaving(group, identity)
        except RaykaError as refused:
            return LeftMember(identity.member_id, identity.group_instance_id, refused.code)
        return LeftMember(member.member_id, identity.group_instance_id)

    def expire(self, group: ConsumerGroup, key: GroupTimerKey, argument: Any, now: Now) -> Result[None] | None:
        """Remove a member whose deadline has come, unless it has done since what the deadline was for."""
        if not _is_overdue(group, key, argument):
            return None
        if isinstance(argument, SessionWarning):
            self._heartbeats.warn(key, argument, now)
            return None
        removed = RemoveMembers(group.group_id, (key.member_id,), retry=(key, argument))
        return self._fence(group, removed, None, now)

    def on_loaded(self, group: ConsumerGroup, now: Now) -> None:
        """Start the sessions of a group's members."""
        for member in group.members.values():
            if member.classic is None:
                group_settings = self._group_settings.of(group.group_id)
                self._heartbeats.renew_session(group.group_id, member.member_id, group_settings, now)
            else:
                self._heartbeats.renew_classic_session(group.group_id, member, now)
            self._heartbeats.watch_revocation(group.group_id, member, now)

    def _update(self, draft: ConsumerGroup, now: Now) -> ConsumerGroupUpdate:
        return ConsumerGroupUpdate(draft, self._state.topics, self._settings.consumer_assignors, now.wall_ms)


def _is_overdue(group: ConsumerGroup, key: GroupTimerKey, argument: Any) -> bool:
    """Whether the member is still in the state whose deadline has come."""
    member: ConsumerMember | None = group.members.get(key.member_id)
    if member is None:
        return False
    match key.timer:
        case GroupTimer.REBALANCE:
            return member.state is MemberState.UNREVOKED_PARTITIONS and member.pending_revocation == argument
        case GroupTimer.MEMBER_JOIN | GroupTimer.MEMBER_SYNC:
            return member.classic is not None
        case timer:
            return timer is GroupTimer.SESSION
