"""The coordinator of the groups of one `__consumer_offsets` partition.

It is a state machine without I/O. Commands (`join_group`, `offset_commit`, ...) return a `Result`; the shell appends
its records, calls `commit` (or `rollback`), and sends the answers. `replay` alone changes what must outlive a crash:
the committed offsets, consumer groups, and each classic group's last completed generation. Sessions, rebalances under
way and parked requests are soft state beside it.

    replay(every record of the log) -> loaded(now) -> [ command(request, now) -> commit | rollback ]* -> unload()

Deadlines: after each step the shell asks `next_deadline()`, and when that time has come calls `expire(now)` until it
returns None, treating each result like a command's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from rayka.coordinator import listing
from rayka.coordinator.classic_group import PREPARING_REBALANCE, STABLE, ClassicGroup
from rayka.coordinator.classic_join import ClassicJoin
from rayka.coordinator.classic_membership import ClassicMembership
from rayka.coordinator.offset_rules import ClassicOffsetRules, CommitCheck, OffsetRules
from rayka.coordinator.offsets import NO_PRODUCER_ID, Offsets, tombstone
from rayka.coordinator.rebalance import Rebalance, Timer, TimerKey
from rayka.coordinator.records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, Record
from rayka.coordinator.requests import (
    UNKNOWN_MEMBER_ID,
    DeleteGroupsResponse,
    DescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    ListedGroup,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from rayka.coordinator.result import Completion, Outcome, Result, append_error
from rayka.coordinator.settings import GroupSettings
from rayka.coordinator.timers import TimerQueue
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE


def java_hash(text: str) -> int:
    """Java's String.hashCode, as a signed 32-bit integer."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for_group(group_id: str, num_partitions: int) -> int:
    """The partition of `__consumer_offsets` whose coordinator has the group."""
    value = java_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % num_partitions


