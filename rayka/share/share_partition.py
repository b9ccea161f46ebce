"""A share-partition: the records of one partition that one share group has in flight, on the partition's leader.

A member acquires records under a lock, and acknowledges them. An acknowledgement is a transition with three steps: it
starts here, `begin_write` returns it to be persisted, and `end_write` commits it or rolls it back. Until then its
records can be neither acquired nor acknowledged again. Only one write is in progress at a time. It has all changes
since the last one, so the share coordinator sees the changes in their order.

In a group with a dead-letter queue, records that would be archived first become ARCHIVING, and this state is persisted.
`take_dead_letters` returns them, and `dead_lettered` archives them. A later leader finds records that are still
ARCHIVING and returns them again, so each one is in the queue at least once (KIP-1191).

When a lock expires, the state changes at once, and the change is persisted with the next write (KIP-932). If that write
fails, a later leader delivers the records as if the lock had never existed.

A released record may have to wait for its next delivery: for the delay that the member asks for, or else for the
group's retry backoff. Until then it is skipped. The delay is persisted with the state (rayka's own).

Time is an argument, in milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rayka.errors import RaykaError
from rayka.share.acknowledge import GROUP_BACKOFF, Acknowledgement, check_held
from rayka.share.acquire import AcquiredRecords, AcquireParams, Acquisition, LogBatch
from rayka.share.config import ShareGroupConfig
from rayka.share.deadlines import Deadlines
from rayka.share.in_flight import NO_MEMBER, Headers, InFlightBatch, load_batches
from rayka.share.persister import PersistedBatch, PersistedState, StateUpdate
from rayka.share.record_state import (
    ACQUIRED,
    AFTER,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    AcknowledgeType,
    RecordState,
    released_state,
)
from rayka.share.requests import InFlightRecords, ShareDepth


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    """Changes of records that are persisted together. Without `state_batches` there is nothing to persist."""

    state_batches: tuple[PersistedBatch, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DeadLetters:
    """Records on their way to the dead-letter queue."""

    first_offset: int
    last_offset: int
    delivery_count: int
    headers: Headers = ()


class Change(NamedTuple):
    """The next state of a batch. `headers` are for its dead letters."""

    batch: InFlightBatch
    state: RecordState
    delivery_count: int
    available_ms: int = 0
    headers: Headers = ()

    @property
    def state_batch(self) -> PersistedBatch:
        """The state that is persisted."""
        batch = self.batch
        return PersistedBatch(batch.first_offset, batch.last_offset, self.state, self.delivery_count, self.available_ms)


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """An update that is to be persisted, and the transitions that wait for it."""

    update: StateUpdate
    transitions: tuple[Transition, ...]


class SharePartition:
    """The state of a share-partition. Raises ValueError if the persisted state is invalid."""

    def __init__(self, state: PersistedState, config: ShareGroupConfig) -> None:
        self.config = config
        self._state_epoch = state.state_epoch
        self._batches = load_batches(state, has_dead_letters=bool(config.dead_letter_topic))
        self._has_dead_letters = bool(config.dead_letter_topic)
        self._deadlines = Deadlines()
        self._has_available = bool(len(self._batches))
        for batch in self._batches:
            self._delay(batch, batch.available_ms)
        self._unpersisted: list[PersistedBatch] = []
        self._transitions: list[Transition] = []
        self._write: Write | None = None
        self._batches.remove_done()

    @property
    def start_offset(self) -> int:
        """The share-partition start offset (SPSO): all records below it are done. It never goes back."""
        return self._batches.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the highest one that was ever acquired."""
        return self._batches.end_offset

    @property
    def delivery_complete_count(self) -> int:
        """How many offsets in flight are done, those of transitions included: not part of the lag (KIP-1226)."""
        changing = (batch for batch in self._batches if isinstance(batch.transition, Transition))
        return self._batches.terminal_count + sum(batch.size for batch in changing if batch.next_state.is_terminal)

    def next_fetch_offset(self) -> int | None:
        """Where records can be acquired next; None if there is no room for more in flight."""
        if self._has_available:
            for batch in self._batches:
                if batch.is_acquirable():
                    return batch.first_offset
            self._has_available = False
        return self.end_offset if self._batches.room(self.config.partition_max_record_locks) > 0 else None

    def acquire(
        self, fetch_offset: int, log_batches: Iterable[LogBatch], params: AcquireParams, now_ms: int
    ) -> list[AcquiredRecords]:
        """Lock records for a member, from the batches that the log has at `fetch_offset`, in order.

        `fetch_offset` is the next fetch offset. Without a result, more may be found at the new next fetch offset.
        """
        acquisition = Acquisition(self._batches, self.config, params, now_ms + self.config.record_lock_duration_ms)
        try:
            acquisition.run(fetch_offset, log_batches)
        finally:  # If the log can't be read further, what was acquired by then comes back when its locks expire.
            self._batches.remove_done()
            for batch in acquisition.acquired:
                self._deadlines.add(batch)
            self._deadlines.trim(self._batches, len(self._batches))
        return [
            AcquiredRecords(batch.first_offset, batch.last_offset, batch.delivery_count)
            for batch in acquisition.acquired
        ]

    def acknowledge(self, member_id: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> Transition:
        """Start the transition that the member asks for; renewed locks count at once.

        Records below the start offset are left out. Raises INVALID_REQUEST and INVALID_RECORD_STATE for the whole.
        """
        check_held(self._batches, acknowledgements, member_id, now_ms)
        changes: list[Change] = []
        for acknowledgement in acknowledgements:
            for batch in self._batches.cut_out(acknowledgement.first_offset, acknowledgement.last_offset):
                if acknowledgement.type is AcknowledgeType.RENEW:
                    self._renew(batch, now_ms)
                else:
                    changes.append(self._change(batch, acknowledgement, now_ms))
        return self._start(changes)

    def _renew(self, batch: InFlightBatch, now_ms: int) -> None:
        batch.lock_expires_ms = now_ms + self.config.record_lock_duration_ms
        self._deadlines.add(batch)
        self._deadlines.trim(self._batches, len(self._batches))

    def _change(self, batch: InFlightBatch, acknowledgement: Acknowledgement, now_ms: int) -> Change:
        state = self._state_after(acknowledgement.type, batch)
        if state is not AVAILABLE:
            return Change(batch, state, batch.delivery_count, headers=acknowledgement.headers)
        backoff_ms = self.config.retry_delay_ms(batch.delivery_count)
        delay_ms = backoff_ms if acknowledgement.delay_ms == GROUP_BACKOFF else acknowledgement.delay_ms
        return Change(batch, state, batch.delivery_count, now_ms + delay_ms if delay_ms else 0)

    def _state_after(self, acknowledge_type: AcknowledgeType, batch: InFlightBatch) -> RecordState:
        state = AFTER[acknowledge_type]
        if state is AVAILABLE:
            return self._released_state(batch)
        return self._archived if acknowledge_type is AcknowledgeType.REJECT else state

    def _released_state(self, batch: InFlightBatch) -> RecordState:
        state = released_state(batch.delivery_count, self.config.delivery_count_limit)
        return self._archived if state is ARCHIVED else state

    @property
    def _archived(self) -> RecordState:
        """The state of a record that is not delivered any more, although no member accepted it."""
        return ARCHIVING if self.config.dead_letter_topic else ARCHIVED

    @property
    def has_locks(self) -> bool:
        """Whether members hold records, or records whose change is not persisted yet."""
        return any(batch.state is ACQUIRED for batch in self._batches)

    @property
    def is_persisted(self) -> bool:
        """Whether no change waits to be persisted, or is being persisted."""
        return self._write is None and not self._transitions and not self._unpersisted

    def depth(self, log_end_offset: int) -> ShareDepth:
        """The number of available and acquired records, if the log ends for the group at `log_end_offset`."""
        new_count = max(0, log_end_offset - self.end_offset)
        return ShareDepth(self._batches.waiting_count + new_count, self._batches.acquired_count, self.start_offset)

    def acquirable_count(self, log_end_offset: int) -> int:
        """How many records one fetch could acquire now: as `depth`, but no more than may be in flight."""
        room = self._batches.room(self.config.partition_max_record_locks)
        return self._batches.waiting_count + max(0, min(log_end_offset - self.end_offset, room))

    def release(
        self, member_id: str, *, were_delivered: bool, offsets: Sequence[tuple[int, int]] | None = None
    ) -> Transition:
        """Give back the records that the member holds: all when its session has ended, else those within `offsets`.

        A member that leaves has acknowledged the records that it gave to its program; the others were not delivered and
        do not count as deliveries. When a connection is lost, this is unknown, and the delivery counts: a record that
        crashes every consumer must reach its limit.
        """
        changes = []
        for batch in self._batches if offsets is None else self._batches.cut_out_all(offsets):
            if batch.state is ACQUIRED and batch.transition is None and batch.member_id == member_id:
                state = self._released_state(batch) if were_delivered else AVAILABLE
                changes.append(Change(batch, state, batch.delivery_count - (0 if were_delivered else 1)))
        return self._start(changes)

    def _start(self, changes: Sequence[Change]) -> Transition:
        transition = Transition(tuple(change.state_batch for change in changes))
        for batch, state, delivery_count, available_ms, headers in changes:
            batch.transition = transition
            batch.next_state, batch.next_delivery_count, batch.next_available_ms = state, delivery_count, available_ms
            batch.headers = headers
        if changes:
            self._transitions.append(transition)
        return transition

    def next_deadline(self) -> int | None:
        """When to call `expire` next; None while no record is locked or delayed."""
        return self._deadlines.next_deadline(self.start_offset)

    def expire(self, now_ms: int) -> bool:
        """Take back the records whose lock has expired, and end the delays that are over; returns whether any were.

        Locked records with a transition are taken back if that fails.
        """
        has_expired = False
        for deadline in self._deadlines.take_due(now_ms):
            for batch in self._batches.within(deadline.first_offset, deadline.last_offset):
                if batch.state is ACQUIRED and batch.transition is None and batch.lock_expires_ms <= now_ms:
                    self._take_back(batch)
                    has_expired = True
                elif 0 < batch.available_ms <= now_ms:
                    batch.available_ms = 0
                    self._has_available = has_expired = True
        if has_expired:
            self._batches.remove_done()
        return has_expired

    def _take_back(self, batch: InFlightBatch) -> None:
        batch.headers = ()
        self._set(batch, self._released_state(batch), batch.delivery_count)
        self._unpersisted.append(
            PersistedBatch(batch.first_offset, batch.last_offset, batch.state, batch.delivery_count)
        )

    def _set(self, batch: InFlightBatch, state: RecordState, delivery_count: int) -> None:
        """A batch gets another state, and is nobody's."""
        self._batches.set_state(batch, state)
        self._has_dead_letters = self._has_dead_letters or state is ARCHIVING
        batch.delivery_count = delivery_count
        batch.member_id = NO_MEMBER
        self._has_available = self._has_available or state is AVAILABLE

    def _delay(self, batch: InFlightBatch, available_ms: int) -> None:
        """The batch is not delivered before `available_ms`, unless that is 0."""
        batch.available_ms = available_ms
        if available_ms:
            self._deadlines.add(batch)
            self._batches.last_delayed_offset = max(self._batches.last_delayed_offset, batch.last_offset)

    def begin_write(self) -> Write | None:
        """What to persist now; None if there is nothing, or while a write is in progress."""
        if self._write is not None or not (self._transitions or self._unpersisted):
            return None
        transitions, self._transitions = tuple(self._transitions), []
        unpersisted, self._unpersisted = self._unpersisted, []
        state_batches = [batch for batch in unpersisted if batch.last_offset >= self.start_offset]
        for transition in transitions:
            state_batches += transition.state_batches
        update = StateUpdate(
            self._state_epoch, self.start_offset, self.delivery_complete_count, tuple(sorted(state_batches))
        )
        self._write = Write(update, transitions)
        return self._write

    def end_write(self, error: RaykaError | None, now_ms: int) -> None:
        """The write is durable, or has failed: commit its transitions, or roll them back.

        After a failure, records whose lock has expired in the meantime become available, and those that are already in
        the dead-letter queue wait for the next write.
        """
        assert self._write is not None, "no write is under way"
        write, self._write = self._write, None
        for transition in write.transitions:
            for state_batch in transition.state_batches:
                for batch in self._batches.within(state_batch.first_offset, state_batch.last_offset):
                    if batch.transition is transition:
                        self._end(batch, error is None, now_ms)
        self._batches.remove_done()

    def _end(self, batch: InFlightBatch, is_committed: bool, now_ms: int) -> None:
        batch.transition = None
        if is_committed:
            self._set(batch, batch.next_state, batch.next_delivery_count)
            self._delay(batch, batch.next_available_ms)
        elif batch.state is ARCHIVING:
            self._start([Change(batch, ARCHIVED, batch.delivery_count)])
        elif batch.lock_expires_ms <= now_ms:
            self._take_back(batch)

    def take_dead_letters(self) -> list[DeadLetters]:
        """The records to write to the dead-letter queue now; each is returned once."""
        letters: list[DeadLetters] = []
        if not self._has_dead_letters:
            return letters
        self._has_dead_letters = False
        for batch in self._batches:
            if batch.state is ARCHIVING and batch.transition is None:
                one = DeadLetters(batch.first_offset, batch.last_offset, batch.delivery_count, batch.headers)
                letters.append(one)
                batch.transition = one
        return letters

    def dead_lettered(self, letters: DeadLetters) -> Transition:
        """These records are in the dead-letter queue: start to archive them."""
        batches = self._batches.within(letters.first_offset, letters.last_offset)
        return self._start(
            [Change(batch, ARCHIVED, batch.delivery_count) for batch in batches if batch.transition is letters]
        )

    def log_start_offset_moved(self, log_start_offset: int) -> bool:
        """The log was deleted below this offset: the group can't read there any more. Returns whether it could.

        It is persisted with the next write.
        """
        if log_start_offset <= self.start_offset:
            return False
        self._batches.remove_below(log_start_offset)
        self._batches.remove_done()
        return True

    def describe(self, now_ms: int) -> tuple[InFlightRecords, ...]:
        """The records in flight, as ranges in the same state. Transitions in progress do not count yet."""
        return tuple(
            InFlightRecords(
                batch.first_offset, batch.last_offset, batch.state, batch.delivery_count, batch.member_id,
                max(0, (batch.lock_expires_ms if batch.state is ACQUIRED else batch.available_ms) - now_ms),
            )
            for batch in self._batches
        )  # fmt: skip

    def validate_state(self) -> None:
        """Check the invariants. Raises AssertionError."""
        self._batches.validate_state()
        under_way = self._write.transitions if self._write is not None else ()
        transitions = {*self._transitions, *under_way}
        deadlines = self._deadlines.times()
        for batch in self._batches:
            is_letter = isinstance(batch.transition, DeadLetters) and batch.state is ARCHIVING
            assert batch.transition is None or is_letter or batch.transition in transitions, f"lost: {batch}"
            is_taken = batch.state is not ARCHIVING or batch.transition is not None
            assert is_taken or self._has_dead_letters, f"{batch} would not be written to the dead-letter queue"
            assert batch.delivery_count <= self.config.delivery_count_limit, batch
            has_lock = batch.state is ACQUIRED and batch.transition is None
            assert not has_lock or batch.lock_expires_ms in deadlines, f"no timer for {batch}"
            assert not batch.available_ms or batch.available_ms in deadlines, f"no timer for {batch}"
            assert self._has_available or not batch.is_acquirable(), f"{batch} would not be delivered"
        first = next(iter(self._batches), None)
        assert first is None or not first.is_done(), f"start offset behind {first}"
