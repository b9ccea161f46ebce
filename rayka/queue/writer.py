"""Puts the items of one process into a queue's log: through its put journal if it has one, else by the producer.

Invariant: the items of a thread stay in order. So an item goes by the producer only when the log has all that the
journal took before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from rayka.actors.background import in_daemon_thread
from rayka.client.producer.blocking import Producer
from rayka.client.producer.future import ProduceFuture
from rayka.errors import RaykaError
from rayka.queue.put_journal import JournalOpener
from rayka.storage.format.pieces import MaybePieces, joined


class QueueWriter:
    """Any number of threads may use it. At most `put_ahead` items wait for their acknowledgement without a caller.

    `journals` opens a journal when the process puts quickly; None if its items may not go through one.
    """

    def __init__(self, producer: Producer, topic: str, put_ahead: int, journals: JournalOpener | None = None) -> None:
        self._producer = producer
        self._topic = topic
        self._put_ahead = put_ahead
        self._journals = journals
        self._lock = threading.Lock()
        self._ahead: deque[tuple[ProduceFuture[Any], int]] = deque()
        self._ahead_count = 0

    def put(self, data: MaybePieces) -> None:
        """Return when at most `put_ahead` items are not in the log. Raises the error of this item or an earlier one."""
        if not self._put_in_journal([data]):
            self._wait([(self._producer.send(self._topic, bytes(data)), 1)])

    def put_all(self, values: Sequence[MaybePieces]) -> None:
        """As `put`, for several items."""
        values = values[self._put_in_journal(values) :]
        if values:
            futures = self._producer.send_batch(self._topic, None, joined(values))
            # The last batch counts for all: those before it are older.
            self._wait([(future, len(values) if future is futures[-1] else 0) for future in futures])

    def _put_in_journal(self, values: Sequence[MaybePieces]) -> int:
        """Put the first of these items into the journal; how many that were. The others may be sent now.

        Raises the error of an earlier item that the log could not take.
        """
        journals = self._journals
        if journals is None:
            return 0
        journal, largest = journals.journal, max(map(len, values), default=0)
        if journal is None:
            journals.count(len(values), largest)
            return 0
        count = 0
        if not journal.is_closed and largest <= journal.max_record_bytes:
            count = journal.put(values)
        if journal.is_closed:
            journals.drop(journal)
            journal.check_kept()
        elif count < len(values):
            journals.put_otherwise(journal, largest)
        return count

    def _wait(self, sent: Sequence[tuple[ProduceFuture[Any], int]]) -> None:
        """Wait for these futures, each with its item count; with `put_ahead` only for the oldest beyond that number.

        Behind one that failed the others are still waited for: now, or by the next call.
        """
        if self._put_ahead == 0:
            _do_all(future.get for future, _ in sent)
            return
        with self._lock:
            self._ahead.extend(sent)
            self._ahead_count += sum(count for _, count in sent)
        while (oldest := self._due()) is not None:
            self._settle(*oldest)

    def _due(self) -> tuple[ProduceFuture[Any], int] | None:
        with self._lock:
            return self._ahead[0] if self._ahead_count > self._put_ahead else None

    def _settle(self, future: ProduceFuture[Any], count: int) -> None:
        """Wait for a future that is or was the oldest one. Raises its error, unless another thread does."""
        error = None
        try:
            future.get()
        except RaykaError as raised:
            error = raised
        with self._lock:
            is_first = bool(self._ahead) and self._ahead[0][0] is future
            if is_first:
                self._ahead.popleft()
                self._ahead_count -= count
        if is_first and error is not None:
            raise error

    async def put_async(self, data: MaybePieces) -> None:
        """Return when the item is in the log."""
        journal = None if self._journals is None else self._journals.journal
        if journal is not None and not journal.is_closed:
            await in_daemon_thread(journal.wait_until_drained)
        await self._producer.send(self._topic, bytes(data))

    def flush(self) -> None:
        """Return when all items are in the log. Raises the first error."""
        with self._lock:
            ahead = list(self._ahead)
        _do_all(partial(self._settle, *each) for each in ahead)
        journal = None if self._journals is None else self._journals.journal
        if journal is not None:
            journal.wait_until_drained()

    def close(self) -> None:
        """`flush`, and give the journal back: there is a bounded number of them."""
        self.flush()
        if self._journals is not None:
            self._journals.give_back()


def _do_all(waits: Iterable[Callable[[], object]]) -> None:
    """Wait for all of them. Raises the first error."""
    first: RaykaError | None = None
    for wait in waits:
        try:
            wait()
        except RaykaError as error:
            first = first or error
    if first is not None:
        raise first
