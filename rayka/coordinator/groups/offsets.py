"""The offsets that groups committed, those pending in open transactions, and when they expire."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.offset_rules import NONE, CommitCheck, OffsetRules
from rayka.coordinator.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
from rayka.coordinator.groups.requests import (
    CommittedOffset,
    FetchedOffset,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetPartition,
)
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.groups.steps import Respond, RespondEach
from rayka.coordinator.result import Result
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode
from rayka.types import NO_PRODUCER_ID


class Committed(NamedTuple):
    """A committed offset and the offset of its record in the coordinator's log."""

    value: OffsetCommitValue
    record_offset: int


GroupOffsets: TypeAlias = dict[tuple[str, int], Committed]


class Offsets:
    """Offsets by group, topic and partition."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.committed: dict[str, GroupOffsets] = {}
        self.pending: dict[int, dict[str, GroupOffsets]] = {}
        self._open_transactions: dict[str, set[int]] = {}

    def commit(
        self, request: OffsetCommitRequest, check: CommitCheck, now_ms: int, is_transactional: bool = False
    ) -> Result[OffsetCommitResponse]:
        """Records for the offsets that may be committed. In a transaction they count when it has committed."""
        if check.error is not NONE:
            return Result(OffsetCommitResponse((check.error,) * len(request.offsets)))
        errors = [self._check(offset, check) for offset in request.offsets]
        expire_ms = -1 if request.retention_time_ms == -1 or is_transactional else now_ms + request.retention_time_ms
        records = tuple(
            CoordinatorRecord(
                OffsetCommitKey(request.group_id, offset.topic, offset.partition), _value(offset, now_ms, expire_ms)
            )
            for offset, error in zip(request.offsets, errors, strict=True)
            if error is NONE
        )
        step = RespondEach(OffsetCommitResponse, tuple(errors))
        return Result(OffsetCommitResponse(tuple(errors)), records, step=step)

    def _check(self, offset: CommittedOffset, check: CommitCheck) -> ErrorCode:
        if offset.metadata and utf16_length(offset.metadata) > self.settings.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return check.partition(offset) if check.partition else NONE

    def fetch(self, request: OffsetFetchRequest, topics: Topics) -> OffsetFetchResponse:
        """The committed offsets of some partitions, or of all.

        Those of a deleted topic may still be here, if no coordinator was there to see it or its tombstones could not
        be written. They do not count for a new topic of that name, also if the request names the topic without its id.
        """
        offsets = self.committed.get(request.group_id, {})
        unstable = self._unstable(request.group_id) if request.require_stable else frozenset()
        if request.partitions is None:
            known = sorted(key for key, one in offsets.items() if _belongs_to(one.value, key[0], ZERO_UUID, topics))
            partitions = tuple(OffsetPartition(*key) for key in known)
        else:
            partitions = request.partitions
        return OffsetFetchResponse(
            request.group_id, offsets=tuple(_fetched(wanted, offsets, unstable, topics) for wanted in partitions)
        )

    def _unstable(self, group_id: str) -> frozenset[tuple[str, int]]:
        """Partitions with an offset in an open transaction."""
        return frozenset(
            partition
            for producer_id in self._open_transactions.get(group_id, ())
            for partition in self.pending[producer_id].get(group_id, ())
        )

    def delete(self, request: OffsetDeleteRequest, rules: OffsetRules) -> Result[OffsetDeleteResponse]:
        """Delete offsets of topics that nobody in the group reads."""
        error = rules.delete()
        if error is not NONE:
            return Result(OffsetDeleteResponse(error))
        errors = tuple(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if rules.is_subscribed_to(topic) else NONE
            for topic, _ in request.partitions
        )
        known = self._partitions_of(request.group_id)
        records = tuple(
            tombstone(request.group_id, partition)
            for partition, error in zip(request.partitions, errors, strict=True)
            if error is NONE and partition in known
        )
        return Result(OffsetDeleteResponse(errors=errors), records, step=Respond(OffsetDeleteResponse))

    def _partitions_of(self, group_id: str) -> frozenset[tuple[str, int]]:
        return frozenset(self.committed.get(group_id, ())) | self._unstable(group_id)

    def tombstones(self, group_id: str) -> Iterator[CoordinatorRecord]:
        """Delete all offsets of a group."""
        for partition in sorted(self._partitions_of(group_id)):
            yield tombstone(group_id, partition)

    def topic_tombstones(self, deleted: Mapping[uuid.UUID, str]) -> Iterator[CoordinatorRecord]:
        """Delete all offsets of topics that were deleted, by their ids, with their names.

        A topic may have such a name again, and members that know it already may have committed. Those offsets stay.
        """
        names, ids = frozenset(deleted.values()), {ZERO_UUID, *deleted}
        for group_id in {*self.committed, *self._open_transactions}:
            for partition in sorted(self._partitions_of(group_id)):
                if partition[0] in names and self._topic_ids(group_id, partition) <= ids:
                    yield tombstone(group_id, partition)

    def _topic_ids(self, group_id: str, partition: tuple[str, int]) -> set[uuid.UUID]:
        """The topics that the offsets of a partition were committed of, those in open transactions too."""
        open_ones = (self.pending[one].get(group_id, {}) for one in self._open_transactions.get(group_id, ()))
        everything = (self.committed.get(group_id, {}), *open_ones)
        return {offsets[partition].value.topic_id for offsets in everything if partition in offsets}

    def expired(self, group_id: str, rules: OffsetRules, now_ms: int) -> Iterator[tuple[str, int]]:
        """The partitions whose offsets have expired (KIP-211)."""
        unstable = self._unstable(group_id)
        for partition, committed in self.committed.get(group_id, {}).items():
            is_kept = partition in unstable or rules.is_subscribed_to(partition[0])
            if not is_kept and self._is_expired(committed.value, rules, now_ms):
                yield partition

    def _is_expired(self, offset: OffsetCommitValue, rules: OffsetRules, now_ms: int) -> bool:
        since_ms = rules.retained_since(offset)
        if since_ms is None:
            return False
        if offset.expire_timestamp != -1:
            return now_ms >= offset.expire_timestamp
        return now_ms - since_ms >= self.settings.offsets_retention_ms

    def has_only(self, group_id: str, partitions: Collection[tuple[str, int]]) -> bool:
        """Whether the group has no offsets but these, and no open transaction that may add some."""
        return group_id not in self._open_transactions and self._partitions_of(group_id).issubset(partitions)

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, record_offset: int, producer_id: int
    ) -> None:
        """Apply a record of the log; one with a producer id is pending until its transaction ends."""
        partition = (key.topic, key.partition)
        if value is None:
            self._forget(key.group, partition)
        elif producer_id == NO_PRODUCER_ID:
            self.committed.setdefault(key.group, {})[partition] = Committed(value, record_offset)
        else:
            groups = self.pending.setdefault(producer_id, {})
            groups.setdefault(key.group, {})[partition] = Committed(value, record_offset)
            self._open_transactions.setdefault(key.group, set()).add(producer_id)

    def _forget(self, group_id: str, partition: tuple[str, int]) -> None:
        offsets = self.committed.get(group_id, {})
        offsets.pop(partition, None)
        if not offsets:
            self.committed.pop(group_id, None)
        for producer_id in self._open_transactions.get(group_id, ()):
            self.pending[producer_id].get(group_id, {}).pop(partition, None)

    def end_transaction(self, producer_id: int, is_committed: bool) -> None:
        """Apply a transaction marker: a commit makes the pending offsets visible, an abort discards them."""
        for group_id, offsets in self.pending.pop(producer_id, {}).items():
            producers = self._open_transactions[group_id]
            producers.discard(producer_id)
            if not producers:
                del self._open_transactions[group_id]
            if is_committed:
                self._settle(group_id, offsets)

    def _settle(self, group_id: str, offsets: GroupOffsets) -> None:
        """An offset that was committed later in the log, outside the transaction, wins."""
        for partition, committed in offsets.items():
            settled = self.committed.setdefault(group_id, {})
            current = settled.get(partition)
            if current is None or committed.record_offset > current.record_offset:
                settled[partition] = committed

    def validate_state(self) -> None:
        """Check that the index of open transactions agrees with the pending offsets. Raises AssertionError."""
        assert all(self.committed.values()), "a group without offsets is not kept"
        writers: dict[str, set[int]] = {}
        for producer_id, groups in self.pending.items():
            for group_id in groups:
                writers.setdefault(group_id, set()).add(producer_id)
        assert writers == self._open_transactions


def tombstone(group_id: str, partition: tuple[str, int]) -> CoordinatorRecord:
    """Delete one offset."""
    return CoordinatorRecord(OffsetCommitKey(group_id, *partition))


def utf16_length(text: str) -> int:
    """The length in UTF-16 code units, which is how Java counts and how limits are meant."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _value(offset: CommittedOffset, now_ms: int, expire_ms: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata or "",
        commit_timestamp=now_ms if offset.commit_timestamp == -1 else offset.commit_timestamp,
        expire_timestamp=expire_ms,
        topic_id=offset.topic_id,
    )


def _belongs_to(offset: OffsetCommitValue, topic: str, topic_id: uuid.UUID, topics: Topics) -> bool:
    """Whether the topic with this id, or the present one of this name, is the one that the offset was committed of."""
    if topic_id == ZERO_UUID and topic in topics.by_name:
        topic_id = topics.by_name[topic].topic_id
    return ZERO_UUID in (topic_id, offset.topic_id) or topic_id == offset.topic_id


def _fetched(
    wanted: OffsetPartition, offsets: GroupOffsets, unstable: frozenset[tuple[str, int]], topics: Topics
) -> FetchedOffset:
    topic, partition, topic_id = wanted
    if (topic, partition) in unstable:
        return FetchedOffset(topic, partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT, topic_id=topic_id)
    committed = offsets.get((topic, partition))
    if committed is None or not _belongs_to(committed.value, topic, topic_id, topics):
        return FetchedOffset(topic, partition, topic_id=topic_id)
    value = committed.value
    return FetchedOffset(topic, partition, value.offset, value.leader_epoch, value.metadata, topic_id=value.topic_id)
