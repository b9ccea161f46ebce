"""The coordinator of the groups of one `__consumer_offsets` partition.

It is a state machine without I/O. Commands (`join_group`, `offset_commit`, ...) return a `Result`; the shell appends
its records, calls `commit` (or `rollback`), and sends the answers. `replay` alone changes what must outlive a crash:
the committed offsets, consumer groups, and each classic group's last completed generation. Sessions, rebalances under
way and parked requests are soft state beside it.

    replay(every record of the log) -> loaded(now) -> [ command(request, now) -> commit | rollback ]* -> unload()

Deadlines: after each step the shell asks `next_deadline()`, and when that time has come calls `expire(now)` until it
returns None, treating each result like a command's. They are on a clock that nobody sets (`clock.Now`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.groups import describe as listing
from rayka.coordinator.groups.classic.group import ClassicGroup
from rayka.coordinator.groups.classic.rebalance import Timer, TimerKey
from rayka.coordinator.groups.membership import Membership
from rayka.coordinator.groups.offset_rules import CommitCheck
from rayka.coordinator.groups.offsets import NO_PRODUCER_ID, tombstone
from rayka.coordinator.groups.records import Record
from rayka.coordinator.groups.requests import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsResponse,
    DescribedConsumerGroup,
    DescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
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
from rayka.coordinator.groups.settings import ConsumerGroupSettings, GroupSettings
from rayka.coordinator.groups.state import Registry
from rayka.coordinator.result import Completion, Result, append_error
from rayka.coordinator.timers import TimerQueue
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE


def java_hash(text: str) -> int:
    """Java's String.hashCode, as a signed 32-bit integer."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@functools.lru_cache(maxsize=10_000)
def partition_for_group(group_id: str, num_partitions: int) -> int:
    """The partition of `__consumer_offsets` whose coordinator has the group."""
    value = java_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % num_partitions


