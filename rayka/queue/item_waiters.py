"""The threads and tasks of a program that wait for an item of a queue, in the order in which they asked.

The reader's lock guards them. Each waits for a future, which is done when it should look for an item.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from rayka.errors import RaykaError


class ItemWaiters:
    """Wakes the one that has waited longest first."""

    def __init__(self) -> None:
        self._futures: deque[Future[None]] = deque()

    @staticmethod
    def woken() -> Future[None]:
        """The future of one that need not wait."""
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def __len__(self) -> int:
        return len(self._futures)

    def add(self) -> Future[None]:
        """Another one waits."""
        future: Future[None] = Future()
        self._futures.append(future)
        return future

    def wake(self, count: int) -> None:
        """Let up to `count` of them look for an item."""
        for _ in range(min(count, len(self._futures))):
            future = self._futures.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def remove(self, future: Future[None]) -> None:
        """One waits no longer. If it was woken already, the next one is woken instead."""
        if future in self._futures:
            self._futures.remove(future)
        elif future.done():
            self.wake(1)

    def fail(self, error: RaykaError) -> None:
        """End all waits with an error."""
        while self._futures:
            future = self._futures.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
