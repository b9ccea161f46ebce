"""Leases the items of a queue for threads that wait for them themselves, such as the workers of Ray Serve's tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Set
from typing import NamedTuple

from rayka.client.loop import LoopThread
from rayka.gateway.ports import Broker
from rayka.queue.leader_channel import LeaderChannel
from rayka.queue.lease_keeper import RETRY_S, now_ms
from rayka.queue.leases import Item
from rayka.queue.reader import LONGEST_WAIT_S, QueueReader
from rayka.queue.settings import QueueSettings
from rayka.queue.topic import QueueTopic


class LeasedItem(NamedTuple):
    """An item. `is_new`: it was put while its thread waited for it, so it was never delivered before.

    Its lease lasts at least until the time `until_s` of `time.monotonic()`, if its leader lives.
    """

    item: Item
    is_new: bool
    until_s: float


class WaitingReader(QueueReader):
    """A reader that also fetches in the caller's thread, one item at a time, and none ahead.

    One thread waits at the leader, and the others wait for their turn. Acknowledgements, renewals and the end are those
    of every reader.
    """

    def __init__(self, broker: Broker, loop: LoopThread, topic: QueueTopic, settings: QueueSettings) -> None:
        super().__init__(broker, loop, topic, settings)
        self._turn = threading.Lock()
        self._channel = LeaderChannel(broker, loop)
        self._is_asking = self._asks_with_acknowledgements = False

    def wait(self, holder: Hashable, wait_s: float, unless: threading.Event) -> LeasedItem | None:
        """Lease the next item for the holder; None if none came, and when it is the holder's turn after `unless`.

        Once `unless` is set the connection to the leader is closed. Raises RaykaError: UNKNOWN_TOPIC_OR_PARTITION after
        the queue was deleted, INVALID_REQUEST after `end`, KAFKA_STORAGE_ERROR or CORRUPT_MESSAGE if items can't be
        read.
        """
        with self._turn:
            try:
                return self._wait_until(holder, time.monotonic() + wait_s, unless)
            finally:
                if unless.is_set():
                    self._channel.close()

    def _wait_until(self, holder: Hashable, end_s: float, unless: threading.Event) -> LeasedItem | None:
        """As `wait`. A request with acknowledgements waits only briefly, and another one for the rest of the time."""
        while not unless.is_set():
            try:
                item = self._wait(holder, max(0.0, end_s - time.monotonic()))
                if item is not None or not self._asks_with_acknowledgements or time.monotonic() >= end_s:
                    return item
            finally:
                self._is_asking = self._asks_with_acknowledgements = False  # and what it has brought is added
                if self._leases.has_acknowledgements and not self._ticking:  # They have come back.
                    self._loop.call_soon(self._start_ticking)
        return None

    @property
    def _is_fetching(self) -> bool:
        return self._is_asking or super()._is_fetching

    @property
    def _on_their_way(self) -> Set[object]:
        return super()._on_their_way | ({self._turn} if self._asks_with_acknowledgements else set())

    def _wait(self, holder: Hashable, wait_s: float) -> LeasedItem | None:
        if self._error is not None:
            raise self._error
        if not self._topic.is_known:
            self._loop.run(self._topic.wait_until_known())
        self._note_epochs()
        since_ms = now_ms()
        with self._lock:
            acknowledgements = self._leases.take_acknowledgements(also_again=not self._is_fetching)
            self._asks_with_acknowledgements = bool(acknowledgements)
            self._is_asking = True
        if acknowledgements:  # The leader answers to them when it has items, or at the end of the wait.
            wait_s = min(wait_s, LONGEST_WAIT_S)
        results = self._member.fetch_by(self._channel.fetch, wait_s, acknowledgements)
        if self._member.has_refused:
            self._loop.call_soon(self._start_settling)
        if self._error is not None:
            self._loop.run(self._give_back_late(results, self._error))
        fetched = self._member.read(results)
        self._add(fetched.runs, 1, since_ms)
        if fetched.unread:
            self._loop.run(self._give_back(lambda: fetched.unread))
        self._note(fetched)
        item = self.take(holder)
        if item is not None:
            self._loop.call_soon(self._trim_after, fetched.runs)
            is_new = any(result.is_new for result in results.values())
            return LeasedItem(item, is_new, since_ms / 1000 + self._member.lease_s / 2)
        if fetched.is_refused:
            time.sleep(RETRY_S)
            self._raise_due()
        return None