class GroupCoordinator:
    """The groups of one partition."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.registry = Registry(settings)
        self._timers: TimerQueue[TimerKey] = TimerQueue()
        self._membership = Membership(settings, self.registry, self._timers)

    def replay(self, record: Record, record_offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """Applies a record of the log."""
        self.registry.replay(record, record_offset, producer_id)

    def end_transaction(self, producer_id: int, is_committed: bool) -> None:
        """Applies a transaction marker of the log."""
        self.registry.offsets.end_transaction(producer_id, is_committed)

    def loaded(self, now: Now) -> None:
        """The log has been replayed: the groups go on."""
        self.registry.is_loading = False
        self._membership.loaded(now)
        self._schedule_offset_expiry(now)

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> tuple[Completion, ...]:
        """The coordinator moves elsewhere: the answers to all who wait. It takes no commands any more."""
        self._timers.clear()
        return self._membership.unload(error)

    def commit(self, result: Result[Any], base_offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """The records of `result` are in the log, from `base_offset` on."""
        for index, record in enumerate(result.records):
            self.replay(record, base_offset + index, producer_id)
        if result.on_commit is not None:
            result.on_commit()

    def rollback(self, result: Result[Any], error: ErrorCode) -> Result[Any]:
        """The records of `result` could not be appended. What to answer instead; it has no records."""
        return Result(None) if result.on_rollback is None else result.on_rollback(error)

    def metadata_changed(self, topics: Topics) -> Result[None]:
        """Takes new metadata. Offsets of topics that are gone go too; groups follow with their next heartbeats."""
        old, self.registry.topics = self.registry.topics, topics
        gone = frozenset(topic.name for topic in old.by_name.values() if topic.topic_id not in topics.by_id)
        return Result(None, tuple(self.registry.offsets.topic_tombstones(gone)) if gone else ())

    def configure(self, group_id: str, configs: Mapping[str, int]) -> None:
        """Takes the dynamic configs of one group (`rayka.config.groups.GROUP_CONFIGS`), by name; all of them."""
        self._membership.consumer_settings.configure(group_id, configs)

    def configure_broker(self, settings: ConsumerGroupSettings) -> None:
        """Takes other settings for all consumer groups that have none of their own."""
        self._membership.consumer_settings.configure_broker(settings)

    def join_group(self, request: JoinGroupRequest, now: Now) -> Result[JoinGroupResponse]:
        """JoinGroup. May be answered later."""
        return self._membership.join_group(request, now)

    def sync_group(self, request: SyncGroupRequest, now: Now) -> Result[SyncGroupResponse]:
        """SyncGroup. May be answered later."""
        return self._membership.sync_group(request, now)

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Result[HeartbeatResponse]:
        """Heartbeat of a classic member."""
        return self._membership.heartbeat(request, now)

    def leave_group(self, request: LeaveGroupRequest, now: Now) -> Result[LeaveGroupResponse]:
        """LeaveGroup, for one member or several."""
        return self._membership.leave_group(request, now)

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat."""
        return self._membership.consumer_group_heartbeat(request, now)

    def offset_commit(
        self, request: OffsetCommitRequest, now: Now, is_transactional: bool = False
    ) -> Result[OffsetCommitResponse]:
        """OffsetCommit and TxnOffsetCommit; the records of the latter go into its producer's transaction."""
        check = self._check_commit(request, now, is_transactional)
        return self.registry.offsets.commit(request, check, now.wall_ms, is_transactional)

    def _check_commit(self, request: OffsetCommitRequest, now: Now, is_transactional: bool) -> CommitCheck:
        group = self.registry.groups.get(request.group_id)
        if group is None:
            if request.generation_id_or_member_epoch < 0:
                return CommitCheck()
            is_told = request.knows_member_epochs and not is_transactional
            return CommitCheck(ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.ILLEGAL_GENERATION)
        check = self.registry.rules(group).commit(request, is_transactional)
        if check.error is NONE and isinstance(group, ClassicGroup):
            self._membership.committed(group, request.member_id, now)
        return check

    def offset_fetch(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """OffsetFetch of one group. Answer when all that was committed so far is durable."""
        group = self.registry.groups.get(request.group_id)
        error = NONE if group is None else self.registry.rules(group).fetch(request.member_id, request.member_epoch)
        if error is not NONE:
            return OffsetFetchResponse(request.group_id, error)
        return self.registry.offsets.fetch(request)

    def offset_delete(self, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
        """OffsetDelete."""
        if not request.group_id:
            return Result(OffsetDeleteResponse(ErrorCode.INVALID_GROUP_ID))
        group = self.registry.groups.get(request.group_id)
        if group is None:
            return Result(OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND))
        return self.registry.offsets.delete(request, self.registry.rules(group))

    def delete_groups(self, group_ids: Sequence[str]) -> Result[DeleteGroupsResponse]:
        """DeleteGroups: empty groups go, with their offsets."""
        errors = tuple(self._check_delete(group_id) for group_id in group_ids)
        records = tuple(
            record
            for group_id, error in zip(group_ids, errors, strict=True)
            if error is NONE
            for record in (*self.registry.offsets.tombstones(group_id), *self.registry.tombstones(group_id))
        )

        def failed(error: ErrorCode) -> Result[DeleteGroupsResponse]:
            return Result(DeleteGroupsResponse(tuple(append_error(error) if e is NONE else e for e in errors)))

        return Result(DeleteGroupsResponse(errors), records, on_rollback=failed)

    def _check_delete(self, group_id: str) -> ErrorCode:
        group = self.registry.groups.get(group_id)
        return ErrorCode.GROUP_ID_NOT_FOUND if group is None else self.registry.rules(group).delete_group()

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> tuple[ListedGroup, ...]:
        """The groups, of these states and types if any are given (in any case of letters)."""
        return listing.list_groups(self.registry.groups.values(), states, types)

    def describe_groups(self, group_ids: Iterable[str]) -> tuple[DescribedGroup, ...]:
        """DescribeGroups. One that is not here has GROUP_ID_NOT_FOUND, which versions before 6 leave out."""
        return tuple(listing.describe_classic(group_id, self.registry.groups.get(group_id)) for group_id in group_ids)

    def consumer_group_describe(self, group_ids: Iterable[str]) -> tuple[DescribedConsumerGroup, ...]:
        """ConsumerGroupDescribe."""
        assignor, topics = self.settings.consumer_assignors[0], self.registry.topics
        groups = self.registry.groups
        return tuple(
            listing.describe_consumer(group_id, groups.get(group_id), assignor, topics) for group_id in group_ids
        )

    def next_deadline(self) -> int | None:
        """When `expire` has something to do, as `Now.ms`; None if nothing is waited for."""
        return self._timers.next_deadline()

    def expire(self, now: Now) -> Result[None] | None:
        """Does what is due until there is something to append or to answer; None: nothing is due any more."""
        while (due := self._timers.pop(now.ms)) is not None:
            key, argument = due
            is_offsets = key.timer is Timer.OFFSETS
            result = self._expire_offsets(now) if is_offsets else self._membership.expire(key, argument, now)
            if result is not None:
                return result
        return None

    def _schedule_offset_expiry(self, now: Now) -> None:
        interval_ms = self.settings.offsets_retention_check_interval_ms
        self._timers.schedule(TimerKey(Timer.OFFSETS), now.ms + interval_ms)

    def _expire_offsets(self, now: Now) -> Result[None] | None:
        """Offsets that were kept for long enough go, and with the last one an empty group."""
        self._schedule_offset_expiry(now)
        records: list[Record] = []
        for group_id, group in self.registry.groups.items():
            expired = list(self.registry.offsets.expired(group_id, self.registry.rules(group), now.wall_ms))
            records.extend(tombstone(group_id, partition) for partition in expired)
            if group.is_unused and self.registry.offsets.has_only(group_id, expired):
                records.extend(self.registry.tombstones(group_id))
        return Result(None, tuple(records)) if records else None
