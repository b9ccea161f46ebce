"""The consumer for programs that block."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rayka.client.consumer.consumer import UNREADABLE, AsyncConsumer
from rayka.client.consumer.needs_group import NeedsGroup
from rayka.client.consumer.pending import Polled
from rayka.client.consumer.poll_guard import OTHER_THREAD, ThreadPoll
from rayka.client.consumer.records import ConsumerRecord, RecordBatches
from rayka.client.consumer.sequence import ConsumerRecords
from rayka.client.consumer.table_maker import TableKind
from rayka.client.forms import Closing, Shell, blocking, blocking_close
from rayka.client.loop import LoopThread
from rayka.client.unpicklable import Unpicklable
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Consumer(NeedsGroup, Unpicklable, Shell[AsyncConsumer], Closing):
    """The blocking form of `AsyncConsumer`, for one thread at a time.

    A call during another thread's call raises INVALID_REQUEST, except for `wakeup` and `close`. So does a poll in a
    signal handler that interrupts a poll; then neither loses records.
    """

    def __init__(self, core: AsyncConsumer, loop: LoopThread) -> None:
        super().__init__(core, loop)
        self._user = threading.RLock()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._only_user(coroutine):
            return self._loop.run(coroutine)

    @contextlib.contextmanager
    def _only_user(self, coroutine: Coroutine[Any, Any, Any] | None = None) -> Iterator[None]:
        if not self._user.acquire(blocking=False):
            if coroutine is not None:
                coroutine.close()
            raise RaykaError(ErrorCode.INVALID_REQUEST, OTHER_THREAD)
        try:
            yield
        finally:
            self._user.release()

    assign = blocking(AsyncConsumer.assign)
    assignment = blocking(AsyncConsumer.assignment)
    seek = blocking(AsyncConsumer.seek)

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, ConsumerRecords]:
        """See `AsyncConsumer.poll`."""
        return self._deliver(self._core.taking(max_records), timeout_ms) or {}

    def poll_batches(self, timeout_ms: float = 0) -> dict[TopicPartition, list[RecordBatches]]:
        """See `AsyncConsumer.poll_batches`."""
        return self._deliver(self._core.taking_batches, timeout_ms) or {}

    def _deliver(self, take: Callable[[], Polled], timeout_ms: float) -> Polled | None:
        """An interrupt (Ctrl-C) while the answer comes leaves it to the next poll."""
        with self._only_user():
            poll = self._core.begin_poll(ThreadPoll())
            try:
                polled = self._take(take, timeout_ms)
                self._core.pending.end_delivery(polled)
                return polled
            finally:
                poll.has_ended = True

    def _take(self, take: Callable[[], Polled], timeout_ms: float) -> Polled | None:
        taken = self._loop.call(partial(self._core.take_now, take))  # mostly there is something, and this is quick
        return taken if taken or timeout_ms == 0 else self._loop.run(self._core.take(take, timeout_ms))

    def poll_table(self, timeout_ms: float = 0, columns: Sequence[str] | None = None, *, copy: bool = True) -> pa.Table:
        """As `AsyncConsumer.poll_table`; the calling thread decodes."""
        kind = self._core.table_maker.kind_of(columns, copy)
        with self._only_user():
            poll = self._core.begin_poll(ThreadPoll())
            try:
                return self._table(kind, timeout_ms)
            finally:
                poll.has_ended = True

    def _table(self, kind: TableKind, timeout_ms: float) -> pa.Table:
        polled = self._take(partial(self._core.taking_table, kind), timeout_ms) or {}
        begun = self._core.collector.begin_table(polled)
        try:
            table, rest = self._core.table_maker.table_of(polled, kind)
            if rest:
                self._loop.run(self._core.give_back(polled, begun, rest))
            self._core.pending.end_delivery(polled)  # only now: another thread may commit, or close it
            self._core.collector.tables_being_made.end(begun)
        except BaseException as error:
            try:
                self._loop.run(self._core.give_back(polled, begun, error=error))
            finally:
                self._core.collector.tables_being_made.end(begun)
            if not isinstance(error, UNREADABLE):
                raise
            return self._core.table_after(error, kind)
        return table

    seek_to_beginning = blocking(AsyncConsumer.seek_to_beginning)
    seek_to_end = blocking(AsyncConsumer.seek_to_end)
    position = blocking(AsyncConsumer.position)
    pause = blocking(AsyncConsumer.pause)
    resume = blocking(AsyncConsumer.resume)
    paused = blocking(AsyncConsumer.paused)
    beginning_offsets = blocking(AsyncConsumer.beginning_offsets)
    end_offsets = blocking(AsyncConsumer.end_offsets)
    offsets_for_times = blocking(AsyncConsumer.offsets_for_times)
    lag = blocking(AsyncConsumer.lag)
    highwater = blocking(AsyncConsumer.highwater)
    partitions_for_topic = blocking(AsyncConsumer.partitions_for_topic)
    topics = blocking(AsyncConsumer.topics)
    close = blocking_close(AsyncConsumer.close)

    def wakeup(self) -> None:
        """See `AsyncConsumer.wakeup`."""
        if not self._loop.is_closed:
            self._core.wakeup()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        pending = self._core.pending
        made, drop_next = pending.made, pending.made.popleft
        while True:
            try:
                record = made[0]
                drop_next()
            except IndexError:
                if not self._make() and not self._fill():
                    return
                continue
            except BaseException:  # Ctrl-C, as soon as it was dropped
                made.appendleft(record)
                raise
            yield record

    def _make(self) -> bool:
        """Make the next records that are here; False if there are none. A signal handler that polls within this would
        get them too: it gets INVALID_REQUEST.
        """
        poll = self._core.begin_poll(ThreadPoll())
        try:
            return self._core.pending.make()
        finally:
            poll.has_ended = True

    def _fill(self) -> bool:
        """More records for iteration; False at the end of `consumer_timeout_ms`."""
        with self._only_user():
            poll = self._core.begin_poll(ThreadPoll())
            try:
                return self._fill_pending(poll)
            finally:
                poll.has_ended = True

    def _fill_pending(self, poll: ThreadPoll) -> bool:
        return self._loop.run(self._core.fill(poll))

    def __next__(self) -> ConsumerRecord:
        made = self._core.pending.made
        while True:
            try:
                record = made[0]
                del made[0]  # `popleft` could be interrupted (Ctrl-C) before the record is in a variable
                return record
            except IndexError:
                if not self._make() and not self._fill():
                    raise StopIteration from None
