"""The coordinator of the groups of one `__consumer_offsets` partition, as a `spec.Coordinator`.

A command reads the state and returns a `Result`. Only `replay` changes the durable state: the committed offsets,
consumer groups, and each classic group's last completed generation. Sessions, rebalances in progress and waiting
requests are soft state, which `commit` changes after the append. A request is handled by the type of its group, which a
request can convert between classic and consumer. A group without members takes the type that its next member uses.
"""

from __future__ import annotations

import itertools
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.groups import describe
from rayka.coordinator.groups.classic.changes import NO_REQUEST, ClassicChanges
from rayka.coordinator.groups.classic.group import ClassicGroup
from rayka.coordinator.groups.classic.join import ClassicJoin
from rayka.coordinator.groups.classic.members import ClassicMembers
from rayka.coordinator.groups.classic.rebalance import Rebalance
from rayka.coordinator.groups.classic.requests import (
    UNKNOWN_MEMBER_ID,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.members import ConsumerMembers
from rayka.coordinator.groups.consumer.requests import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from rayka.coordinator.groups.deadlines import GroupTimer, GroupTimerKey
from rayka.coordinator.groups.expiry import expired_records
from rayka.coordinator.groups.records import CoordinatorRecord
from rayka.coordinator.groups.requests import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from rayka.coordinator.groups.settings import GroupSettings, SettingsByGroup
from rayka.coordinator.groups.share.group import ShareGroup
from rayka.coordinator.groups.share.members import AcceptShareHeartbeat, ShareMembers
from rayka.coordinator.groups.share.offsets import AcceptStateChange, ShareOffsets
from rayka.coordinator.groups.state import Group, GroupState
from rayka.coordinator.groups.steps import (
    AcceptHeartbeat,
    AdmitClassicMember,
    CreateClassicGroup,
    DowngradeGroup,
    RemoveMembers,
    ReplaceStaticMember,
    RespondEach,
    StoreAssignment,
    UpdateClassicGroup,
)
from rayka.coordinator.result import Completion, Pending, Result, append_error
from rayka.coordinator.spec import CoordinatorConfigs
from rayka.coordinator.timers import TimerQueue
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError
from rayka.types import NO_PRODUCER_ID

NONE = ErrorCode.NONE
_RETRY_BACKOFF_MS = 500


class GroupCoordinator:
    """The groups of one partition."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.state = GroupState(settings)
        self._timers: TimerQueue[GroupTimerKey] = TimerQueue()
        self._consumer_settings = SettingsByGroup("consumer", settings.consumer)
        self._rebalance = Rebalance(settings)
        self._join = ClassicJoin(self._rebalance)
        self.classic = ClassicMembers(self._rebalance, self._timers)
        self._consumer = ConsumerMembers(settings, self._consumer_settings, self.state, self._timers)
        self._share_settings = SettingsByGroup("share", settings.share)
        self.share = ShareMembers(settings, self._share_settings, self.state, self._timers)
        self.share_offsets = ShareOffsets(self.state)
        self._request_ids = itertools.count(NO_REQUEST + 1)

    def replay(self, record: CoordinatorRecord, record_offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a record of the log."""
        self.state.replay(record, record_offset, producer_id)

    def end_transaction(self, producer_id: int, is_committed: bool) -> None:
        """Apply a transaction marker of the log."""
        self.state.offsets.end_transaction(producer_id, is_committed)

    def on_loaded(self, now: Now) -> None:
        """Start all sessions. Classic groups that can't continue in their state rebalance."""
        self.state.is_loading = False
        for group in list(self.state.groups.values()):
            if isinstance(group, ConsumerGroup):
                self._consumer.on_loaded(group, now)
            elif isinstance(group, ShareGroup):
                self.share.on_loaded(group, now)
            else:
                self._on_classic_loaded(group, now)
        self._schedule_offset_expiry(now)

    def _on_classic_loaded(self, group: ClassicGroup, now: Now) -> None:
        changes = ClassicChanges(group, now)
        for member in group.members.values():
            changes.renew_session(member)
        if len(group.members) > self.settings.max_size or group.is_unled:
            self._rebalance.prepare(changes)
        self._update_classic(changes.update_step())

    def on_new_metadata_image(self, topics: Topics) -> Result[None]:
        """Delete the offsets of deleted topics; groups change with their next heartbeats."""
        old, self.state.topics = self.state.topics, topics
        gone = {topic.topic_id: topic.name for topic in old.by_name.values() if topic.topic_id not in topics.by_id}
        if not gone:
            return Result(None)
        records = (*self.state.offsets.topic_tombstones(gone), *self.share_offsets.topics_gone(gone))
        return Result(None, records, is_atomic=False)

    def on_new_configs(self, configs: CoordinatorConfigs) -> None:
        """Take over the settings of consumer and share groups; the others are read only when the broker starts."""
        settings = GroupSettings.parse(configs.broker)
        self._consumer_settings.configure(settings.consumer, configs.groups)
        self._share_settings.configure(settings.share, configs.groups)

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> tuple[Completion, ...]:
        """Answer all waiting requests with the error."""
        self._timers.clear()
        completions: list[Completion] = []
        for group in self.state.groups.values():
            if isinstance(group, ClassicGroup):
                changes = ClassicChanges(group, Now(0, 0))
                self._rebalance.answer_all(changes, error)
                completions += changes.completions
        return tuple(completions)

    def commit(self, step: Any, now: Now) -> tuple[Completion, ...]:
        """The records that belong to the step have been replayed."""
        match step:
            case UpdateClassicGroup():
                self._update_classic(step)
            case ReplaceStaticMember():
                self._update_classic(step.update)
            case CreateClassicGroup():
                return self._join_created(step, now)
            case StoreAssignment():
                changes = self._after(step.update, now)
                self._rebalance.complete_generation(changes, dict(step.assignments))
                return self._apply(changes)
            case AcceptHeartbeat():
                self._consumer.accept_heartbeat(step, now)
            case AdmitClassicMember():
                self._consumer.admit_classic_member(step, now)
            case AcceptShareHeartbeat():
                self.share.accept_heartbeat(step, now)
            case AcceptStateChange():
                self.share_offsets.accept(step, now)
            case RemoveMembers():
                self._consumer.remove_members(step)
            case DowngradeGroup():
                return self._apply(self._consumer.downgrade(step, now))
        return ()

    def rollback(self, step: Any, error: ErrorCode, now: Now) -> Result[Any] | None:
        """The records that belong to the step could not be appended."""
        failed = append_error(error)
        match step:
            case UpdateClassicGroup():
                self._update_classic(step)
                return None
            case ReplaceStaticMember():
                return Result(JoinGroupResponse(failed, UNKNOWN_MEMBER_ID, leader=step.previous_leader))
            case CreateClassicGroup():
                return Result(JoinGroupResponse(failed))
            case StoreAssignment():
                changes = self._after(step.update, now)
                self._rebalance.fail_generation(changes, failed)
                return Result(Pending(step.request_id), completions=self._apply(changes))
            case RespondEach():
                return Result(step.response_type(tuple(failed if e is NONE else e for e in step.errors)))
            case DowngradeGroup():
                return self.rollback(step.removed, error, now)
            case RemoveMembers(retry=(key, argument)):
                self._timers.schedule(key, now.ms + _RETRY_BACKOFF_MS, argument)
                return Result(None)
            case None:
                return None
        return Result(step.response_type(failed))

    def _update_classic(self, step: UpdateClassicGroup) -> None:
        self.state.update_classic(step.group)
        self._timers.apply(step.timers)

    def _after(self, step: UpdateClassicGroup, now: Now) -> ClassicChanges:
        """Changes that come after those of a step."""
        self._update_classic(step)
        group = self.state.groups[step.group.group_id]
        assert isinstance(group, ClassicGroup)
        return ClassicChanges(group, now)

    def _apply(self, changes: ClassicChanges) -> tuple[Completion, ...]:
        """Changes without records count at once."""
        assert not changes.records, "records are appended before they count"
        self._update_classic(changes.update_step())
        return tuple(changes.completions)

    def validate_state(self) -> None:
        """Check the invariants. Raises AssertionError."""
        self.state.validate_state()

    def join_group(self, request: JoinGroupRequest, now: Now) -> Result[JoinGroupResponse]:
        """JoinGroup. May be answered later."""
        error = self._check_join(request)
        if error is not NONE:
            return Result(JoinGroupResponse(error, request.member_id))
        group = self.state.groups.get(request.group_id)
        if isinstance(group, ShareGroup):
            return Result(JoinGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            try:
                return self._consumer.join_classic(group, request, now)
            except RaykaError as refused:
                return Result(JoinGroupResponse(refused.code, request.member_id))
        request_id = next(self._request_ids)
        if isinstance(group, ClassicGroup):
            return self._join.join(ClassicChanges(group, now), request, request_id)
        if request.member_id != UNKNOWN_MEMBER_ID:
            return Result(JoinGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
        return self._create_classic(group, request, request_id, now)

    def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        low, high = self.settings.min_session_timeout_ms, self.settings.max_session_timeout_ms
        return NONE if low <= request.session_timeout_ms <= high else ErrorCode.INVALID_SESSION_TIMEOUT

    def _create_classic(
        self, empty: ConsumerGroup | None, request: JoinGroupRequest, request_id: int, now: Now
    ) -> Result[JoinGroupResponse]:
        """A new group, in place of an empty consumer group if there is one."""
        tombstones = () if empty is None else empty.tombstones()
        created = ClassicGroup(request.group_id, now.wall_ms).metadata_record()
        step = CreateClassicGroup(request, request_id)
        return Result(Pending(request_id), (*tombstones, created), step=step)

    def _join_created(self, step: CreateClassicGroup, now: Now) -> tuple[Completion, ...]:
        group = self.state.groups[step.request.group_id]
        assert isinstance(group, ClassicGroup)
        changes = ClassicChanges(group, now)
        self._join.join(changes, step.request, step.request_id)
        return self._apply(changes)

    def sync_group(self, request: SyncGroupRequest, now: Now) -> Result[SyncGroupResponse]:
        """SyncGroup. May be answered later."""
        if not request.group_id:
            return Result(SyncGroupResponse(ErrorCode.INVALID_GROUP_ID))
        group = self.state.groups.get(request.group_id)
        if group is None or group.is_empty or isinstance(group, ShareGroup):
            return Result(SyncGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        if isinstance(group, ClassicGroup):
            return self.classic.sync(ClassicChanges(group, now), request, next(self._request_ids))
        try:
            return Result(self._consumer.sync_classic(group, request, now))
        except RaykaError as refused:
            return Result(SyncGroupResponse(refused.code))

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Result[HeartbeatResponse]:
        """Heartbeat of a classic member."""
        if not request.group_id:
            return Result(HeartbeatResponse(ErrorCode.INVALID_GROUP_ID))
        group = self.state.groups.get(request.group_id)
        if group is None or isinstance(group, ShareGroup):
            return Result(HeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        if isinstance(group, ClassicGroup):
            return Result(self.classic.heartbeat(group, request, now))
        try:
            return Result(self._consumer.heartbeat_classic(group, request, now))
        except RaykaError as refused:
            return Result(HeartbeatResponse(refused.code))

    def leave_group(self, request: LeaveGroupRequest, now: Now) -> Result[LeaveGroupResponse]:
        """LeaveGroup, for one member or several."""
        if not request.group_id:
            return Result(LeaveGroupResponse(ErrorCode.INVALID_GROUP_ID))
        group = self.state.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            return self.classic.leave(ClassicChanges(group, now), request)
        if isinstance(group, ConsumerGroup):
            return self._consumer.leave_classic(group, request, now)
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        left = tuple(LeftMember(m.member_id, m.group_instance_id, unknown) for m in request.members)
        return Result(LeaveGroupResponse(members=left))

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat: join, stay or leave."""
        try:
            return self._consumer.heartbeat(request, now)
        except RaykaError as refused:
            return Result(ConsumerGroupHeartbeatResponse(refused.code, refused.message))

    def delete_groups(self, request: DeleteGroupsRequest, now: Now) -> Result[DeleteGroupsResponse]:
        """DeleteGroups: empty groups are deleted, with their offsets."""
        errors = tuple(self._check_delete(group_id) for group_id in request.group_ids)
        records = tuple(
            record
            for group_id, error in zip(request.group_ids, errors, strict=True)
            if error is NONE
            for record in (*self.state.offsets.tombstones(group_id), *self.state.tombstones(group_id))
        )
        return Result(DeleteGroupsResponse(errors), records, step=RespondEach(DeleteGroupsResponse, errors))

    def _check_delete(self, group_id: str) -> ErrorCode:
        group = self.state.groups.get(group_id)
        return ErrorCode.GROUP_ID_NOT_FOUND if group is None else self.state.rules(group).delete_group()

    def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """ListGroups."""
        return ListGroupsResponse(describe.list_groups(self.state.groups.values(), request.states, request.types))

    def describe_groups(self, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """DescribeGroups. A missing group has GROUP_ID_NOT_FOUND, which versions before 6 leave out."""
        groups = self.state.groups
        return DescribeGroupsResponse(
            tuple(describe.describe_classic(group_id, groups.get(group_id)) for group_id in request.group_ids)
        )

    def consumer_group_describe(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        """ConsumerGroupDescribe."""
        assignor, groups = self.settings.consumer_assignors[0], self.state.groups
        return ConsumerGroupDescribeResponse(
            tuple(
                describe.describe_consumer(group_id, groups.get(group_id), assignor, self.state.topics)
                for group_id in request.group_ids
            )
        )

    def first_needed_offset(self) -> int | None:
        """The log is compacted instead."""
        return None

    def next_deadline(self) -> int | None:
        """When to call `expire` next, as `Now.ms`; None if nothing is due later."""
        return self._timers.next_deadline()

    def expire(self, now: Now) -> Result[None] | None:
        """Handle due deadlines until there is something to append or to answer; None: nothing more is due."""
        while (due := self._timers.pop(now.ms)) is not None:
            key, argument = due
            try:
                result = self._expire(key, argument, now)
            except Exception:
                self._timers.schedule(key, now.ms + _RETRY_BACKOFF_MS, argument)
                raise
            if result is not None:
                return result
        return None

    def _expire(self, key: GroupTimerKey, argument: Any, now: Now) -> Result[None] | None:
        if key.timer is GroupTimer.OFFSETS:
            return self._expire_offsets(now)
        group: Group | None = self.state.groups.get(key.group_id)
        if isinstance(group, ClassicGroup):
            return self.classic.expire(ClassicChanges(group, now), key, argument)
        if isinstance(group, ShareGroup):
            return self.share.expire(group, key, argument, now)
        return None if group is None else self._consumer.expire(group, key, argument, now)

    def _schedule_offset_expiry(self, now: Now) -> None:
        interval_ms = self.settings.offsets_retention_check_interval_ms
        self._timers.schedule(GroupTimerKey(GroupTimer.OFFSETS), now.ms + interval_ms)

    def _expire_offsets(self, now: Now) -> Result[None] | None:
        """Delete what has expired, in as many batches as that needs."""
        self._schedule_offset_expiry(now)
        records = tuple(expired_records(self.state, now.wall_ms))
        return Result(None, records, is_atomic=False) if records else None
