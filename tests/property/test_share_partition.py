"""A share-partition agrees with a model of single records, whatever members, locks, writes and leaders do."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import GROUP_BACKOFF, AcknowledgementBatch, acknowledgements_of
from rayka.share.acquire import AcquiredRecords, AcquireParams, LogBatch
from rayka.share.config import AcquireMode, ShareGroupConfig
from rayka.share.persister import PersistedBatch, PersistedState
from rayka.share.record_state import (
    ACKNOWLEDGED,
    ACQUIRED,
    AFTER,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    AcknowledgeType,
    RecordState,
    released_state,
)
from rayka.share.share_partition import SharePartition, Transition, Write
from tests.support.scale import examples

CONFIG = ShareGroupConfig(record_lock_duration_ms=100, delivery_count_limit=4, partition_max_record_locks=12)
MEMBERS = st.sampled_from(["m1", "m2"])
TYPES = st.sampled_from(list(AcknowledgeType))
SIZES = st.integers(1, 6)
DELAYS = st.sampled_from([GROUP_BACKOFF, GROUP_BACKOFF, 0, 30, 250])


@dataclass
class Record:
    """What is true of one offset, as one record's life."""

    state: RecordState = AVAILABLE
    delivery_count: int = 0
    member: str = ""
    lock_expires_ms: int = 0
    available_ms: int = 0
    changing_to: tuple[RecordState, int, int] | None = None
    is_in_write: bool = False

    @property
    def is_free(self) -> bool:
        """Whether a member may get it."""
        return self.state is AVAILABLE and self.changing_to is None and not self.available_ms


