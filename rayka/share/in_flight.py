"""The records in flight of a share-partition: from its start offset to the highest offset that was ever acquired.

Every offset in between belongs to exactly one batch, and all records of a batch are in the same state. A batch is as
large as what was acquired at once. It is split, up to single records, when part of it gets another state, so whole
batches that are acknowledged together cost the same whatever their size. Offsets that the persisted state leaves out
are batches too, AVAILABLE and never delivered: reading the log fills in what they hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from rayka.share.persister import PersistedState
from rayka.share.record_state import ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE, TRANSITIONS, RecordState
from rayka.types import NO_OFFSET

Headers = tuple[tuple[str, bytes], ...]
NO_MEMBER = ""
_SPARE_BATCHES = 16
_FIRST_OFFSET = attrgetter("first_offset")


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """Records in the same state. `transition` is the change that waits to be persisted, to the `next_` values.

    `lock_expires_ms` counts while they are acquired. Available ones are delayed unless `available_ms` is 0.
    `origin_size` is the number of records of the batch that this was split from. `headers` are for their dead letters.
    """

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int = 0
    member_id: str = NO_MEMBER
    lock_expires_ms: int = 0
    origin_size: int = 0
    transition: Any = None
    next_state: RecordState = RecordState.AVAILABLE
    next_delivery_count: int = 0
    available_ms: int = 0
    next_available_ms: int = 0
    headers: Headers = ()

    @property
    def size(self) -> int:
        """How many offsets it has."""
        return self.last_offset - self.first_offset + 1

    def is_acquirable(self) -> bool:
        """Whether a member may get these records now."""
        return self.state is RecordState.AVAILABLE and self.transition is None and not self.available_ms

    def is_held_by(self, member_id: str, now_ms: int) -> bool:
        """Whether the member has a lock on them that has not expired, and has not acknowledged them yet."""
        return (
            self.state is RecordState.ACQUIRED
            and self.transition is None
            and self.member_id == member_id
            and self.lock_expires_ms > now_ms
        )

    def is_done(self) -> bool:
        """Whether the start offset may pass these records."""
        return self.state.is_terminal and self.transition is None


class InFlightBatches:
    """The batches in order of their offsets, without gaps between them, from `start_offset` below `end_offset`."""

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.terminal_count = 0
        self.last_delayed_offset = NO_OFFSET
        self._batches: list[InFlightBatch] = []
        self._most_batches = _SPARE_BATCHES

    def __iter__(self) -> Iterator[InFlightBatch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def end_offset(self) -> int:
        """The offset after the last one in flight."""
        return self._batches[-1].last_offset + 1 if self._batches else self.start_offset

    def room(self, limit: int) -> int:
        """How many more records may be in flight, of `limit`.

        As in Kafka all offsets from the start offset on count. Behind a record that was delayed only those count that
        are not done, because others must not wait for it.
        """
        in_flight = self.end_offset - self.start_offset
        has_delayed = self.last_delayed_offset >= self.start_offset
        return limit - (in_flight - self.terminal_count if has_delayed else in_flight)

    def append(self, batch: InFlightBatch) -> None:
        """Add a batch that begins at the end offset."""
        assert batch.first_offset == self.end_offset, f"{batch} does not begin at {self.end_offset}"
        batch.origin_size = batch.origin_size or batch.size
        self._batches.append(batch)
        self.terminal_count += batch.size if batch.state.is_terminal else 0

    def within(self, first_offset: int, last_offset: int) -> list[InFlightBatch]:
        """The batches that have an offset from `first_offset` to `last_offset`."""
        if first_offset > last_offset or first_offset >= self.end_offset:
            return []
        begin = max(0, self._index_of(first_offset))
        end = bisect_right(self._batches, last_offset, key=_FIRST_OFFSET)
        return self._batches[begin:end]

    def cut_out(self, first_offset: int, last_offset: int) -> list[InFlightBatch]:
        """The batches of exactly these offsets; those that reach beyond are split."""
        self._split_at(first_offset)
        self._split_at(last_offset + 1)
        return self.within(first_offset, last_offset)

    def cut_out_all(self, offsets: Iterable[tuple[int, int]]) -> list[InFlightBatch]:
        """As `cut_out`, for several runs of offsets."""
        return [batch for first_offset, last_offset in offsets for batch in self.cut_out(first_offset, last_offset)]

    @property
    def waiting_count(self) -> int:
        """How many offsets in flight can be acquired."""
        return sum(batch.size for batch in self._batches if batch.is_acquirable())

    @property
    def acquired_count(self) -> int:
        """How many offsets members hold."""
        return sum(batch.size for batch in self._batches if batch.state is RecordState.ACQUIRED)

    def set_state(self, batch: InFlightBatch, state: RecordState) -> None:
        """Change the state of a batch."""
        assert state in TRANSITIONS[batch.state], f"{batch.state.name} to {state.name}"
        self.terminal_count += batch.size if state.is_terminal else 0
        batch.state = state

    def join(self, batch: InFlightBatch, following: InFlightBatch) -> None:
        """Make one batch of two in the same state that follow each other."""
        del self._batches[self._index_of(following.first_offset)]
        batch.last_offset = following.last_offset
        batch.origin_size = max(batch.origin_size, following.origin_size, batch.size)

    def remove_below(self, offset: int) -> None:
        """Begin at `offset`, which may be above the end."""
        self._split_at(offset)
        end = bisect_right(self._batches, offset - 1, key=_FIRST_OFFSET)
        self.terminal_count -= sum(batch.size for batch in self._batches[:end] if batch.state.is_terminal)
        del self._batches[:end]
        self.start_offset = offset

    def remove_done(self) -> bool:
        """Move the start offset past the records that are done; returns whether it moved."""
        count = 0
        for batch in self._batches:
            if not batch.is_done():
                break
            count += 1
        if count:
            self.remove_below(self._batches[count - 1].last_offset + 1)
        self._join_done()
        return count > 0

    def _join_done(self) -> None:
        """Keep the number of batches in proportion to those that are not done, however many follow a delayed record."""
        if len(self._batches) <= self._most_batches:
            return
        joined: list[InFlightBatch] = []
        for batch in self._batches:
            if joined and joined[-1].is_done() and batch.is_done():
                joined[-1].last_offset = batch.last_offset
            else:
                joined.append(batch)
        self._batches = joined
        self._most_batches = 2 * len(joined) + _SPARE_BATCHES

    def _index_of(self, offset: int) -> int:
        """The index of the last batch that begins at or before `offset`, -1 if there is none."""
        return bisect_right(self._batches, offset, key=_FIRST_OFFSET) - 1

    def _split_at(self, offset: int) -> None:
        index = self._index_of(offset)
        if index < 0:
            return
        batch = self._batches[index]
        if batch.first_offset < offset <= batch.last_offset:
            self._batches.insert(index + 1, replace(batch, first_offset=offset))
            batch.last_offset = offset - 1

    def validate_state(self) -> None:
        """Check that the batches are without gaps and counted rightly. Raises AssertionError."""
        offset = self.start_offset
        for batch in self._batches:
            assert batch.first_offset == offset <= batch.last_offset, f"{batch} at {offset}"
            assert batch.state in (RecordState.ACQUIRED, RecordState.ARCHIVING) or batch.transition is None, batch
            assert batch.state is RecordState.AVAILABLE or not batch.available_ms, batch
            assert (batch.member_id == NO_MEMBER) is (batch.state is not RecordState.ACQUIRED), batch
            offset = batch.last_offset + 1
        terminal = sum(batch.size for batch in self._batches if batch.state.is_terminal)
        assert self.terminal_count == terminal, f"{self.terminal_count} != {terminal}"


def load_batches(state: PersistedState, *, has_dead_letters: bool) -> InFlightBatches:
    """The batches of the persisted state. What it leaves out is available."""
    if state.start_offset < 0:
        raise ValueError(f"start offset {state.start_offset}")
    batches = InFlightBatches(state.start_offset)
    for first_offset, last_offset, number, delivery_count, available_ms in sorted(state.state_batches):
        if last_offset < state.start_offset:
            continue
        first_offset = max(first_offset, state.start_offset)
        if not batches.end_offset <= first_offset <= last_offset:
            raise ValueError(f"state batch {first_offset} to {last_offset} overlaps with another or is empty")
        if first_offset > batches.end_offset:
            batches.append(InFlightBatch(batches.end_offset, first_offset - 1, AVAILABLE))
        record_state = _persisted_state(number, has_dead_letters)
        delayed_to_ms = available_ms if record_state is AVAILABLE else 0
        batches.append(
            InFlightBatch(first_offset, last_offset, record_state, delivery_count, available_ms=delayed_to_ms)
        )
    return batches


def _persisted_state(number: int, has_dead_letters: bool) -> RecordState:
    """Raises ValueError for a number that is not a state, or not one that is persisted."""
    state = RecordState(number)
    if state is ACQUIRED:
        raise ValueError("ACQUIRED is not a state that is persisted")
    return ARCHIVED if state is ARCHIVING and not has_dead_letters else state
