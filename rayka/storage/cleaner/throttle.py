"""Limits the rate of the cleaner's reads and writes (`log.cleaner.io.max.bytes.per.second`)."""

from __future__ import annotations

from collections.abc import Callable

_LONGEST_BURST_S = 0.1


class Throttle:
    """Sleeps once what was read and written is a tenth of a second ahead of the rate. Times in seconds."""

    def __init__(self, bytes_per_second: float, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._allowed_until = clock()

    def __call__(self, size: int) -> None:
        """Take `size` bytes into account."""
        now = self._clock()
        self._allowed_until = max(self._allowed_until, now) + size / self._rate
        if self._allowed_until - now > _LONGEST_BURST_S:
            self._sleep(self._allowed_until - now)
