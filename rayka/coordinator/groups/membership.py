"""Requests of members, led to what their group is: a classic group, a consumer group, or one about to become the other.

A group that nobody is in becomes what its next member speaks; one with members is converted if it can be.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.groups import migration
from rayka.coordinator.groups.classic.group import PREPARING_REBALANCE, STABLE, ClassicGroup
from rayka.coordinator.groups.classic.join import ClassicJoin
from rayka.coordinator.groups.classic.members import ClassicMembership
from rayka.coordinator.groups.classic.rebalance import Rebalance, Timer, TimerKey
from rayka.coordinator.groups.consumer.classic_member import ClassicConsumer
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.heartbeat import ConsumerHeartbeat, check_request
from rayka.coordinator.groups.consumer.member import JOIN_EPOCH, LEAVE_STATIC_EPOCH, ConsumerMember
from rayka.coordinator.groups.consumer.update import ConsumerChanges
from rayka.coordinator.groups.conversion import Conversion, proposed
from rayka.coordinator.groups.expiry import Deadlines
from rayka.coordinator.groups.records import GroupMetadataKey, Record
from rayka.coordinator.groups.requests import (
    UNKNOWN_MEMBER_ID,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
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
from rayka.coordinator.groups.settings import ConsumerGroupSettings, ConsumerSettings, GroupSettings
from rayka.coordinator.groups.state import NO_METADATA, Group, Registry
from rayka.coordinator.result import Completion, Outcome, Result, append_error
from rayka.coordinator.timers import TimerQueue
from rayka.errors import ErrorCode, RaykaError

NONE = ErrorCode.NONE


class Membership:
    """The members of all groups of a partition."""

    def __init__(self, settings: GroupSettings, registry: Registry, timers: TimerQueue[TimerKey]) -> None:
        self.settings = settings
        self.consumer_settings = ConsumerSettings(settings.consumer)
        self._registry = registry
        self._timers = timers
        self.rebalance = Rebalance(settings, timers)
        self._classic_join = ClassicJoin(self.rebalance, timers)
        self._classic = ClassicMembership(self.rebalance)
        self._consumer = ConsumerHeartbeat(settings, timers)
        self._classic_consumer = ClassicConsumer(self._consumer, timers)
        self._conversion = Conversion(settings, registry, self._consumer, self.rebalance)
        self._deadlines = Deadlines(registry, timers, self.rebalance, self._consumer, self._conversion)
        self._handles = itertools.count(1)

    def join_group(self, request: JoinGroupRequest, now: Now) -> Result[JoinGroupResponse]:
        """JoinGroup. May be answered later."""
        error = self._check_join(request)
        if error is not NONE:
            return Result(JoinGroupResponse(error, request.member_id))
        group = self._registry.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            if self._registry.topics.version == NO_METADATA:
                return Result(JoinGroupResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, request.member_id))
            try:
                return self._join_consumer_group(group, request, now)
            except RaykaError as refused:
                return Result(JoinGroupResponse(refused.code, request.member_id))
        handle, outcome = next(self._handles), Outcome()
        if not isinstance(group, ClassicGroup):
            if request.member_id != UNKNOWN_MEMBER_ID:
                return Result(JoinGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            group = self._create_classic(request.group_id, handle, now, outcome)
        self._classic_join.join(group, request, handle, now, outcome)
        return outcome.result(handle)

    def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        low, high = self.settings.min_session_timeout_ms, self.settings.max_session_timeout_ms
        return NONE if low <= request.session_timeout_ms <= high else ErrorCode.INVALID_SESSION_TIMEOUT

    def _create_classic(self, group_id: str, handle: int, now: Now, outcome: Outcome) -> ClassicGroup:
        """A new group, in the place of an empty consumer group if there is one. It is in the log from now on."""
        groups = self._registry.groups
        before = groups.get(group_id)
        group = groups[group_id] = ClassicGroup(group_id, now.wall_ms)
        if isinstance(before, ConsumerGroup):
            outcome.records.extend(before.tombstones())
        outcome.records.append(group.metadata_record())

        def undo(error: ErrorCode, failed: Outcome) -> None:
            self.rebalance.forget(group)
            del groups[group_id]
            if before is not None:
                groups[group_id] = before
            failed.complete(handle, JoinGroupResponse(append_error(error)))

        outcome.rollbacks.append(undo)
        return group

    def _join_consumer_group(
        self, group: ConsumerGroup, request: JoinGroupRequest, now: Now
    ) -> Result[JoinGroupResponse]:
        is_new = request.member_id == UNKNOWN_MEMBER_ID
        member_id = (
            f"{request.group_instance_id or request.client_id}-{request.new_id}" if is_new else request.member_id
        )
        self._classic_consumer.check_join(group, request, member_id)
        if is_new and request.group_instance_id is None and request.require_known_member_id:
            return Result(JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        replaced = group.static_member(request.group_instance_id)
        changes = self._conversion.changes(group.draft(), now)
        member = self._classic_consumer.join(changes, request, member_id, self.consumer_settings.of(group.group_id))
        if (
            replaced is not None
            and replaced.classic is None
            and migration.can_downgrade(changes.group, set(), self.settings)
        ):
            return self._join_downgraded(changes, member, now)

        def commit() -> None:
            if replaced is not None and replaced.member_id != member_id:
                self._consumer.forget(group.group_id, replaced.member_id)
            self._classic_consumer.joined(group.group_id, member, now)

        return proposed(changes, self._classic_consumer.answer(member), commit, JoinGroupResponse)

    def _join_downgraded(self, changes: ConsumerChanges, member: ConsumerMember, now: Now) -> Result[JoinGroupResponse]:
        """The last consumer came back as a classic member: the group is classic again, and will rebalance."""
        answer = self._classic_consumer.answer(member)._replace(generation_id=changes.group.epoch)
        commit = self._conversion.downgrade(changes, now)
        return proposed(changes, answer, commit, JoinGroupResponse)

    def sync_group(self, request: SyncGroupRequest, now: Now) -> Result[SyncGroupResponse]:
        """SyncGroup. May be answered later."""
        if not request.group_id:
            return Result(SyncGroupResponse(ErrorCode.INVALID_GROUP_ID))
        group = self._registry.groups.get(request.group_id)
        if group is None or group.is_empty:
            return Result(SyncGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        if isinstance(group, ConsumerGroup):
            own = self.consumer_settings.of(request.group_id)
            try:
                return Result(self._classic_consumer.sync(group, request, self._registry.topics, own, now))
            except RaykaError as refused:
                return Result(SyncGroupResponse(refused.code))
        handle, outcome = next(self._handles), Outcome()
        self._classic.sync(group, request, handle, now, outcome)
        return outcome.result(handle)

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Result[HeartbeatResponse]:
        """Heartbeat of a classic member."""
        if not request.group_id:
            return Result(HeartbeatResponse(ErrorCode.INVALID_GROUP_ID))
        group = self._registry.groups.get(request.group_id)
        if group is None:
            return Result(HeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        if isinstance(group, ClassicGroup):
            return Result(self._classic.heartbeat(group, request, now))
        try:
            own = self.consumer_settings.of(request.group_id)
            return Result(HeartbeatResponse(self._classic_consumer.heartbeat(group, request, own, now)))
        except RaykaError as refused:
            return Result(HeartbeatResponse(refused.code))

    def leave_group(self, request: LeaveGroupRequest, now: Now) -> Result[LeaveGroupResponse]:
        """LeaveGroup, for one member or several."""
        if not request.group_id:
            return Result(LeaveGroupResponse(ErrorCode.INVALID_GROUP_ID))
        group = self._registry.groups.get(request.group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            left = tuple(LeftMember(m.member_id, m.group_instance_id, unknown) for m in request.members)
            return Result(LeaveGroupResponse(members=left))
        if isinstance(group, ConsumerGroup):
            return self._leave_consumer_group(group, request, now)
        handle, outcome = next(self._handles), Outcome()
        outcome.complete(handle, self._classic.leave(group, request, now, outcome))
        return outcome.result(handle)

    def _leave_consumer_group(
        self, group: ConsumerGroup, request: LeaveGroupRequest, now: Now
    ) -> Result[LeaveGroupResponse]:
        leaving: dict[str, ConsumerMember] = {}
        left = tuple(self._left(group, identity, leaving) for identity in request.members)
        if not leaving:
            return Result(LeaveGroupResponse(members=left))
        return self._conversion.fence(group, set(leaving), LeaveGroupResponse(members=left), LeaveGroupResponse, now)

    def _left(self, group: ConsumerGroup, identity: MemberIdentity, leaving: dict[str, ConsumerMember]) -> LeftMember:
        try:
            member = self._classic_consumer.leaving(group, identity)
        except RaykaError as refused:
            return LeftMember(identity.member_id, identity.group_instance_id, refused.code)
        leaving[member.member_id] = member
        return LeftMember(member.member_id, identity.group_instance_id)

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat: join, heartbeat or leave."""
        group, topics = self._registry.groups.get(request.group_id), self._registry.topics
        if topics.version == NO_METADATA:
            return Result(ConsumerGroupHeartbeatResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        if isinstance(group, ConsumerGroup):
            steady = self._consumer.steady(group, request, topics, self.consumer_settings.of(request.group_id), now)
            if steady is not None:
                return Result(steady)
        try:
            check_request(request, self.settings)
            if request.member_epoch < JOIN_EPOCH:
                return self._leave(request, now)
            return self._heartbeat(request, now)
        except RaykaError as refused:
            return Result(ConsumerGroupHeartbeatResponse(refused.code, refused.message))

    def _heartbeat(self, request: ConsumerGroupHeartbeatRequest, now: Now) -> Result[ConsumerGroupHeartbeatResponse]:
        own, outcome = self.consumer_settings.of(request.group_id), Outcome()
        group = self._registry.groups.get(request.group_id)
        changes = self._conversion.changes(self._draft(group, request, outcome), now)
        replaced = changes.group.static_member(request.instance_id)
        answer = self._consumer.heartbeat(changes, request, own, now)
        changes.records[:0] = outcome.records

        def commit() -> None:
            if isinstance(group, ClassicGroup):
                self._upgraded(group, now)
            if replaced is not None and replaced.member_id != request.member_id:
                self._consumer.forget(request.group_id, replaced.member_id)
            self._went_on(request, own, now)

        result = proposed(changes, answer, commit, ConsumerGroupHeartbeatResponse)
        return dataclasses.replace(result, completions=tuple(outcome.completions))

    def _upgraded(self, classic: ClassicGroup, now: Now) -> None:
        """The members' sessions go on in the consumer group."""
        self.rebalance.forget(classic)
        for member in classic.members.values():
            self.rebalance.keep_alive(classic, member, now)

    def _went_on(self, request: ConsumerGroupHeartbeatRequest, own: ConsumerGroupSettings, now: Now) -> None:
        """The heartbeat's records are in the log."""
        group = self._registry.groups[request.group_id]
        assert isinstance(group, ConsumerGroup)
        group.checked_version = self._registry.topics.version
        self._consumer.keep_consumer_alive(request.group_id, request.member_id, own, now)
        self._consumer.watch_revocation(request.group_id, group.members[request.member_id], now)
        for timer in (Timer.MEMBER_JOIN, Timer.MEMBER_SYNC):
            self._timers.cancel(TimerKey(timer, request.group_id, request.member_id))

    def _draft(self, group: Group | None, request: ConsumerGroupHeartbeatRequest, outcome: Outcome) -> ConsumerGroup:
        """The group to work on: as it is, new, or converted. Raises GROUP_ID_NOT_FOUND."""
        if isinstance(group, ConsumerGroup):
            return group.draft()
        if request.member_epoch != JOIN_EPOCH:
            reason = "Consumer group {} not found." if group is None else "Group {} is not a consumer group."
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, reason.format(request.group_id))
        if group is None:
            return ConsumerGroup(request.group_id)
        if group.is_empty:
            outcome.records.append(Record(GroupMetadataKey(request.group_id)))
            return ConsumerGroup(request.group_id)
        migration.check_upgrade(group, self.settings)
        draft, records = migration.upgrade(group, self._registry.topics)
        outcome.records.extend(records)
        self.rebalance.answer_all(group, ErrorCode.REBALANCE_IN_PROGRESS, outcome)
        return draft

    def _leave(self, request: ConsumerGroupHeartbeatRequest, now: Now) -> Result[ConsumerGroupHeartbeatResponse]:
        group = self._registry.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
        member = self._consumer.leaving(group, request)
        answer = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
        if request.member_epoch != LEAVE_STATIC_EPOCH:
            return self._conversion.fence(group, {member.member_id}, answer, ConsumerGroupHeartbeatResponse, now)
        changes = self._conversion.changes(group.draft(), now)
        self._consumer.leave_for_now(changes, member)
        return proposed(changes, answer, lambda: None, ConsumerGroupHeartbeatResponse)

    def expire(self, key: TimerKey, argument: Any, now: Now) -> Result[None] | None:
        """See `Deadlines.expire`."""
        return self._deadlines.expire(key, argument, now)

    def loaded(self, now: Now) -> None:
        """Sessions and deadlines begin anew. Classic groups that cannot go on as they are rebalance."""
        for group in self._registry.groups.values():
            if isinstance(group, ConsumerGroup):
                self._loaded_consumer_group(group, now)
                continue
            for member in group.members.values():
                self.rebalance.keep_alive(group, member, now)
            if len(group.members) > self.settings.max_size or group.is_unled:
                self.rebalance.prepare(group, now, Outcome())

    def _loaded_consumer_group(self, group: ConsumerGroup, now: Now) -> None:
        own = self.consumer_settings.of(group.group_id)
        for member in group.members.values():
            if member.classic is None:
                self._consumer.keep_consumer_alive(group.group_id, member.member_id, own, now)
            else:
                timeout_ms = member.classic.session_timeout_ms
                self._consumer.keep_alive(group.group_id, member.member_id, timeout_ms, now)
            self._consumer.watch_revocation(group.group_id, member, now)

    def unload(self, error: ErrorCode) -> tuple[Completion, ...]:
        """The answers to all who wait."""
        outcome = Outcome()
        for group in self._registry.groups.values():
            if isinstance(group, ClassicGroup):
                self.rebalance.answer_all(group, error, outcome)
        return tuple(outcome.completions)

    def committed(self, group: ClassicGroup, member_id: str, now: Now) -> None:
        """A commit is as good as a heartbeat, as long as the generation lasts."""
        member = group.members.get(member_id)
        if member is not None and group.state in (STABLE, PREPARING_REBALANCE):
            self.rebalance.keep_alive(group, member, now)