class GroupCoordinator:
    """The groups of one partition."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = Offsets(settings)
        self._timers: TimerQueue[TimerKey] = TimerQueue()
        self._rebalance = Rebalance(settings, self._timers)
        self._classic_join = ClassicJoin(self._rebalance, self._timers)
        self._classic_membership = ClassicMembership(self._rebalance)
        self._handles = itertools.count(1)
        self._is_loading = True

    def replay(self, record: Record, record_offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """Applies a record of the log."""
        match record.key:
            case OffsetCommitKey() as key:
                self.offsets.replay(key, record.value, record_offset, producer_id)
                if record.value is not None and key.group not in self.groups:
                    self.groups[key.group] = ClassicGroup(key.group, -1)
            case GroupMetadataKey(group_id):
                self._replay_classic(group_id, record.value)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            if group is not None:
                self._rebalance.forget(group)
                del self.groups[group_id]
        elif group is None or self._is_loading:
            self.groups[group_id] = ClassicGroup.load(group_id, value)
        else:
            group.persisted = value

    def end_transaction(self, producer_id: int, is_committed: bool) -> None:
        """Applies a transaction marker of the log."""
        self.offsets.end_transaction(producer_id, is_committed)

    def loaded(self, now_ms: int) -> None:
        """The log has been replayed: sessions begin anew, and groups that are too large by now rebalance."""
        self._is_loading = False
        for group in self.groups.values():
            for member in group.members.values():
                self._rebalance.keep_alive(group, member, now_ms)
            if len(group.members) > self.settings.max_size:
                self._rebalance.prepare(group, now_ms, Outcome())
        self._schedule_offset_expiry(now_ms)

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> tuple[Completion, ...]:
        """The coordinator moves elsewhere: the answers to all who wait."""
        outcome = Outcome()
        for group in self.groups.values():
            self._rebalance.close(group, error, outcome)
        self._timers.clear()
        return tuple(outcome.completions)

    def commit(self, result: Result[Any], base_offset: int = -1) -> None:
        """The records of `result` are in the log, from `base_offset` on."""
        for index, record in enumerate(result.records):
            self.replay(record, base_offset + index)
        if result.on_commit is not None:
            result.on_commit()

    def rollback(self, result: Result[Any], error: ErrorCode) -> Result[Any]:
        """The records of `result` could not be appended. What to answer instead; it has no records."""
        if result.on_rollback is None:
            return Result(None)
        return result.on_rollback(error)

    def join_group(self, request: JoinGroupRequest, now_ms: int) -> Result[JoinGroupResponse]:
        """JoinGroup. May be answered later."""
        error = self._check_join(request)
        if error is not NONE:
            return Result(JoinGroupResponse(error, request.member_id))
        handle, outcome = next(self._handles), Outcome()
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER_ID:
                return Result(JoinGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            group = self._create_classic(request.group_id, handle, now_ms, outcome)
        self._classic_join.join(group, request, handle, now_ms, outcome)
        return outcome.result(handle)

    def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        low, high = self.settings.min_session_timeout_ms, self.settings.max_session_timeout_ms
        return NONE if low <= request.session_timeout_ms <= high else ErrorCode.INVALID_SESSION_TIMEOUT

    def _create_classic(self, group_id: str, handle: int, now_ms: int, outcome: Outcome) -> ClassicGroup:
        """A new group is in the log from its first member on."""
        group = self.groups[group_id] = ClassicGroup(group_id, now_ms)
        outcome.records.append(group.metadata_record())

        def undo(error: ErrorCode, failed: Outcome) -> None:
            self._rebalance.forget(group)
            del self.groups[group_id]
            failed.complete(handle, JoinGroupResponse(append_error(error)))

        outcome.rollbacks.append(undo)
        return group

    def sync_group(self, request: SyncGroupRequest, now_ms: int) -> Result[SyncGroupResponse]:
        """SyncGroup. May be answered later."""
        if not request.group_id:
            return Result(SyncGroupResponse(ErrorCode.INVALID_GROUP_ID))
        group = self.groups.get(request.group_id)
        if group is None or group.is_empty:
            return Result(SyncGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        handle, outcome = next(self._handles), Outcome()
        self._classic_membership.sync(group, request, handle, now_ms, outcome)
        return outcome.result(handle)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Result[HeartbeatResponse]:
        """Heartbeat of a classic member."""
        if not request.group_id:
            return Result(HeartbeatResponse(ErrorCode.INVALID_GROUP_ID))
        group = self.groups.get(request.group_id)
        if group is None:
            return Result(HeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        return Result(self._classic_membership.heartbeat(group, request, now_ms))

    def leave_group(self, request: LeaveGroupRequest, now_ms: int) -> Result[LeaveGroupResponse]:
        """LeaveGroup, for one member or several."""
        if not request.group_id:
            return Result(LeaveGroupResponse(ErrorCode.INVALID_GROUP_ID))
        group = self.groups.get(request.group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            left = tuple(LeftMember(m.member_id, m.group_instance_id, unknown) for m in request.members)
            return Result(LeaveGroupResponse(members=left))
        handle, outcome = next(self._handles), Outcome()
        outcome.complete(handle, self._classic_membership.leave(group, request, now_ms, outcome))
        return outcome.result(handle)

    def offset_commit(
        self, request: OffsetCommitRequest, now_ms: int, is_transactional: bool = False
    ) -> Result[OffsetCommitResponse]:
        """OffsetCommit and TxnOffsetCommit; the records of the latter go into its producer's transaction."""
        check = self._check_commit(request, now_ms, is_transactional)
        return self.offsets.commit(request, check, now_ms, is_transactional)

    def _check_commit(self, request: OffsetCommitRequest, now_ms: int, is_transactional: bool) -> CommitCheck:
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation_id_or_member_epoch < 0:
                return CommitCheck()
            is_told = request.knows_member_epochs and not is_transactional
            return CommitCheck(ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.ILLEGAL_GENERATION)
        check = self._rules(group).commit(request, is_transactional)
        member = group.members.get(request.member_id)
        if check.error is NONE and member is not None and group.state in (STABLE, PREPARING_REBALANCE):
            self._rebalance.keep_alive(group, member, now_ms)
        return check

    def _rules(self, group: ClassicGroup) -> OffsetRules:
        return ClassicOffsetRules(group)

    def offset_fetch(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """OffsetFetch of one group. Answer when all that was committed so far is durable."""
        group = self.groups.get(request.group_id)
        error = NONE if group is None else self._rules(group).fetch(request.member_id, request.member_epoch)
        if error is not NONE:
            return OffsetFetchResponse(request.group_id, error)
        return self.offsets.fetch(request)

    def offset_delete(self, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
        """OffsetDelete."""
        if not request.group_id:
            return Result(OffsetDeleteResponse(ErrorCode.INVALID_GROUP_ID))
        group = self.groups.get(request.group_id)
        if group is None:
            return Result(OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND))
        return self.offsets.delete(request, self._rules(group))

    def delete_groups(self, group_ids: Sequence[str]) -> Result[DeleteGroupsResponse]:
        """DeleteGroups: empty groups go, with their offsets."""
        errors = tuple(self._check_delete(group_id) for group_id in group_ids)
        records = tuple(
            record
            for group_id, error in zip(group_ids, errors, strict=True)
            if error is NONE
            for record in (*self.offsets.tombstones(group_id), *self._tombstones(group_id))
        )
        failed = DeleteGroupsResponse
        return Result(
            DeleteGroupsResponse(errors),
            records,
            on_rollback=lambda error: Result(failed(tuple(append_error(error) if e is NONE else e for e in errors))),
        )

    def _check_delete(self, group_id: str) -> ErrorCode:
        group = self.groups.get(group_id)
        return ErrorCode.GROUP_ID_NOT_FOUND if group is None else self._rules(group).delete_group()

    def _tombstones(self, group_id: str) -> tuple[Record, ...]:
        return (Record(GroupMetadataKey(group_id)),)

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> tuple[ListedGroup, ...]:
        """The groups, of these states and types if any are given (in any case of letters)."""
        return listing.list_groups(self.groups.values(), states, types)

    def describe_groups(self, group_ids: Sequence[str]) -> tuple[DescribedGroup, ...]:
        """DescribeGroups. One that is not here has GROUP_ID_NOT_FOUND, which versions before 6 leave out."""
        return tuple(listing.describe_classic(group_id, self.groups.get(group_id)) for group_id in group_ids)

    def next_deadline(self) -> int | None:
        """When `expire` has something to do, in milliseconds; None if nothing is waited for."""
        return self._timers.next_deadline()

    def expire(self, now_ms: int) -> Result[None] | None:
        """Does what is due until there is something to append or to answer; None: nothing is due any more."""
        while (due := self._timers.pop(now_ms)) is not None:
            key, argument = due
            outcome = Outcome()
            if key.timer is Timer.OFFSETS:
                self._expire_offsets(now_ms, outcome)
            elif (group := self.groups.get(key.group_id)) is not None:
                self._expire_classic(group, key, argument, now_ms, outcome)
            if outcome.records or outcome.completions:
                return outcome.notice()
        return None

    def _expire_classic(self, group: ClassicGroup, key: TimerKey, argument: Any, now_ms: int, outcome: Outcome) -> None:
        match key.timer:
            case Timer.SESSION:
                self._rebalance.expire_session(group, key.member_id, now_ms, outcome)
            case Timer.JOIN:
                self._rebalance.expire_join(group, argument, now_ms, outcome)
            case Timer.SYNC:
                self._rebalance.expire_sync(group, argument, now_ms, outcome)

    def _schedule_offset_expiry(self, now_ms: int) -> None:
        interval_ms = self.settings.offsets_retention_check_interval_ms
        self._timers.schedule(TimerKey(Timer.OFFSETS), now_ms + interval_ms)

    def _expire_offsets(self, now_ms: int, outcome: Outcome) -> None:
        """Offsets that were kept for long enough go, and with the last one an empty group."""
        self._schedule_offset_expiry(now_ms)
        for group_id, group in self.groups.items():
            expired = list(self.offsets.expired(group_id, self._rules(group), now_ms))
            outcome.records.extend(tombstone(group_id, partition) for partition in expired)
            if group.is_unused and self.offsets.count(group_id) == len(expired):
                outcome.records.extend(self._tombstones(group_id))

    def topics_deleted(self, topics: frozenset[str]) -> Result[None]:
        """Forgets the offsets of topics that are gone."""
        return Result(None, tuple(self.offsets.topic_tombstones(topics)))
