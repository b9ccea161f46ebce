"""When acquisition locks expire."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from rayka.share.in_flight import InFlightBatch
from rayka.share.record_state import ACQUIRED

_SPARE_DEADLINES = 64


class LockDeadline(NamedTuple):
    """Records whose lock was to expire at `expires_ms`; it may have been renewed or given up since."""

    expires_ms: int
    first_offset: int
    last_offset: int


class AcquisitionLocks:
    """The deadlines of all locks that were given. Those that have become pointless are dropped when there are many."""

    def __init__(self) -> None:
        self._deadlines: list[LockDeadline] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, batch: InFlightBatch) -> None:
        """A lock was given or renewed."""
        heapq.heappush(self._deadlines, _deadline(batch))

    def trim(self, batches: Iterable[InFlightBatch], count: int) -> None:
        """Keep the number of deadlines in proportion to that of the batches in flight, of which there are `count`."""
        if len(self._deadlines) > 2 * count + _SPARE_DEADLINES:
            self._deadlines = [_deadline(batch) for batch in batches if batch.state is ACQUIRED]
            heapq.heapify(self._deadlines)

    def deadlines(self) -> set[int]:
        """All times at which a lock may expire."""
        return {deadline.expires_ms for deadline in self._deadlines}

    def next_deadline(self, start_offset: int) -> int | None:
        """The time at which the next lock may expire, None if there is none."""
        while self._deadlines and self._deadlines[0].last_offset < start_offset:
            heapq.heappop(self._deadlines)
        return self._deadlines[0].expires_ms if self._deadlines else None

    def take_due(self, now_ms: int) -> list[LockDeadline]:
        """Remove and return the deadlines that have come."""
        due = []
        while self._deadlines and self._deadlines[0].expires_ms <= now_ms:
            due.append(heapq.heappop(self._deadlines))
        return due


def _deadline(batch: InFlightBatch) -> LockDeadline:
    return LockDeadline(batch.lock_expires_ms, batch.first_offset, batch.last_offset)
