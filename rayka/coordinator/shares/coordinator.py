"""The coordinator of the share-partitions of one `__share_group_state` partition, as a `spec.Coordinator`.

Each share-partition has a snapshot in the log and updates after it. A write appends an update; when there are as many
as `share.coordinator.snapshot.update.records.per.snapshot`, it appends a new snapshot instead. What lies before the
oldest snapshot that counts is deleted from the log. A share-partition that nobody writes to would hold that back, so a
snapshot that is too old is written again at the end of the log.

Two epochs fence callers that are out of date: the state epoch, which every initialization of the share-partition sets,
and the epoch of the partition's leader, which a new leader brings with its first read.
"""

from __future__ import annotations

import enum
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.result import Completion, Result, append_error
from rayka.coordinator.shares.records import ShareSnapshotValue, ShareStateRecord, ShareUpdateValue
from rayka.coordinator.shares.requests import (
    UNINITIALIZED_COUNT,
    UNINITIALIZED_OFFSET,
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    StateRequest,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from rayka.coordinator.shares.settings import ShareCoordinatorSettings
from rayka.coordinator.shares.state import NO_EPOCH, ShareState, snapshot_record, tombstone, update_record
from rayka.coordinator.spec import CoordinatorConfigs
from rayka.coordinator.timers import TimerQueue
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError
from rayka.types import NO_PRODUCER_ID, SharePartitionKey

_RETRY_BACKOFF_MS = 500
_DELIVERY_STATES = frozenset({0, 2, 3, 4})
"""Available, acknowledged, archiving, archived: a record that is only acquired is not stored as such."""


class ShareTimer(enum.Enum):
    """What becomes due."""

    COLD_SNAPSHOTS = "cold snapshots"
    PRUNE = "prune"


class ShareCoordinator:
    """The share-partitions of one partition. Only `replay` changes what must outlive a crash."""

    def __init__(self, settings: ShareCoordinatorSettings) -> None:
        self.settings = settings
        self.states: dict[SharePartitionKey, ShareState] = {}
        self._topics = Topics()
        self._unknown: frozenset[uuid.UUID] = frozenset()
        self._timers: TimerQueue[ShareTimer] = TimerQueue()

    def replay(self, record: ShareStateRecord, record_offset: int = 0, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a record of the log. An update of a share-partition that was deleted is ignored."""
        key = record.share_partition
        match record.value:
            case ShareSnapshotValue() as value:
                self.states[key] = ShareState.load(value, record_offset)
            case ShareUpdateValue() as value if key in self.states:
                self.states[key] = self.states[key].updated(value)
            case None:
                self.states.pop(key, None)

    def end_transaction(self, producer_id: int, is_committed: bool) -> None:
        """Nothing in this log is transactional."""

    def on_loaded(self, now: Now) -> None:
        """Start the regular work."""
        self._timers.schedule(ShareTimer.COLD_SNAPSHOTS, now.ms + self.settings.cold_snapshot_interval_ms)
        self._timers.schedule(ShareTimer.PRUNE, now.ms + self.settings.prune_interval_ms)

    def on_new_metadata_image(self, topics: Topics) -> Result[None]:
        """Delete the state of topics that are gone."""
        old, self._topics = self._topics, topics
        gone = old.by_id.keys() - topics.by_id.keys()
        records = tuple(tombstone(key) for key in self.states if key.topic_id in gone) if gone else ()
        return Result(None, records, is_atomic=False)

    def on_new_configs(self, configs: CoordinatorConfigs) -> None:
        """The settings hold from the start of the broker."""

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> tuple[Completion, ...]:
        """Nobody waits here."""
        self._timers.clear()
        return ()

    def commit(self, step: Any, now: Now) -> tuple[Completion, ...]:
        """Nothing follows the records."""
        return ()

    def rollback(self, step: Any, error: ErrorCode, now: Now) -> Result[Any] | None:
        """The records could not be appended; the step is the type of the response, or the deadline to come back."""
        if isinstance(step, ShareTimer):
            self._timers.schedule(step, now.ms + _RETRY_BACKOFF_MS)
            return None
        return None if step is None else Result(step(append_error(error)))

    def initialize(
        self, request: InitializeShareGroupStateRequest, now: Now
    ) -> Result[InitializeShareGroupStateResponse]:
        """InitializeShareGroupState. The leader's epoch stays: an old leader is fenced as before.

        One that comes twice changes nothing: members may have acknowledged records in between.
        """
        try:
            key = self._key(request)
            before = self.states.get(key)
            _check_not_negative(state_epoch=request.state_epoch)
            _check_start_offset(request.start_offset)
            if before is not None:
                _check_state_epoch(before, request.state_epoch)
            self._check_exists(key)
        except RaykaError as error:
            return Result(InitializeShareGroupStateResponse(error.code, error.message))
        if before is not None and before.state_epoch == request.state_epoch:
            return Result(InitializeShareGroupStateResponse())
        value = ShareSnapshotValue(
            snapshot_epoch=0 if before is None else before.snapshot_epoch + 1,
            state_epoch=request.state_epoch,
            leader_epoch=NO_EPOCH if before is None else before.leader_epoch,
            start_offset=request.start_offset,
            create_timestamp=now.wall_ms,
            write_timestamp=now.wall_ms,
            delivery_complete_count=UNINITIALIZED_COUNT if request.start_offset == UNINITIALIZED_OFFSET else 0,
        )
        records = (snapshot_record(key, value),)
        return Result(InitializeShareGroupStateResponse(), records, step=InitializeShareGroupStateResponse)

    def read(self, request: ReadShareGroupStateRequest, now: Now) -> Result[ReadShareGroupStateResponse]:
        """ReadShareGroupState. A new leader's epoch is stored before it gets the state."""
        try:
            key = self._key(request)
            _check_not_negative(leader_epoch=request.leader_epoch)
            state = self._initialized(key, "Read")
            _check_leader_epoch(state, request.leader_epoch)
            self._check_exists(key)
        except RaykaError as error:
            return Result(ReadShareGroupStateResponse(error.code, error.message))
        response = ReadShareGroupStateResponse(
            state_epoch=state.state_epoch, start_offset=state.start_offset, state_batches=state.state_batches
        )
        if request.leader_epoch == state.leader_epoch:
            return Result(response)
        value = ShareUpdateValue(
            state.snapshot_epoch, request.leader_epoch, state.start_offset, (), state.delivery_complete_count
        )
        return Result(response, (self._record(key, state, value, now),), step=ReadShareGroupStateResponse)

    def write(self, request: WriteShareGroupStateRequest, now: Now) -> Result[WriteShareGroupStateResponse]:
        """WriteShareGroupState."""
        try:
            key = self._key(request)
            _check_not_negative(leader_epoch=request.leader_epoch, state_epoch=request.state_epoch)
            state = self._initialized(key, "Write")
            _check_leader_epoch(state, request.leader_epoch)
            _check_state_epoch(state, request.state_epoch)
            _check_not_from_before(state, request.state_epoch)
            _check_batches(request)
            self._check_exists(key)
        except RaykaError as error:
            return Result(WriteShareGroupStateResponse(error.code, error.message))
        record = self._record(key, state, state.write(request), now)
        return Result(WriteShareGroupStateResponse(), (record,), step=WriteShareGroupStateResponse)

    def delete(self, request: DeleteShareGroupStateRequest, now: Now) -> Result[DeleteShareGroupStateResponse]:
        """DeleteShareGroupState. State that is not there needs no record."""
        try:
            key = self._key(request)
        except RaykaError as error:
            return Result(DeleteShareGroupStateResponse(error.code, error.message))
        records = (tombstone(key),) if key in self.states else ()
        return Result(DeleteShareGroupStateResponse(), records, step=DeleteShareGroupStateResponse)

    def read_summary(self, request: ReadShareGroupStateSummaryRequest) -> ReadShareGroupStateSummaryResponse:
        """ReadShareGroupStateSummary. State that is not there has a start offset of -1, without an error."""
        try:
            key = self._key(request)
            self._check_exists(key)
        except RaykaError as error:
            return ReadShareGroupStateSummaryResponse(error.code, error.message)
        state = self.states.get(key)
        if state is None:
            return ReadShareGroupStateSummaryResponse()
        return ReadShareGroupStateSummaryResponse(
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
        )

    def _record(self, key: SharePartitionKey, state: ShareState, value: ShareUpdateValue, now: Now) -> ShareStateRecord:
        """An update, or the snapshot that is due with the update in it."""
        if state.updates < self.settings.updates_per_snapshot:
            return update_record(key, value)
        return snapshot_record(key, state.updated(value).snapshot(now.wall_ms, now.wall_ms))

    def _key(self, request: StateRequest[Any]) -> SharePartitionKey:
        _check_not_negative(partition=request.partition)
        return SharePartitionKey(request.group_id, request.topic_id, request.partition)

    def _initialized(self, key: SharePartitionKey, operation: str) -> ShareState:
        state = self.states.get(key)
        if state is None:
            reason = f"{operation} operation on uninitialized share partition not allowed."
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
        return state

    def _check_exists(self, key: SharePartitionKey) -> None:
        topic = self._topics.by_id.get(key.topic_id)
        if topic is None or key.partition >= topic.num_partitions:
            reason = f"There is no partition {key.partition} of a topic with id {key.topic_id}."
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)

    def first_needed_offset(self) -> int | None:
        """The offset of the oldest snapshot that counts: what lies before it in the log can go. None: there is none."""
        return min((state.snapshot_record_offset for state in self.states.values()), default=None)

    def next_deadline(self) -> int | None:
        """When `expire` has something to do, as `Now.ms`."""
        return self._timers.next_deadline()

    def expire(self, now: Now) -> Result[None] | None:
        """Write snapshots that are due, and delete state of topics that are gone. The shell prunes the log itself."""
        while (due := self._timers.pop(now.ms)) is not None:
            if due[0] is ShareTimer.PRUNE:
                self._timers.schedule(ShareTimer.PRUNE, now.ms + self.settings.prune_interval_ms)
                if tombstones := tuple(self._of_missing_topics()):
                    return Result(None, tombstones, is_atomic=False)
                continue
            self._timers.schedule(ShareTimer.COLD_SNAPSHOTS, now.ms + self.settings.cold_snapshot_interval_ms)
            records = tuple(self._cold_snapshots(now.wall_ms))
            if records:
                return Result(None, records, step=ShareTimer.COLD_SNAPSHOTS, is_atomic=False)
        return None

    def _of_missing_topics(self) -> Iterator[ShareStateRecord]:
        """The state of topics that were deleted while no coordinator had this partition.

        A topic must be missing twice: the first time its creation may not be known here yet.
        """
        missing = frozenset(key.topic_id for key in self.states) - self._topics.by_id.keys()
        gone, self._unknown = missing & self._unknown, missing
        for key in self.states:
            if key.topic_id in gone:
                yield tombstone(key)

    def _cold_snapshots(self, now_ms: int) -> Iterator[ShareStateRecord]:
        """New snapshots in place of old ones; none while nothing happens at all, since then they would gain nothing."""
        if all(state.is_cold for state in self.states.values()):
            return
        for key, state in self.states.items():
            if now_ms - state.write_timestamp >= self.settings.cold_snapshot_interval_ms:
                yield snapshot_record(key, state.snapshot(now_ms, state.create_timestamp))

    def durable(self) -> dict[SharePartitionKey, ShareState]:
        """All state that must outlive a crash, for comparison."""
        return {key: replace(state, snapshot_record_offset=0) for key, state in self.states.items()}

    def validate_state(self) -> None:
        """Check what must always hold: batches are sorted, apart, and not below the start offset.

        Raises AssertionError.
        """
        for state in self.states.values():
            batches = state.state_batches
            assert all(batch.first_offset <= batch.last_offset for batch in batches)
            assert all(one.last_offset < two.first_offset for one, two in itertools.pairwise(batches))
            assert not batches or batches[0].first_offset >= state.start_offset
            assert state.updates <= self.settings.updates_per_snapshot


def _check_not_negative(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            reason = f"The {name.replace('_', ' ')} cannot be a negative number."
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)


def _check_leader_epoch(state: ShareState, leader_epoch: int) -> None:
    if state.leader_epoch > leader_epoch:
        reason = f"The leader epoch {leader_epoch} is smaller than the last one, {state.leader_epoch}."
        raise RaykaError(ErrorCode.FENCED_LEADER_EPOCH, reason)


def _check_state_epoch(state: ShareState, state_epoch: int) -> None:
    if state.state_epoch > state_epoch:
        reason = f"The state epoch {state_epoch} is smaller than the last one, {state.state_epoch}."
        raise RaykaError(ErrorCode.FENCED_STATE_EPOCH, reason)


def _check_not_from_before(state: ShareState, state_epoch: int) -> None:
    """A writer with a larger epoch than any that was initialized knows a group of this name that was deleted."""
    if state_epoch > state.state_epoch:
        reason = f"The state epoch {state_epoch} was never initialized; the last one is {state.state_epoch}."
        raise RaykaError(ErrorCode.FENCED_STATE_EPOCH, reason)


def _check_start_offset(start_offset: int) -> None:
    if start_offset < UNINITIALIZED_OFFSET:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"{start_offset} is not a start offset.")


def _check_batches(request: WriteShareGroupStateRequest) -> None:
    """What is stored here must be such that a partition leader can load it."""
    for batch in request.state_batches:
        if not 0 <= batch.first_offset <= batch.last_offset:
            reason = f"The state batch from {batch.first_offset} to {batch.last_offset} is not a range of offsets."
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
        if batch.delivery_state not in _DELIVERY_STATES or batch.delivery_count < 0:
            reason = f"Delivery state {batch.delivery_state} with count {batch.delivery_count} can't be stored."
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
