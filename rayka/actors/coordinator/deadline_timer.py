"""Wakes a coordinator at the earliest deadline of its core.

Deadlines run on the monotonic clock. A deadline that is noticed late means that this process was paused; what its
members sent meanwhile may still be on its way, so they get as long again as the coordinator was late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_MIN_TIMER_S = 0.001
_PAUSED_MS = 100
_LONGEST_GRACE_MS = 5_000


class DeadlineTimer:
    """Calls `expire` when the deadline that `next_deadline` gives (monotonic, ms) has passed; None: there is none."""

    def __init__(self, next_deadline: Callable[[], int | None], expire: Callable[[], None]) -> None:
        self._next_deadline = next_deadline
        self._expire = expire
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._wake_at = 0
        self._not_before = 0

    def schedule(self) -> None:
        """Keep one timer for the earliest deadline; one that comes too early does no harm."""
        deadline = self._next_deadline()
        if deadline is None:
            return
        wake_at = max(deadline, self._not_before)
        if self._handle is not None and self._wake_at <= wake_at:
            return
        self.cancel()
        self._wake_at = wake_at
        self._handle = self._loop.call_later(max(_MIN_TIMER_S, (wake_at - monotonic_ms()) / 1000), self._wake)

    def cancel(self) -> None:
        """Wake nobody until the next `schedule`."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wake(self) -> None:
        """If the wake-up is late, pending input goes first; but no deadline is put off twice."""
        self._handle = None
        now_ms = monotonic_ms()
        late_ms = now_ms - self._wake_at
        if late_ms > _PAUSED_MS and self._wake_at != self._not_before:
            self._not_before = now_ms + min(late_ms, _LONGEST_GRACE_MS)
            self.schedule()
            return
        try:
            self._expire()
        finally:
            self.schedule()


def monotonic_ms() -> int:
    """The monotonic clock."""
    return time.monotonic_ns() // 1_000_000
