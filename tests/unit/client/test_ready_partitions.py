"""In which order partitions give what was fetched ahead, and parts of tables are begun."""

from __future__ import annotations

from typing import Any

import pytest

from rayka.client.consumer.positions import AssignedPartition
from rayka.client.consumer.ready_partitions import ReadyPartitions
from rayka.client.consumer.stored import Piece, StoredBatches, StoredFetch
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.segment_files import SegmentFiles
from rayka.types import FileSlice, TopicPartition

MIB = 1 << 20


def partition_with(number: int, *sizes: int) -> AssignedPartition:
    """A partition whose program takes table after table, with fetches of these sizes and one offset each."""
    state = AssignedPartition(TopicPartition("events", number))
    state.tables_before_ahead = 0
    for offset, size in enumerate(sizes):
        source = FileSlice("00000000000000000000.log", 0, size)
        state.put(StoredFetch(StoredBatches(state.topic_partition, source, [Piece(0, size, 1)], offset, offset + 1)))
    return state


def ready_of(*states: AssignedPartition) -> ReadyPartitions:
    ready = ReadyPartitions()
    for state in states:
        ready.add(state)
    return ready


def begun(ready: ReadyPartitions, files: SegmentFiles, table_bytes: int) -> list[tuple[int, int]]:
    """The partitions and offsets of the parts that are begun."""
    found: list[tuple[int, int]] = []

    def begin_part(batches: StoredBatches, _: SegmentFiles) -> Any:
        found.append((batches.topic_partition.partition, batches.position))
        return object()

    ready.begin_parts(begin_part, files, table_bytes)
    return found


def test_partitions_take_turns() -> None:
    first, second, third = states = [partition_with(number, 1) for number in range(3)]
    ready = ready_of(*states)
    assert ready.readable() == [first, second, third]
    ready.end_turn(first)
    ready.add(second)
    assert ready.readable() == [second, third, first]


def test_a_paused_partition_keeps_its_turn_and_gives_nothing() -> None:
    first, second = partition_with(0, 1), partition_with(1, 1)
    ready = ready_of(first, second)
    first.pause()
    assert ready.readable() == [second]
    first.is_paused = False
    assert ready.readable() == [first, second]


def test_a_partition_without_fetches_is_readable_as_long_as_it_has_an_error() -> None:
    state = partition_with(0)
    ready = ready_of(state)
    state.error = RaykaError(ErrorCode.CORRUPT_MESSAGE, "damaged")
    assert ready.readable() == [state]
    state.error = None
    assert ready.readable() == []
    state.error = RaykaError(ErrorCode.CORRUPT_MESSAGE, "damaged")
    assert ready.readable() == [], "it has to be added again"


def test_what_is_buffered_of_paused_partitions_does_not_count() -> None:
    first, second = partition_with(0, 1), partition_with(1, 1)
    first.buffered_bytes, second.buffered_bytes = 10, 300
    ready = ready_of(first, second)
    assert ready.buffered_bytes == 310
    second.pause()
    assert ready.buffered_bytes == 10


@pytest.mark.parametrize(
    ("table_bytes", "expected"),
    [(10 * MIB, [(0, 0), (1, 0)]), (20 * MIB, [(0, 0), (0, 1)]), (1, [(0, 0), (1, 0)])],
)
def test_parts_are_begun_in_the_order_in_which_tables_end_with_a_partition(
    files: SegmentFiles, table_bytes: int, expected: list[tuple[int, int]]
) -> None:
    ready = ready_of(partition_with(0, 10 * MIB, 10 * MIB), partition_with(1, 10 * MIB, 10 * MIB))
    assert begun(ready, files, table_bytes) == expected
    assert begun(ready, files, table_bytes) == [], "each part is begun once"


def test_parts_are_begun_of_large_answers_only(files: SegmentFiles) -> None:
    ready = ready_of(partition_with(0, MIB, 65 * MIB, 10 * MIB, 11 * MIB, 12 * MIB))
    assert begun(ready, files, 16 * MIB) == [(0, 2), (0, 3)]


def test_no_part_is_begun_of_a_partition_that_is_paused_or_was_just_sought(files: SegmentFiles) -> None:
    sought, paused = partition_with(0, 10 * MIB), partition_with(1, 10 * MIB)
    sought.tables_before_ahead = 1
    paused.pause()
    assert begun(ready_of(sought, paused), files, 16 * MIB) == []


def test_a_part_that_can_not_be_begun_does_not_hinder_the_next(files: SegmentFiles) -> None:
    asked: list[int] = []

    def no_memory(batches: StoredBatches, _: SegmentFiles) -> Any:
        asked.append(batches.position)
        raise MemoryError

    ready_of(partition_with(0, 10 * MIB, 10 * MIB)).begin_parts(no_memory, files, 16 * MIB)
    assert asked == [0, 1]
