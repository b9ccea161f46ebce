"""When a fetch that waits is woken: at once after a pause, and every few milliseconds while records come quickly."""

from __future__ import annotations

import pytest

from rayka.share.wake_pace import WakePace

GATHER_S = 0.005


def delay(pace: WakePace, now_s: float) -> float:
    """The delay of a wake for records that come now; nothing else comes until it is over."""
    gather_s = pace.on_records(now_s, GATHER_S)
    assert gather_s is not None
    if gather_s:
        pace.gathered(now_s + gather_s)
    return gather_s


def test_a_record_after_a_pause_is_fetched_at_once() -> None:
    pace = WakePace()
    assert [pace.on_records(now_s * GATHER_S, GATHER_S) for now_s in range(5)] == [0.0] * 5


def test_records_that_follow_each_other_quickly_are_gathered() -> None:
    pace = WakePace()
    assert pace.on_records(0.0, GATHER_S) == 0.0
    for turn in range(1, 20):
        assert pace.on_records((turn - 0.5) * GATHER_S, GATHER_S) == pytest.approx(0.5 * GATHER_S)
        assert pace.on_records((turn - 0.2) * GATHER_S, GATHER_S) is None
        pace.gathered(turn * GATHER_S)


def test_a_program_that_waits_for_each_answer_is_hardly_ever_delayed() -> None:
    pace, now_s, delays = WakePace(), 0.0, []
    for _ in range(1000):
        delays.append(delay(pace, now_s))
        now_s += delays[-1] + GATHER_S / 4
    assert sum(1 for each in delays if each) < 30


def test_gathering_begins_again_when_it_pays_again() -> None:
    pace, now_s = WakePace(), 0.0
    for _ in range(1000):
        now_s += delay(pace, now_s) + GATHER_S / 4
    wakes = 0
    for _ in range(1000):
        now_s += GATHER_S / 10
        gather_s = pace.on_records(now_s, GATHER_S)
        wakes += gather_s == 0.0
        if gather_s:
            due_s = now_s + gather_s
        elif gather_s is None and now_s > due_s:
            pace.gathered(now_s)
            wakes += 1
    assert wakes < 200
