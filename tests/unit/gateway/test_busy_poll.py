"""When the loop stays awake for the next request."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from rayka.gateway.server.busy_poll import SMALL_BYTES, WINDOW_S, BusyPoll


class Turns:
    """A loop that is turned by hand, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self._called: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._called.append(callback)

    def turn(self) -> None:
        called, self._called = self._called, []
        for callback in called:
            callback()


def serve(poll: BusyPoll, size: int = 100) -> None:
    poll.request_came(size)
    poll.answered()


def poll_after_two_requests(gap_s: float, *, size: int = 100, cores: int = 2) -> tuple[BusyPoll, Turns]:
    turns = Turns()
    poll = BusyPoll(turns.call_soon, cores, lambda: turns.now)
    serve(poll, size)
    turns.now += gap_s
    serve(poll, size)
    return poll, turns


def test_busy_poll_ends_with_the_window() -> None:
    poll, turns = poll_after_two_requests(WINDOW_S / 2)
    turns.turn()
    assert poll.is_awake
    turns.now += WINDOW_S * 2
    turns.turn()
    assert not poll.is_awake


def test_requests_that_keep_coming_keep_it_awake() -> None:
    poll, turns = poll_after_two_requests(WINDOW_S / 2)
    for _ in range(10):
        turns.now += WINDOW_S * 0.9
        turns.turn()
        serve(poll)
        assert poll.is_awake


def test_no_busy_poll_for_rare_or_large_requests_or_on_one_core() -> None:
    assert not poll_after_two_requests(WINDOW_S * 5)[0].is_awake
    assert not poll_after_two_requests(WINDOW_S / 2, size=SMALL_BYTES + 1)[0].is_awake
    assert not poll_after_two_requests(WINDOW_S / 2, cores=1)[0].is_awake


def test_the_core_is_yielded_in_each_turn_of_the_busy_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(os, "sched_yield", lambda: given.append(turns.now))
    _, turns = poll_after_two_requests(WINDOW_S / 2)
    for _ in range(3):
        turns.turn()
    assert len(given) == 3
    turns.now += WINDOW_S * 2
    turns.turn()
    assert len(given) == 3
