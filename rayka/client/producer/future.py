"""What `send` returns: a future for a record's offset, or the error.

A record's future is only a pointer into its batch; the batch is what completes, once, for all of them.
So a future costs a fraction of a microsecond, and one can be had for every record: a struct of msgspec is made in less
time than an object of a class.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import msgspec

from rayka.client.unpicklable import refuse_to_pickle_future
from rayka.errors import ErrorCode, RaykaError
from rayka.types import NO_OFFSET, NO_TIMESTAMP, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RecordMetadata(NamedTuple):
    """The location of a record in the log. `offset` is -1 with acks=0; `timestamp` is in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class BatchMetadata(NamedTuple):
    """The location of the records of one batch: `record_count` consecutive offsets from `base_offset` on."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class BatchCompletion:
    """Done or failed, once; from any thread. `done` may be read without a lock.

    A thread that completes it may be interrupted (Ctrl-C) anywhere. Who completes it again then calls back who is left.
    No condition of `threading` is used: an interrupt within one can leave its lock taken, and who completes the batch,
    which may be the event loop, would wait for it for ever.
    """

    __slots__ = ("_callbacks", "_lock", "base_offset", "done", "error", "log_append_time_ms")

    def __init__(self) -> None:
        self.done = False
        self.error: RaykaError | None = None
        self.base_offset = NO_OFFSET
        self.log_append_time_ms = NO_TIMESTAMP
        self._lock = threading.Lock()
        self._callbacks: list[_Callback] = []

    def complete(self, base_offset: int, log_append_time_ms: int, error: RaykaError | None) -> bool:
        """Set the outcome, unless there is one, and run the callbacks; returns whether there was none."""
        with self._lock:
            is_news = not self.done
            if is_news:
                self.base_offset, self.log_append_time_ms, self.error = base_offset, log_append_time_ms, error
                self.done = True
        if self._callbacks:
            for callback in self._callbacks:
                callback.run()
            self._callbacks = []  # they may refer to this batch
        return is_news

    def forked(self, error: RaykaError) -> None:
        """In a fork of the process, where nothing else will come: fail. The callbacks are for the parent."""
        self.error, self.done = error, True

    def when_done(self, callback: Callable[[], object], *, may_repeat: bool = False) -> None:
        """Call back when done, or at once if it is done; exceptions of the callback are logged.

        `may_repeat`: who completes the batch again calls once more if Ctrl-C came within the callback, which may then
        have done nothing.
        """
        called = _Callback(callback, may_repeat)
        with self._lock:
            if not self.done:
                self._callbacks.append(called)
                return
        called.run()

    def wait(self, timeout_s: float | None) -> bool:
        """Block until done; False if the time was too short."""
        woken = threading.Lock()
        woken.acquire()
        wake = _Callback(woken.release, may_repeat=False)  # it is C code, which no interrupt divides
        with self._lock:
            if self.done:
                return True
            self._callbacks.insert(0, wake)  # it does not wait for the program's callbacks
        try:
            return woken.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0))
        finally:
            with self._lock:
                if not self.done:
                    self._callbacks.remove(wake)

    async def done_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait in an event loop until done."""
        waiter: asyncio.Future[None] = loop.create_future()
        self.when_done(partial(loop.call_soon_threadsafe, _wake, waiter), may_repeat=True)
        await waiter


class _Callback:
    """A function that is called once, by whichever thread is first; see `BatchCompletion.when_done`."""

    __slots__ = ("_function", "_is_left", "_may_repeat")

    def __init__(self, function: Callable[[], object], may_repeat: bool) -> None:
        self._function = function
        self._may_repeat = may_repeat
        self._is_left = [True]

    def run(self) -> None:
        """Call it, unless somebody has; its exceptions are logged."""
        try:
            self._is_left.pop()
        except IndexError:
            return
        except BaseException:  # Ctrl-C comes after the call of `pop`, and before that of the function
            self._is_left.append(True)
            raise
        try:
            self._function()
        except KeyboardInterrupt:  # Ctrl-C, in a thread that waits
            if self._may_repeat:
                self._is_left.append(True)
            raise
        except BaseException:  # SystemExit would end the client's own thread
            logger.exception("a producer callback failed")


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class ProduceFuture(msgspec.Struct, Generic[T], eq=False, gc=False):
    """The outcome of a send, for threads (`get`), event loops (`await`) and callbacks.

    Callbacks run in the client's own thread, or in a thread that waits for the outcome. They must be short and must not
    block.
    """

    _completion: BatchCompletion

    def _value(self) -> T:
        raise TypeError(f"{type(self).__name__} has no value of its own")

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle_future(type(self).__name__)

    @property
    def is_done(self) -> bool:
        """Whether there is an outcome."""
        return self._completion.done

    def done(self) -> bool:
        """Whether there is an outcome."""
        return self._completion.done

    def succeeded(self) -> bool:
        """Whether the records are in the log."""
        return self._completion.done and self._completion.error is None

    def failed(self) -> bool:
        """Whether the send failed."""
        return self._completion.done and self._completion.error is not None

    @property
    def exception(self) -> RaykaError | None:
        """The error of a failed send; None if it did not fail."""
        return self._completion.error

    def get(self, timeout_s: float | None = None) -> T:
        """Wait for at most `timeout_s`. Raises the RaykaError of the send, or REQUEST_TIMED_OUT after that time."""
        if not self._completion.wait(timeout_s):
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"The records were not acknowledged within {timeout_s} s")
        return self._outcome()

    result = get

    def __await__(self) -> Generator[Any, None, T]:
        if not self._completion.done:
            yield from self._completion.done_in(asyncio.get_running_loop()).__await__()
        return self._outcome()

    def add_callback(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> ProduceFuture[T]:
        """Call `function(*args, metadata, **kwargs)` once the records are in the log."""

        def call() -> None:
            if self._completion.error is None:
                function(*args, self._value(), **kwargs)

        self._completion.when_done(call)
        return self

    def add_errback(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> ProduceFuture[T]:
        """Call `function(*args, error, **kwargs)` if the send fails."""

        def call() -> None:
            if self._completion.error is not None:
                function(*args, self._completion.error, **kwargs)

        self._completion.when_done(call)
        return self

    def add_both(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> ProduceFuture[T]:
        """Call `function` with the metadata or with the error."""
        return self.add_callback(function, *args, **kwargs).add_errback(function, *args, **kwargs)

    def _outcome(self) -> T:
        error = self._completion.error
        if error is not None:
            raise RaykaError(error.code, error.message)  # its own: many futures share the batch's error
        return self._value()
