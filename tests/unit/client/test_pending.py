"""What was taken for a program that does not have it yet."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from rayka.client.consumer import pending as pending_module
from rayka.client.consumer.pending import PendingRecords, TablesBeingMade
from rayka.client.consumer.records import ConsumerRecord, RecordBatches
from rayka.client.consumer.sequence import ConsumerRecords, MadeRecords
from rayka.types import TimestampType, TopicPartition

FIRST, SECOND = TopicPartition("events", 0), TopicPartition("events", 1)


def batches(partition: TopicPartition, position: int) -> list[RecordBatches]:
    return [RecordBatches(partition, memoryview(b""), position, position + 10, None)]


def test_a_poll_that_is_delivered_leaves_what_another_one_has_taken_meanwhile() -> None:
    pending = PendingRecords()
    first = pending.begin_delivery({FIRST: batches(FIRST, 3)})
    second = pending.begin_delivery({SECOND: batches(SECOND, 5)})
    pending.end_delivery(first)
    assert pending.first_offsets() == {SECOND: 5}
    pending.end_delivery(second)
    assert pending.first_offsets() == {}


def test_records_are_added_for_iteration_all_or_none() -> None:
    class Unreadable(ConsumerRecords):
        def __len__(self) -> int:
            raise MemoryError

    pending, made = PendingRecords(), records_of(FIRST, 4)
    pending.add({FIRST: waiting(MadeRecords(made[:2]))})
    with pytest.raises(MemoryError):
        pending.add({FIRST: waiting(MadeRecords(made[2:])), SECOND: Unreadable()})
    assert [pending.popleft() for _ in range(2)] == made[:2]
    assert not pending


def test_an_interrupted_delivery_leaves_all_records_pending_or_none() -> None:
    """Ctrl-C may come at each line."""
    partitions = [TopicPartition("events", number) for number in range(4)]
    for place in range(100):
        pending = PendingRecords()
        polled = pending.begin_delivery({each: batches(each, 3) for each in partitions})
        if not interrupted_at(place, partial(pending.end_delivery, polled)):
            assert pending.first_offsets() == {}
            return
        assert len(pending.first_offsets()) in (0, 4)
    raise AssertionError("It was interrupted at each of 100 lines")


def interrupted_at(place: int, call: Callable[[], object]) -> bool:
    """Whether an interrupt at this line, counted from the start of the call, came before its end."""
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_code.co_filename == pending_module.__file__ and next(lines) == place:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def records_of(partition: TopicPartition, count: int) -> list[ConsumerRecord]:
    return [ConsumerRecord(*partition, each, 0, TimestampType.CREATE_TIME, None, None, ()) for each in range(count)]


class WatchedSource(MadeRecords):
    """Records of which some are made at a time; before that it calls `look`."""

    def __init__(self, records: list[ConsumerRecord], look: Callable[[], object]) -> None:
        super().__init__(records)
        self._look = look

    def records(self, start: int, end: int) -> list[ConsumerRecord]:
        self._look()
        return super().records(start, end)


def waiting(source: MadeRecords) -> ConsumerRecords:
    records = ConsumerRecords()
    records.append(source, 0, len(source))
    return records


def test_records_are_pending_while_they_are_made() -> None:
    """Another thread may commit meanwhile: what the program does not have would be lost to its group."""
    pending, seen = PendingRecords(), list[dict[TopicPartition, int]]()
    made = records_of(FIRST, 1200)
    pending.add({FIRST: waiting(WatchedSource(made, lambda: seen.append(pending.first_offsets())))})
    assert [pending.popleft() for _ in made] == made
    assert seen == [{FIRST: 0}, {FIRST: 512}, {FIRST: 1024}]
    assert pending.first_offsets() == {}


def test_records_that_are_dropped_while_they_are_made_are_not_given_out() -> None:
    """Another thread may seek meanwhile."""
    pending, others = PendingRecords(), records_of(SECOND, 3)
    source = WatchedSource(records_of(FIRST, 600), lambda: pending.keep(lambda partition: partition != FIRST))
    pending.add({FIRST: waiting(source)})
    pending.make()
    pending.add({SECOND: waiting(MadeRecords(others))})
    assert [pending.popleft() for _ in others] == others
    assert not pending


def test_dropping_a_partition_drops_no_records_of_the_next_one_that_are_made_meanwhile() -> None:
    """The caller's thread goes on while the loop's looks whether the partition is wanted."""
    pending, others = PendingRecords(), records_of(SECOND, 3)
    pending.add({FIRST: waiting(MadeRecords(records_of(FIRST, 2))), SECOND: waiting(MadeRecords(others))})
    pending.popleft()
    is_asked = False

    def is_wanted(partition: TopicPartition) -> bool:
        nonlocal is_asked
        if partition == FIRST and not is_asked:
            is_asked = True
            pending.popleft()
            pending.make()
        return partition != FIRST

    pending.keep(is_wanted)
    assert is_asked
    assert [pending.popleft() for _ in others] == others


@pytest.mark.parametrize("count", [5, 512, 600])
@pytest.mark.parametrize("limit", [3, 600])
def test_an_interrupt_while_a_batch_is_taken_leaves_it_whole(count: int, limit: int) -> None:
    made = records_of(FIRST, count)
    for place in range(1000):
        pending = PendingRecords()
        pending.add({FIRST: waiting(MadeRecords(made))})
        if not interrupted_at_call(place, partial(pending.take, limit)):
            assert place > 3, "calls were seen"
            return
        assert [pending.popleft() for _ in made] == made
    raise AssertionError("It was interrupted at each of 1000 calls")


@pytest.mark.parametrize("count", [5, 512, 600])
def test_an_interrupt_while_records_are_made_loses_none_and_repeats_none(count: int) -> None:
    """Ctrl-C comes when a function begins, or when one of C has ended."""
    made = records_of(FIRST, count)
    for place in range(10_000):
        pending = PendingRecords()
        pending.add({FIRST: waiting(MadeRecords(made))})
        if not interrupted_at_call(place, pending.make):
            assert place > 10, "calls were seen"
            return
        assert pending.first_offsets() == {FIRST: 0}
        assert [pending.popleft() for _ in made] == made
        assert not pending
    raise AssertionError("It was interrupted at each of 10,000 calls")


class FullDeque(deque[ConsumerRecord]):
    """It has no memory for more than three records the first time."""

    is_full = True

    def extend(self, records: Iterable[ConsumerRecord]) -> None:
        first = [*records]
        super().extend(first[:3] if self.is_full else first)
        if self.is_full:
            self.is_full = False
            raise MemoryError


def test_a_lack_of_memory_for_records_loses_none_and_repeats_none() -> None:
    pending, made = PendingRecords(), records_of(FIRST, 600)
    pending.made = FullDeque()
    pending.add({FIRST: waiting(MadeRecords(made))})
    with pytest.raises(MemoryError):
        pending.make()
    assert pending.first_offsets() == {FIRST: 0}
    assert [pending.popleft() for _ in made] == made


def test_an_interrupt_of_the_next_record_leaves_it_or_gives_it_out() -> None:
    made = records_of(FIRST, 2)
    for place in range(100):
        pending = PendingRecords()
        pending.add({FIRST: waiting(MadeRecords(made))})
        pending.make()
        if not interrupted_at_call(place, pending.popleft):
            return
        assert [pending.popleft() for _ in made] == made
    raise AssertionError("It was interrupted at each of 100 calls")


def interrupted_at_call(place: int, call: Callable[[], object]) -> bool:
    """Whether an interrupt at the begin of a function or the end of one of C, counted from the start, came before the
    end of the call."""
    calls = itertools.count()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and next(calls) == place:
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
        sys.setprofile(None)
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_a_poll_that_takes_nothing_leaves_nothing_pending() -> None:
    pending = PendingRecords()
    with pending.taking({FIRST: 3}):
        assert pending.first_offsets() == {FIRST: 3}
        pending.begin_delivery(dict[TopicPartition, list[RecordBatches]]())
    assert pending.first_offsets() == {}


def test_tables_that_begin_at_the_same_offsets_count_until_each_is_made() -> None:
    """The records of the first were given back and taken again."""
    tables = TablesBeingMade()
    first, second = tables.begin({FIRST: 3}), tables.begin({FIRST: 3})
    assert tables.first_offset(FIRST, 20) == 3
    tables.end(second)
    assert tables.first_offset(FIRST, 20) == 3
    tables.keep(lambda partition: partition != FIRST)
    assert tables.first_offset(FIRST, 20) == 20
    assert (first, second) == ({}, {FIRST: 3})


def test_a_table_counts_for_its_own_partitions() -> None:
    tables = TablesBeingMade()
    tables.begin({FIRST: 3})
    assert [tables.first_offset(partition, 20) for partition in (FIRST, SECOND)] == [3, 20]
    assert tables.first_offset(FIRST, 2) == 2
