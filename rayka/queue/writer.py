"""Puts the items of one process into a queue's log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from rayka.client.producer.blocking import Producer
from rayka.client.producer.future import ProduceFuture
from rayka.errors import RaykaError


class QueueWriter:
    """Any number of threads may use it. At most `put_ahead` items wait for their acknowledgement without a caller."""

    def __init__(self, producer: Producer, topic: str, put_ahead: int) -> None:
        self._producer = producer
        self._topic = topic
        self._put_ahead = put_ahead
        self._lock = threading.Lock()
        self._ahead: deque[tuple[ProduceFuture[Any], int]] = deque()
        self._ahead_count = 0

    def put(self, data: bytes) -> None:
        """Return when at most `put_ahead` items are not in the log. Raises the error of this item or an earlier one."""
        self._wait(self._producer.send(self._topic, data), 1)

    def put_all(self, values: Sequence[bytes]) -> None:
        """As `put`, for several items."""
        futures = self._producer.send_batch(self._topic, None, values)
        for number, future in enumerate(futures, 1):  # The last batch counts for all: those before it are older.
            self._wait(future, len(values) if number == len(futures) else 0)

    def _wait(self, future: ProduceFuture[Any], count: int) -> None:
        """Wait for this future of `count` items; with `put_ahead` only for the oldest ones beyond that number."""
        if self._put_ahead == 0:
            future.get()
            return
        due = []
        with self._lock:
            self._ahead.append((future, count))
            self._ahead_count += count
            while self._ahead_count > self._put_ahead:
                oldest, its_count = self._ahead.popleft()
                self._ahead_count -= its_count
                due.append(oldest)
        for each in due:
            each.get()

    async def put_async(self, data: bytes) -> None:
        """Return when the item is in the log."""
        await self._producer.send(self._topic, data)

    def flush(self) -> None:
        """Return when all items are in the log. Raises the first error."""
        with self._lock:
            futures, self._ahead, self._ahead_count = self._ahead, deque(), 0
        first: RaykaError | None = None
        for future, _ in futures:
            try:
                future.get()
            except RaykaError as error:
                first = first or error
        if first is not None:
            raise first
