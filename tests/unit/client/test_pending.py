"""What was taken for a program that does not have it yet."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from rayka.client.consumer import pending as pending_module
from rayka.client.consumer.pending import PendingRecords, TablesBeingMade
from rayka.client.consumer.records import RecordBatches
from rayka.types import TopicPartition

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


def test_a_poll_that_takes_nothing_leaves_nothing_pending() -> None:
    pending = PendingRecords()
    with pending.taking({FIRST: 3}):
        assert pending.first_offsets() == {FIRST: 3}
        pending.begin_delivery(dict[TopicPartition, list[RecordBatches]]())
    assert pending.first_offsets() == {}


def test_tables_that_begin_at_the_same_offsets_count_until_each_is_made() -> None:
    """The records of the first were given back and taken again."""
    tables = TablesBeingMade()
    with tables.making({FIRST: 3}) as first:
        with tables.making({FIRST: 3}) as second:
            assert tables.first_offset(FIRST, 20) == 3
        assert tables.first_offset(FIRST, 20) == 3
        tables.keep(lambda partition: partition != FIRST)
        assert tables.first_offset(FIRST, 20) == 20
        assert (first, second) == ({}, {FIRST: 3})


def test_a_table_counts_for_its_own_partitions() -> None:
    tables = TablesBeingMade()
    with tables.making({FIRST: 3}):
        assert [tables.first_offset(partition, 20) for partition in (FIRST, SECOND)] == [3, 20]
        assert tables.first_offset(FIRST, 2) == 2
