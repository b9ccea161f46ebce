"""Which records a member gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.share.acquire import AcquireParams, LogBatch
from tests.unit.share.group import LOCK_MS, Group


def offsets(group: Group, *args: object, **kwargs: object) -> list[tuple[int, int, int]]:
    return [tuple(one) for one in group.acquire(*args, **kwargs)]  # type: ignore[arg-type,misc]


def test_whole_batches_are_acquired_though_they_hold_more_than_asked_for() -> None:
    group = Group([(0, 9), (10, 19), (20, 29)])
    assert offsets(group, max_records=12) == [(0, 19, 1)]
    assert offsets(group, "other") == [(20, 29, 1)]


def test_in_record_limit_mode_exactly_as_many_as_asked_for_are_acquired() -> None:
    group = Group([(0, 9), (10, 19)])
    assert offsets(group, max_records=12, mode="records") == [(0, 11, 1)]
    assert offsets(group, max_records=12, mode="records") == [(12, 19, 1)]


def test_acquired_batches_end_at_the_batch_of_the_log_that_fills_them() -> None:
    group = Group([(0, 3), (4, 7), (8, 11), (12, 15)])
    assert offsets(group, batch_size=6) == [(0, 7, 1), (8, 15, 1)]


def test_a_batch_that_begins_before_the_start_offset_is_acquired_from_there() -> None:
    group = Group([(0, 9)], start=4)
    assert offsets(group) == [(4, 9, 1)]


def test_released_records_come_before_new_ones_and_count_their_deliveries() -> None:
    group = Group([(0, 9), (10, 19)])
    group.acquire(max_records=10)
    group.release(2, 3)
    assert offsets(group, "other", 3) == [(2, 3, 2), (10, 19, 1)]


def test_no_more_records_than_the_limit_are_in_flight() -> None:
    group = Group([(0, 4), (5, 9), (10, 14)], locks=10)
    assert offsets(group) == [(0, 9, 1)]
    assert group.partition.next_fetch_offset() is None
    group.accept(0, 0)
    assert offsets(group, mode="records") == [(10, 10, 1)]


def test_released_records_are_acquired_again_though_the_limit_is_reached() -> None:
    group = Group([(0, 9), (10, 19)], locks=10)
    group.acquire()
    group.release(5, 5)
    assert offsets(group, "other") == [(5, 5, 2)]


def test_records_with_a_transition_are_not_acquired() -> None:
    group = Group([(0, 9)])
    group.acquire()
    group.partition.release("m", were_delivered=True)
    assert offsets(group, "other") == []
    group.persist()
    assert offsets(group, "other") == [(0, 9, 2)]


def test_offsets_that_compaction_removed_are_passed_over() -> None:
    group = Group([(0, 9), (15, 19)])
    assert offsets(group) == [(0, 9, 1), (15, 19, 1)]
    group.accept(0, 9)
    assert group.partition.start_offset == 15


def test_released_records_that_compaction_removed_are_archived() -> None:
    group = Group([(0, 9), (10, 19)])
    group.acquire(max_records=10)
    group.release(0, 9)
    group.log = group.log[1:]
    assert offsets(group) == [(10, 19, 1)]
    assert group.partition.start_offset == 10


def test_batches_without_visible_records_are_passed_over() -> None:
    group = Group([(0, 4)])
    group.log += [LogBatch(5, 5, is_visible=False), LogBatch(6, 9)]
    assert offsets(group) == [(0, 4, 1), (6, 9, 1)]
    assert group.states == "0-4 ACQUIRED 1, 5-5 ARCHIVED 0, 6-9 ACQUIRED 1"


def test_gaps_in_the_persisted_state_are_delivered() -> None:
    group = Group([(0, 29)], persisted=[(5, 9, 2, 1), (15, 19, 0, 3), (25, 29, 4, 5)])
    assert offsets(group, mode="records", max_records=12) == [(0, 4, 1), (10, 14, 1)]
    assert offsets(group, max_records=500) == [(15, 16, 4)], "records delivered often come alone, and fewer"


def test_the_start_offset_passes_what_was_persisted_as_done() -> None:
    group = Group(persisted=[(0, 4, 2, 1), (5, 9, 4, 5), (10, 14, 0, 1)])
    assert group.partition.start_offset == 10
    assert group.partition.end_offset == 15


@pytest.mark.parametrize(
    "persisted",
    [
        [(0, 9, 2, 1), (5, 12, 0, 1)],
        [(9, 5, 2, 1)],
        [(0, 9, 1, 1)],
        [(0, 9, 7, 1)],
    ],
    ids=["overlap", "empty", "acquired", "unknown state"],
)
def test_persisted_state_that_makes_no_sense_is_refused(persisted: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(ValueError, match=r"overlaps|not a state|valid RecordState"):
        Group(persisted=persisted)


def deliver(group: Group, times: int) -> None:
    for _ in range(times):
        group.acquire()
        group.wait(LOCK_MS)


def test_records_near_the_delivery_limit_come_in_halves_and_at_last_alone() -> None:
    group = Group([(0, 15)], limit=6)
    deliver(group, 3)
    assert offsets(group) == [(0, 7, 4)]
    assert offsets(group) == [(8, 15, 4)]
    group.wait(LOCK_MS)
    assert offsets(group) == [(0, 3, 5)]
    group.wait(LOCK_MS)
    assert offsets(group) == [(0, 0, 6)]


def test_a_group_with_two_deliveries_isolates_nothing() -> None:
    group = Group([(0, 15)], limit=2)
    deliver(group, 1)
    assert offsets(group) == [(0, 15, 2)]
    group.wait(LOCK_MS)
    assert group.partition.start_offset == 16


def test_records_come_back_if_reading_the_log_fails_after_they_were_acquired() -> None:
    def read() -> Iterator[LogBatch]:
        yield LogBatch(0, 4)
        raise RaykaError(ErrorCode.KAFKA_STORAGE_ERROR)

    group = Group([(0, 9)])
    with pytest.raises(RaykaError):
        group.partition.acquire(0, read(), AcquireParams("m", 500, 500), 0)
    assert group.wait(LOCK_MS)
    assert group.acquire() == [(0, 4, 2), (5, 9, 1)]
