"""What a thread waits for that another one does: a call, a coroutine in an event loop, an answer."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from rayka.errors import ErrorCode, RaykaError

T = TypeVar("T")


class Called(Generic[T]):
    """A function that another thread calls once, and what it returned or raised.

    Its lock is one without Python code: an interrupt (Ctrl-C) can come within that of `threading.Condition`, when the
    lock is taken and nobody gives it back.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._functions = [function]
        self._has_ended = False
        self._done = threading.Lock()
        self._done.acquire()
        self._error: BaseException | None = None

    def __call__(self) -> None:
        try:
            function = self._functions.pop()
        except IndexError:
            return  # it was taken back
        try:
            self._returned = function()
        except BaseException as error:
            self._error = error
        finally:
            self._has_ended = True
            self._done.release()

    def result(self) -> T:
        """Wait for it. To be called once."""
        self._done.acquire()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._returned
        finally:
            del error  # its traceback has this frame

    def take_back(self) -> bool:
        """Let nobody call it any more; False if somebody has begun to."""
        try:
            self._functions.pop()
        except IndexError:
            return False
        return True

    def end(self) -> None:
        """Take it back, or wait for its end."""
        if not self.take_back() and not self._has_ended:  # else `result` may have the lock, just before an interrupt
            self._done.acquire()
        self._error = None  # its traceback has a frame that has this object


class CoroutineRun(Generic[T]):
    """A coroutine that the loop runs as a task, and its outcome; see `Called`."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._is_handed_over = False
        self._done = threading.Lock()
        self._done.acquire()
        self._task: asyncio.Task[T] | None = None
        self._error: BaseException | None = None

    def hand_over(self) -> None:
        """Give it to the loop. Raises RuntimeError if that has ended."""
        self._is_handed_over = True
        self._loop.call_soon_threadsafe(self)

    def __call__(self) -> None:
        try:
            self._task = self._loop.create_task(self._coroutine)
            self._task.add_done_callback(self._ended)
        except BaseException as error:  # for lack of memory, say: nobody would wake the caller
            self._error = error
            self._done.release()
            if self._task is None:
                self._coroutine.close()

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._done.release()

    def result(self) -> T:
        """Wait for it. Raises concurrent.futures.CancelledError if `LoopThread.close` has cancelled it."""
        self._done.acquire()
        error, task = self._error, self._task
        self._error = self._task = None
        try:
            if error is not None:
                raise error
            assert task is not None
            return task.result()
        except asyncio.CancelledError:
            raise concurrent.futures.CancelledError from None
        finally:
            del error, task  # the traceback of an error has this frame

    def cancel(self) -> None:
        """Cancel it, from any thread, whether or not the loop has got it. What the loop has got begins before that."""
        if not self._is_handed_over or self._loop.is_closed():
            self._coroutine.close()
            return
        with contextlib.suppress(RuntimeError):  # it has just ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._loop.call_soon(self._task.cancel)  # a task that is cancelled sooner never begins


async def in_time(asked: Awaitable[T], timeout_s: float, whom: str) -> T:
    """The answer. Raises REQUEST_TIMED_OUT if it does not come in time; what was asked may be done all the same."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asked
    except TimeoutError:
        raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"no answer from {whom} in {timeout_s:g} s") from None
