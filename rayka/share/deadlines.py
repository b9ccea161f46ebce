"""When acquisition locks expire, and when delayed records can be delivered again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from rayka.share.in_flight import InFlightBatch
from rayka.share.record_state import ACQUIRED

_SPARE_DEADLINES = 64


class Deadline(NamedTuple):
    """Records whose lock or delay was to end at `at_ms`; it may have been renewed or given up since."""

    at_ms: int
    first_offset: int
    last_offset: int


class Deadlines:
    """The deadlines of all locks and delays. Those that have become pointless are dropped when there are many."""

    def __init__(self) -> None:
        self._deadlines: list[Deadline] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, batch: InFlightBatch) -> None:
        """A lock was given or renewed, or a delay begins."""
        heapq.heappush(self._deadlines, _deadline(batch))

    def trim(self, batches: Iterable[InFlightBatch], count: int) -> None:
        """Keep the number of deadlines in proportion to that of the batches in flight, of which there are `count`."""
        if len(self._deadlines) > 2 * count + _SPARE_DEADLINES:
            self._deadlines = [_deadline(batch) for batch in batches if _has_deadline(batch)]
            heapq.heapify(self._deadlines)

    def times(self) -> set[int]:
        """All times at which a lock or a delay may end."""
        return {deadline.at_ms for deadline in self._deadlines}

    def next_deadline(self, start_offset: int) -> int | None:
        """The time at which the next lock or delay may end, None if there is none."""
        while self._deadlines and self._deadlines[0].last_offset < start_offset:
            heapq.heappop(self._deadlines)
        return self._deadlines[0].at_ms if self._deadlines else None

    def take_due(self, now_ms: int) -> list[Deadline]:
        """Remove and return the deadlines that have come."""
        due = []
        while self._deadlines and self._deadlines[0].at_ms <= now_ms:
            due.append(heapq.heappop(self._deadlines))
        return due


def _has_deadline(batch: InFlightBatch) -> bool:
    return batch.state is ACQUIRED or batch.available_ms > 0


def _deadline(batch: InFlightBatch) -> Deadline:
    at_ms = batch.lock_expires_ms if batch.state is ACQUIRED else batch.available_ms
    return Deadline(at_ms, batch.first_offset, batch.last_offset)
