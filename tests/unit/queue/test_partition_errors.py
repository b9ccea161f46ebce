"""When the errors of a queue's partitions are raised and logged."""

from __future__ import annotations

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.queue.partition_errors import AGAIN_S, PartitionErrors

DAMAGED = RaykaError(ErrorCode.CORRUPT_MESSAGE, "q-0: damaged")
FAULT = RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, "q-1: disk")
AWAY = RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "q-2: away")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def errors(clock: Clock) -> PartitionErrors:
    return PartitionErrors(clock)


def test_an_error_that_does_not_pass_is_raised_at_once_and_again_later(errors: PartitionErrors, clock: Clock) -> None:
    errors.note({0: DAMAGED}, {})
    assert [errors.take_due(), errors.take_due()] == [DAMAGED, None]
    clock.now_s += AGAIN_S
    assert errors.take_lasting() is DAMAGED
    assert errors.take_due() is None, "who waits has just got it"
    clock.now_s += AGAIN_S
    assert errors.take_due() is DAMAGED


def test_each_partition_has_its_own_error(errors: PartitionErrors) -> None:
    other = RaykaError(ErrorCode.CORRUPT_MESSAGE, "q-5: damaged")
    errors.note({0: DAMAGED, 5: other}, {})
    assert [errors.take_due() for _ in range(3)] == [DAMAGED, other, None]


def test_an_error_that_may_pass_is_only_raised_if_it_lasts_and_time_is_over(
    errors: PartitionErrors, clock: Clock
) -> None:
    for seconds, expected in ((0.0, None), (1.5, FAULT), (30.0, FAULT)):
        clock.now_s = 100 + seconds
        errors.note({1: FAULT, 2: AWAY}, {})
        assert (errors.take_due(), errors.take_lasting()) == (None, expected)
    errors.note({2: AWAY}, {})
    assert errors.take_lasting() is AWAY
    errors.note({}, {})
    assert errors.take_lasting() is None


def test_a_fault_that_lasts_long_is_raised_though_there_is_time_left(errors: PartitionErrors, clock: Clock) -> None:
    found = []
    for _ in range(8):
        errors.note({1: FAULT, 2: AWAY}, {})
        found.append(errors.take_due())
        clock.now_s += AGAIN_S
    assert found == [None] * 6 + [FAULT] * 2


def test_a_fault_before_a_time_without_fetches_has_not_lasted_long(errors: PartitionErrors, clock: Clock) -> None:
    errors.note({1: FAULT}, {})
    clock.now_s += 3600
    found = []
    for _ in range(3):
        errors.note({1: FAULT}, {})
        found.append(errors.take_due())
        clock.now_s += 30
    assert found == [None, None, FAULT]


def test_a_fault_of_every_second_fetch_lasts(errors: PartitionErrors, clock: Clock) -> None:
    found = []
    for _ in range(4):
        errors.note({1: FAULT}, {})
        clock.now_s += AGAIN_S
        errors.note({1: AWAY}, {})
        found.append(errors.take_due())
        clock.now_s += AGAIN_S
        errors.note({1: FAULT}, {})
        found.append(errors.take_due())
    assert found == [None] * 5 + [FAULT, None, FAULT]


def test_a_fault_that_is_seen_now_and_then_does_not_last(errors: PartitionErrors, clock: Clock) -> None:
    for _ in range(10):
        errors.note({1: FAULT}, {})
        assert errors.take_due() is None
        for _ in range(4):
            clock.now_s += 2
            errors.note({}, {})
            assert errors.take_due() is None


def test_items_that_could_not_be_read_again_and_again_do_not_pass(errors: PartitionErrors) -> None:
    errors.note({}, {1: FAULT})
    assert (errors.take_due(), errors.take_lasting()) == (FAULT, FAULT)


def test_an_error_is_logged_once(errors: PartitionErrors, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(29):
        errors.note({0: DAMAGED, 1: FAULT, 2: AWAY}, {})
        errors.note({0: DAMAGED, 2: AWAY}, {})
        clock.now_s += 1
    assert caplog.messages == [
        "no items are delivered of q-0: damaged (CORRUPT_MESSAGE)",
        "no items are delivered of q-1: disk (KAFKA_STORAGE_ERROR)",
    ]
    clock.now_s += 1
    errors.note({2: AWAY}, {})
    assert caplog.messages[2:] == ["no items are delivered of q-2: away (NOT_LEADER_OR_FOLLOWER)"]
