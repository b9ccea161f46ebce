"""The share consumer for programs that block."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from rayka.client.forms import Closing, Shell, blocking, blocking_close, report_outcome
from rayka.client.share.consumer import AsyncShareConsumer, CommitResults
from rayka.client.share.leaders import Caller
from rayka.client.share.processing import RETRIABLE, Retriable
from rayka.client.share.records import ShareRecord
from rayka.client.unpicklable import Unpicklable
from rayka.share.record_state import AcknowledgeType

CommitCallback = Callable[[CommitResults | None, BaseException | None], object]
"""Takes the results, or the error of the commit as a whole."""


class ShareConsumer(Unpicklable, Shell[AsyncShareConsumer], Closing):
    """The blocking form of `AsyncShareConsumer`, for one thread at a time."""

    renew = blocking(AsyncShareConsumer.renew)
    close = blocking_close(AsyncShareConsumer.close)

    def poll(self, timeout_ms: float = 0) -> list[ShareRecord]:
        """See `AsyncShareConsumer.poll`. After an interrupt (Ctrl-C) the next poll returns the records."""
        self._core.end_last_poll()
        return self._core.give(self._loop.run(self._core.arrived(timeout_ms)))

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """See `AsyncShareConsumer.acknowledge`."""
        self._core.acknowledge(record, kind)

    def accept(self, record: ShareRecord) -> None:
        """See `AsyncShareConsumer.accept`."""
        self._core.accept(record)

    def release(self, record: ShareRecord, delay_ms: int | None = None) -> None:
        """See `AsyncShareConsumer.release`."""
        self._core.release(record, delay_ms)

    def reject(self, record: ShareRecord, reason: str | BaseException | None = None) -> None:
        """See `AsyncShareConsumer.reject`."""
        self._core.reject(record, reason)

    def holds(self, record: ShareRecord) -> bool:
        """See `AsyncShareConsumer.holds`."""
        return self._core.holds(record)

    def processing(
        self, record: ShareRecord, *, retriable: Retriable = RETRIABLE, delay_ms: int | None = None
    ) -> AbstractContextManager[ShareRecord]:
        """See `AsyncShareConsumer.processing`."""
        return self._core.processing(record, retriable=retriable, delay_ms=delay_ms)

    def commit(self) -> CommitResults:
        """See `AsyncShareConsumer.commit`."""
        aside, caller = self._core.begin_commit(), Caller()
        try:
            results = self._loop.run(self._core.finish_commit(aside, caller))
            caller.has_heard = True
            return results
        except BaseException:
            caller.has_heard = False
            raise

    def commit_async(self, callback: CommitCallback | None = None) -> concurrent.futures.Future[CommitResults]:
        """As `commit`, without waiting.

        `callback(results, error)` runs in the client's own thread: it must be short and must not block.
        """
        future = self._loop.submit(self._core.commit())
        if callback is not None:
            future.add_done_callback(partial(report_outcome, callback))
        return future
