"""The deadlines of a coordinator's soft state, in one queue.

A heartbeat moves a deadline further out thousands of times before it is ever reached, so moving it only rewrites the
deadline; the entry keeps its place in the heap. When the entry reaches the front it is either due, or goes back to its
real deadline. An idle group costs nothing, a busy one a dictionary look-up for each heartbeat. A cancelled deadline too
keeps its place until it would be due, unless most of the places are of such.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

_FEW = 64
"""How many cancelled entries any queue may keep, however few others it has."""

K = TypeVar("K")


@dataclass(slots=True)
class _Entry:
    deadline_ms: int
    queued_ms: int
    argument: Any


class TimerChange(NamedTuple):
    """A deadline to set or, without `deadline_ms`, to cancel."""

    key: Any
    deadline_ms: int | None = None
    argument: Any = None


class TimerQueue(Generic[K]):
    """Deadlines by key; a key has one deadline at most."""

    def __init__(self) -> None:
        self._entries: dict[K, _Entry] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def schedule(self, key: K, deadline_ms: int, argument: Any = None) -> None:
        """Set the deadline of `key`, replacing any it had. `pop` returns `argument` when it is due."""
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(deadline_ms, deadline_ms, argument)
            self._push(deadline_ms, key)
            return
        entry.deadline_ms = deadline_ms
        entry.argument = argument
        if deadline_ms < entry.queued_ms:
            entry.queued_ms = deadline_ms
            self._push(deadline_ms, key)

    def cancel(self, key: K) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._entries.pop(key, None)

    def apply(self, changes: Iterable[TimerChange]) -> None:
        """Make changes in their order."""
        for key, deadline_ms, argument in changes:
            if deadline_ms is None:
                self.cancel(key)
            else:
                self.schedule(key, deadline_ms, argument)

    def clear(self) -> None:
        """Remove all deadlines."""
        self._entries.clear()
        self._heap.clear()

    def deadline(self, key: K) -> int | None:
        """The deadline of `key`."""
        entry = self._entries.get(key)
        return None if entry is None else entry.deadline_ms

    def argument(self, key: K) -> Any:
        """What `pop` will return with `key`; None if it has no deadline."""
        entry = self._entries.get(key)
        return None if entry is None else entry.argument

    def next_deadline(self) -> int | None:
        """When the next key is due; None if nothing is scheduled."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop(self, now_ms: int) -> tuple[K, Any] | None:
        """Remove and return the next key that is due at `now_ms`, with its argument."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        return key, self._entries.pop(key).argument

    def _push(self, deadline_ms: int, key: K) -> None:
        if len(self._heap) > 2 * len(self._entries) + _FEW:
            self._rebuild()
        else:
            heapq.heappush(self._heap, (deadline_ms, next(self._sequence), key))

    def _rebuild(self) -> None:
        """Give a place to each deadline, and to nothing else: many short transactions may have long timeouts."""
        for entry in self._entries.values():
            entry.queued_ms = entry.deadline_ms
        places = ((entry.deadline_ms, next(self._sequence), key) for key, entry in self._entries.items())
        self._heap = list(places)
        heapq.heapify(self._heap)

    def _settle(self) -> None:
        """Correct the head of the heap: drop cancelled entries, put moved ones back."""
        while self._heap:
            queued_ms, _, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is not None and entry.queued_ms == queued_ms == entry.deadline_ms:
                return
            heapq.heappop(self._heap)
            if entry is not None and entry.queued_ms == queued_ms:
                entry.queued_ms = entry.deadline_ms
                self._push(entry.deadline_ms, key)