class ShareGroup(RuleBasedStateMachine):
    """Members of a group, the leader of a partition, and the durable state behind it."""

    @initialize(start_offset=st.integers(0, 5), has_dead_letters=st.booleans(), backoff_ms=st.sampled_from([0, 0, 40]))
    def begin(self, start_offset: int, has_dead_letters: bool, backoff_ms: int) -> None:
        self.config = replace(
            CONFIG, dead_letter_topic="dlq.t" if has_dead_letters else "", retry_backoff_ms=backoff_ms
        )
        self.last_delayed = -1
        self.dead_letters: set[int] = set()
        self.now_ms = 0
        self.log: list[LogBatch] = []
        self.log_start_offset = 0
        self.log_end_offset = start_offset
        self.persisted_start = start_offset
        self.persisted: dict[int, tuple[RecordState, int, int]] = {}
        self.accepted: set[int] = set()
        self.write: Write | None = None
        self.load()
        for size in (3, 1, 5):
            self.produce(size, 0, True)

    def load(self) -> None:
        batches = tuple(
            PersistedBatch(offset, offset, state, delivery_count, available_ms)
            for offset, (state, delivery_count, available_ms) in self.persisted.items()
            if offset >= self.persisted_start
        )
        self.partition = SharePartition(PersistedState(1, self.persisted_start, batches), self.config)
        self.partition.log_start_offset_moved(self.log_start_offset)
        self.records = {
            offset: Record(state, delivery_count, available_ms=available_ms)
            for offset in range(self.partition.start_offset, self.partition.end_offset)
            for state, delivery_count, available_ms in [self.persisted.get(offset, (AVAILABLE, 0, 0))]
        }
        self.last_delayed = max((offset for offset, one in self.records.items() if one.available_ms), default=-1)
        self.write = None
        self.start_offset = self.partition.start_offset

    @rule(size=SIZES, gap=st.sampled_from([0, 0, 0, 2]), is_visible=st.sampled_from([True, True, True, False]))
    def write_to_log(self, size: int, gap: int, is_visible: bool) -> None:
        self.produce(size, gap, is_visible)

    def produce(self, size: int, gap: int, is_visible: bool) -> None:
        first = self.log_end_offset + gap
        self.log_end_offset = first + size
        self.log.append(LogBatch(first, first + size - 1, is_visible))

    @precondition(lambda self: len(self.log) > 3)
    @rule(index=st.integers(0, 9))
    def compact(self, index: int) -> None:
        if index < len(self.log) - 1:
            del self.log[index]

    @precondition(lambda self: len(self.log) > 3)
    @rule(distance=st.integers(1, 8))
    def delete_records(self, distance: int) -> None:
        self.log_start_offset = min(self.log_start_offset + distance, self.log_end_offset)
        self.log = [batch for batch in self.log if batch.last_offset >= self.log_start_offset]
        self.partition.log_start_offset_moved(self.log_start_offset)
        self.forget()

    @rule(member=MEMBERS, max_records=SIZES, batch_size=SIZES, mode=st.sampled_from(AcquireMode))
    def fetch(self, member: str, max_records: int, batch_size: int, mode: AcquireMode) -> None:
        params = AcquireParams(member, max_records, batch_size, mode)
        while (offset := self.partition.next_fetch_offset()) is not None:
            before = offset, self.partition.start_offset
            batches = [batch for batch in self.log if batch.last_offset >= offset]
            acquired = self.partition.acquire(offset, batches, params, self.now_ms)
            self.archive_missing()
            if acquired:
                self.check_acquired(acquired, params)
                break
            if before == (self.partition.next_fetch_offset(), self.partition.start_offset):
                break
        else:
            assert self.in_flight_count() >= CONFIG.partition_max_record_locks
            return
        if not acquired:
            self.check_nothing_left()

    def archive_missing(self) -> None:
        """Offsets that were passed and hold no records are archived."""
        for batch in self.partition._batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                record = self.records.setdefault(offset, Record())
                if record.state is AVAILABLE and batch.is_done():
                    assert not record.available_ms
                    assert not self.has_record(offset), f"{offset} was archived without a delivery"
                    record.state = ARCHIVED
        for offset in range(self.start_offset, self.partition.start_offset):
            record = self.records.setdefault(offset, Record())
            if record.state is AVAILABLE and not self.has_record(offset):
                record.state = ARCHIVED

    def in_flight_count(self) -> int:
        """How many records count as in flight: behind a delayed one those that are done do not."""
        if self.last_delayed < self.partition.start_offset:
            return self.partition.end_offset - self.partition.start_offset
        return sum(not record.state.is_terminal for record in self.records.values())

    def has_record(self, offset: int) -> bool:
        return any(batch.first_offset <= offset <= batch.last_offset and batch.is_visible for batch in self.log)

    def check_acquired(self, acquired: list[AcquiredRecords], params: AcquireParams) -> None:
        total = 0
        for first, last, delivery_count in acquired:
            for offset in range(first, last + 1):
                record = self.records[offset]
                assert self.has_record(offset)
                assert offset not in self.accepted
                assert record.is_free
                record.state, record.member = ACQUIRED, params.member_id
                record.delivery_count += 1
                record.lock_expires_ms = self.now_ms + CONFIG.record_lock_duration_ms
                assert record.delivery_count == delivery_count <= CONFIG.delivery_count_limit
            total += last - first + 1
            if delivery_count == CONFIG.delivery_count_limit:
                assert [(first, first)] == [one[:2] for one in acquired], "the last delivery is of one record alone"
        if params.mode is AcquireMode.RECORD_LIMIT:
            assert total <= params.max_records
            newest = max(record.last_offset for record in acquired)
            is_new = newest == self.partition.end_offset - 1 and acquired[-1].delivery_count == 1
            assert not is_new or self.in_flight_count() <= CONFIG.partition_max_record_locks + 6

    def check_nothing_left(self) -> None:
        """A fetch that finds nothing leaves no record that could be delivered."""
        for offset, record in self.records.items():
            assert not (record.is_free and self.has_record(offset)), f"{offset} is not delivered"
        if self.in_flight_count() < CONFIG.partition_max_record_locks:
            assert not any(self.has_record(offset) for offset in range(self.partition.end_offset, self.log_end_offset))

    @precondition(lambda self: self.records)
    @rule(member=MEMBERS, data=st.data())
    def acknowledge(self, member: str, data: st.DataObject) -> None:
        first = data.draw(st.integers(min(self.records), max(self.records)))
        last = data.draw(st.integers(first, max(self.records) + 1))
        counts = st.sampled_from([1, last - first + 1])
        types = data.draw(counts.flatmap(lambda count: st.lists(TYPES, min_size=count, max_size=count)))
        self.say(member, first, last, types)

    def has_locks(self) -> bool:
        return any(self.is_held(record, record.member) for record in self.records.values())

    @precondition(has_locks)
    @rule(kind=TYPES, delay_ms=DELAYS, count=SIZES, data=st.data())
    def acknowledge_held(self, kind: AcknowledgeType, delay_ms: int, count: int, data: st.DataObject) -> None:
        """A member acknowledges some of its records."""
        holders = {record.member for record in self.records.values() if self.is_held(record, record.member)}
        self.say_of_held(data.draw(st.sampled_from(sorted(holders))), kind, delay_ms, count)

    def say_of_held(self, member: str, kind: AcknowledgeType, delay_ms: int, count: int) -> None:
        held = [offset for offset, record in self.records.items() if self.is_held(record, member)][:count]
        for offset in held:
            self.say(member, offset, offset, [kind], delay_ms if kind is AcknowledgeType.RELEASE else GROUP_BACKOFF)

    @rule(member=MEMBERS, size=SIZES, kind=TYPES, delay_ms=DELAYS, pause_ms=st.sampled_from([0, 0, 50]))
    def work(self, member: str, size: int, kind: AcknowledgeType, delay_ms: int, pause_ms: int) -> None:
        """All that a record needs in one rule: Hypothesis leaves half of the rules out of a run."""
        self.fetch(member, size, size, AcquireMode.RECORD_LIMIT)
        self.pause(pause_ms)
        self.say_of_held(member, kind, delay_ms, size)
        self.write_state(True)

    def is_held(self, record: Record, member: str) -> bool:
        live = record.lock_expires_ms > self.now_ms
        return record.state is ACQUIRED and record.changing_to is None and record.member == member and live

    def say(
        self, member: str, first: int, last: int, types: list[AcknowledgeType], delay_ms: int = GROUP_BACKOFF
    ) -> None:
        batch = AcknowledgementBatch(first, last, tuple(types), delay_ms)
        is_past = last >= self.partition.end_offset
        if is_past or not all(self.is_held(self.records[o], member) for o in range(first, last + 1)):
            with pytest.raises(RaykaError) as refused:
                self.partition.acknowledge(member, acknowledgements_of([batch]), self.now_ms)
            expected = ErrorCode.INVALID_REQUEST if is_past else ErrorCode.INVALID_RECORD_STATE
            assert refused.value.code is expected
            return
        self.partition.acknowledge(member, acknowledgements_of([batch]), self.now_ms)
        for index, offset in enumerate(range(first, last + 1)):
            record = self.records[offset]
            assert self.is_held(record, member)
            kind = types[index] if len(types) > 1 else types[0]
            if kind is AcknowledgeType.RENEW:
                record.lock_expires_ms = self.now_ms + CONFIG.record_lock_duration_ms
            else:
                state = self.after(kind, record.delivery_count)
                available_ms = self.available_ms(record, delay_ms) if state is AVAILABLE else 0
                record.changing_to = state, record.delivery_count, available_ms

    def available_ms(self, record: Record, delay_ms: int) -> int:
        """When a released record is delivered again; 0 is at once."""
        if delay_ms == GROUP_BACKOFF:
            delay_ms = self.config.retry_backoff_ms * 2 ** (record.delivery_count - 1)
        return self.now_ms + delay_ms if delay_ms else 0

    def after(self, kind: AcknowledgeType, delivery_count: int) -> RecordState:
        state = AFTER[kind]
        if state is AVAILABLE:
            state = released_state(delivery_count, CONFIG.delivery_count_limit)
        is_dead = state is ARCHIVED and kind is not AcknowledgeType.GAP
        return ARCHIVING if is_dead and self.config.dead_letter_topic else state

    @rule(member=MEMBERS, were_delivered=st.booleans())
    def leave(self, member: str, were_delivered: bool) -> None:
        self.partition.release(member, were_delivered=were_delivered)
        for record in self.records.values():
            if record.state is ACQUIRED and record.member == member and record.changing_to is None:
                state = self.after(AcknowledgeType.RELEASE, record.delivery_count) if were_delivered else AVAILABLE
                record.changing_to = state, record.delivery_count - (not were_delivered), 0

    @rule(is_durable=st.none() | st.sampled_from([True, True, False]))
    def write_state(self, is_durable: bool | None) -> None:
        """Begin a write, unless one is under way, and end it at once unless its outcome comes later."""
        self.begin_write()
        if is_durable is not None:
            self.end_write(is_durable)

    @precondition(lambda self: self.write is not None)
    @rule(is_durable=st.sampled_from([True, True, False]))
    def answer_write(self, is_durable: bool) -> None:
        self.end_write(is_durable)

    def begin_write(self) -> None:
        write = self.partition.begin_write()
        if write is not None:
            assert self.write is None
            self.write = write
            for record in self.records.values():
                record.is_in_write = record.changing_to is not None

    def end_write(self, is_durable: bool) -> None:
        if self.write is None:
            return
        if is_durable:
            self.persist(self.write)
        error = None if is_durable else RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.write = None
        self.partition.end_write(error, self.now_ms)
        for offset, record in self.records.items():
            if record.is_in_write and record.changing_to is not None:
                change, record.changing_to, record.is_in_write = record.changing_to, None, False
                if record.state is ARCHIVING and not is_durable:
                    record.changing_to = change
                elif is_durable:
                    self.change(record, *change)
                    self.last_delayed = max(self.last_delayed, offset if record.available_ms else -1)
                    if record.state is ACKNOWLEDGED:
                        self.accepted.add(offset)
                elif record.lock_expires_ms <= self.now_ms:
                    self.take_back(record)
        self.forget()

    def persist(self, write: Write) -> None:
        """The share coordinator combines batches: what was delivered more often, or then is further on, wins."""
        assert write.update.start_offset >= self.persisted_start
        self.persisted_start = write.update.start_offset
        for first, last, state, delivery_count, available_ms in write.update.state_batches:
            for offset in range(first, last + 1):
                new = RecordState(state), delivery_count, available_ms
                old = self.persisted.get(offset, new)
                self.persisted[offset] = max(old, new, key=lambda value: (value[1], value[0], value[2]))

    def change(self, record: Record, state: RecordState, delivery_count: int, available_ms: int = 0) -> None:
        record.state, record.delivery_count, record.member = state, delivery_count, ""
        record.available_ms = available_ms

    def take_back(self, record: Record) -> None:
        self.change(record, self.after(AcknowledgeType.RELEASE, record.delivery_count), record.delivery_count)

    @rule(duration_ms=st.integers(1, 150))
    def pause(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        deadline = self.partition.next_deadline()
        due = [
            record
            for record in self.records.values()
            if record.state is ACQUIRED and record.changing_to is None and record.lock_expires_ms <= self.now_ms
        ]
        delayed = [record for record in self.records.values() if 0 < record.available_ms <= self.now_ms]
        assert not (due or delayed) or (deadline is not None and deadline <= self.now_ms)
        assert self.partition.expire(self.now_ms) is bool(due or delayed)
        for record in due:
            self.take_back(record)
        for record in delayed:
            record.available_ms = 0
        self.forget()

    @precondition(lambda self: any(record.state is ARCHIVING for record in self.records.values()))
    @rule()
    def write_dead_letters(self) -> None:
        for letters in self.partition.take_dead_letters():
            self.partition.dead_lettered(letters)
            for offset in range(letters.first_offset, letters.last_offset + 1):
                record = self.records[offset]
                assert record.state is ARCHIVING
                assert record.delivery_count == letters.delivery_count
                record.changing_to = ARCHIVED, record.delivery_count, 0
                self.dead_letters.add(offset)

    @rule()
    def elect_another_leader(self) -> None:
        self.load()

    def forget(self) -> None:
        """Records below the start offset are done."""
        for offset in [offset for offset in self.records if offset < self.partition.start_offset]:
            record = self.records.pop(offset)
            assert record.state is not ARCHIVING or offset in self.dead_letters or offset < self.log_start_offset
            assert record.state.is_terminal or offset < self.log_start_offset

    @invariant()
    def records_agree(self) -> None:
        partition = self.partition
        partition.validate_state()
        self.forget()
        assert partition.start_offset >= self.start_offset
        self.start_offset = partition.start_offset
        done = 0
        for batch in partition._batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                record = self.records[offset]
                done += (record.changing_to or (record.state,))[0].is_terminal
                if batch.is_done():  # Neighbours that are done are joined, whatever became of them.
                    assert record.state.is_terminal
                    assert record.changing_to is None
                    continue
                assert (batch.state, batch.delivery_count, batch.member_id, batch.available_ms) == (
                    record.state,
                    record.delivery_count,
                    record.member,
                    record.available_ms,
                )
                changing_to = (batch.next_state, batch.next_delivery_count, batch.next_available_ms)
                assert (changing_to if isinstance(batch.transition, Transition) else None) == record.changing_to
        assert len(self.records) == partition.end_offset - partition.start_offset
        assert partition.delivery_complete_count == done


ShareGroup.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestShareGroup = ShareGroup.TestCase
