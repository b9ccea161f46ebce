"""Puts the items of one process into a queue's log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from rayka.client.producer.batch import RecordFuture
from rayka.client.producer.blocking import Producer
from rayka.errors import RaykaError


class QueueWriter:
    """Any number of threads may use it. At most `put_ahead` items wait for their acknowledgement without a caller."""

    def __init__(self, producer: Producer, topic: str, put_ahead: int) -> None:
        self._producer = producer
        self._topic = topic
        self._put_ahead = put_ahead
        self._lock = threading.Lock()
        self._ahead: deque[RecordFuture] = deque()

    def put(self, data: bytes) -> None:
        """Return when the item is in the log, or few enough before it are not. Raises the error of any of them."""
        future = self._producer.send(self._topic, data)
        if self._put_ahead == 0:
            future.get()
            return
        with self._lock:
            self._ahead.append(future)
            oldest = self._ahead.popleft() if len(self._ahead) > self._put_ahead else None
        if oldest is not None:
            oldest.get()

    def put_all(self, values: Sequence[bytes]) -> None:
        """Return when all these items are in the log."""
        for future in self._producer.send_batch(self._topic, None, values):
            future.get()

    async def put_async(self, data: bytes) -> None:
        """Return when the item is in the log."""
        await self._producer.send(self._topic, data)

    def flush(self) -> None:
        """Return when all items are in the log. Raises the first error."""
        with self._lock:
            futures, self._ahead = self._ahead, deque()
        first: RaykaError | None = None
        for future in futures:
            try:
                future.get()
            except RaykaError as error:
                first = first or error
        if first is not None:
            raise first
