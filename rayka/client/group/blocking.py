"""The consumer in a group for programs that block: callbacks run in the thread that polls."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar, overload

from rayka.client.consumer.blocking import Consumer
from rayka.client.consumer.pending import Polled
from rayka.client.consumer.poll_guard import ThreadPoll
from rayka.client.forms import blocking, report_outcome
from rayka.client.group.consumer import CLOSE_TIMEOUT_MS, AsyncGroupConsumer, deadline_after
from rayka.client.group.coordinator import OffsetAndMetadata, ReadOffsets
from rayka.client.group.member import RUNS, RebalanceCallback
from rayka.client.loop import LoopThread
from rayka.types import TopicPartition

T = TypeVar("T")

Committed: TypeAlias = dict[TopicPartition, OffsetAndMetadata]
CommitCallback: TypeAlias = Callable[[Committed | None, BaseException | None], object]
"""Takes what was committed, or the error."""


class GroupConsumer(Consumer):
    """The blocking form of `AsyncGroupConsumer`, for one thread at a time.

    A call during another thread's call raises INVALID_REQUEST, except for `wakeup`, `commit_async` and `close`.
    """

    _core: AsyncGroupConsumer

    def __init__(self, core: AsyncGroupConsumer, loop: LoopThread) -> None:
        super().__init__(core, loop)

    subscribe = blocking(AsyncGroupConsumer.subscribe)
    subscription = blocking(AsyncGroupConsumer.subscription)
    assign = blocking(AsyncGroupConsumer.assign)
    commit = blocking(AsyncGroupConsumer.commit)
    group_metadata = blocking(AsyncGroupConsumer.group_metadata)

    def read_offsets(self) -> ReadOffsets:
        """See `AsyncGroupConsumer.read_offsets`."""
        return self._core.read_offsets()

    @overload
    def committed(self, partitions: tuple[str, int]) -> OffsetAndMetadata | None: ...

    @overload
    def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def committed(self, partitions: Any) -> Any:
        """See `AsyncGroupConsumer.committed`."""
        return self._run(self._core.committed(partitions))

    def commit_async(
        self,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> concurrent.futures.Future[Committed]:
        """Like `commit`, without waiting. Commits the positions at the time of this call, as the current member.

        Commits are carried out in order, together with those of `commit`.

        `callback(offsets, error)` runs in the client's own thread: it must be short and must not block.
        """
        future = self._loop.submit(self._core.commit_prepared(self._core.prepare_commit(offsets)))
        if callback is not None:
            future.add_done_callback(partial(report_outcome, callback))
        return future

    def unsubscribe(self) -> None:
        """See `AsyncGroupConsumer.unsubscribe`."""
        with self._only_user():
            self._core.require_may_leave()
            try:
                self._leave(time.monotonic() + self._core.config.default_api_timeout_ms / 1000)
            except BaseException:
                self._core.stop_leaving()
                raise

    def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """See `AsyncGroupConsumer.close`."""
        if self._loop.is_closed:
            return
        self._core.require_may_leave()
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            self._loop.run(self._core.commits_ended(timeout_ms / 2))
            self._leave(deadline_s)
        finally:
            self._loop.run(self._core.stop())

    def _fill_pending(self, poll: ThreadPoll) -> bool:
        return bool(self._poll_events(partial(poll.take, self._core.filling), self._core.config.consumer_timeout_ms))

    def _take(self, take: Callable[[], Polled], timeout_ms: float) -> Polled | None:
        return self._poll_events(take, timeout_ms)

    def _poll_events(self, take: Callable[[], T], timeout_ms: float | None) -> T | None:
        deadline_s = deadline_after(timeout_ms)
        while isinstance(event := self._loop.run(self._core.next_event(take, deadline_s)), RebalanceCallback):
            self._run_callback(event)
        return event

    def _leave(self, deadline_s: float) -> None:
        failure = None
        while (callback := self._loop.run(self._core.next_leave_event(deadline_s))) is not None:
            try:
                self._run_callback(callback)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _run_callback(self, callback: RebalanceCallback) -> None:
        outer, run = RUNS.get(), object()
        try:
            RUNS.set((*outer, run))
            callback.runs += [run]
            if callback.runs[0] is run:
                callback.listener(callback.partitions)
        finally:
            try:
                if callback.runs[:1] == [run]:
                    callback.has_ended = True
                    self._loop.run(self._core.callback_done(callback))
            finally:
                RUNS.set(outer)
