"""An event loop in a thread of its own, on which the asynchronous clients run for callers that are not."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, TypeVarTuple

import uvloop

from rayka.client.calls import Called, CoroutineRun
from rayka.client.threads import Threads
from rayka.client.unpicklable import UnpicklableFuture
from rayka.errors import ErrorCode, RaykaError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Args = TypeVarTuple("Args")


_MOST_CANCEL_ROUNDS = 100
"""So often, `close` cancels the tasks that others began while they were cancelled."""


class LoopUser(Protocol):
    """What must know when the loop ends that it uses, since nobody may have closed it."""

    def loop_ends(self) -> None:
        """The loop runs nothing any more, and is about to be closed. Called in its thread."""


class _OwnedLoop(uvloop.Loop):
    """The loop of a `LoopThread`, which decides what it still takes."""

    owner: LoopThread


def tell_of_end(loop: asyncio.AbstractEventLoop, user: LoopUser) -> None:
    """Call `user.loop_ends` when the loop of a `LoopThread` ends, if the user still exists, or now if it has ended.

    Nothing tells of the ends of other loops.
    """
    if isinstance(loop, _OwnedLoop):
        loop.owner.tell_of_end(user)


def submit_to(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> concurrent.futures.Future[T]:
    """Run the coroutine in the loop, from any thread. If it is that of a `LoopThread`, as `LoopThread.submit`."""
    if isinstance(loop, _OwnedLoop):  # a closed one takes nothing, and who asks it would wait for ever
        return loop.owner.submit(coroutine)
    return asyncio.run_coroutine_threadsafe(coroutine, loop)


class LoopThread:
    """Owns a daemon thread with a uvloop event loop, from construction to `close`."""

    def __init__(self, name: str = "rayka-client") -> None:
        self._loop = _OwnedLoop()
        self._loop.owner = self
        self._loop.set_default_executor(Threads(thread_name_prefix=name))
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._process_id = os.getpid()  # an interrupt in Thread.is_alive can make it say no for ever
        self._closed = False
        self._submitting = threading.RLock()  # an object that the collector drops may submit what ends it
        self._users: weakref.WeakSet[LoopUser] = weakref.WeakSet()
        self._has_told = False
        self._noting_users = threading.Lock()  # not the other one: its owner may wait in `close` for the thread
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the thread runs."""
        return self._loop

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or this is a fork: see `is_in_fork`."""
        return self._closed or self.is_in_fork

    @property
    def is_in_fork(self) -> bool:
        """Whether this is a fork of the process that made it, which has none of its threads."""
        return os.getpid() != self._process_id

    @property
    def is_current(self) -> bool:
        """Whether the caller is in this thread, where it must not wait for it."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop and wait for its result.

        An interrupt (Ctrl-C) while waiting cancels it. Raises RaykaError if called from the loop's own
        thread, say in a callback, or after `close`.
        """
        run = CoroutineRun(coroutine, self._loop)
        try:
            self._require_other_thread()
            self._hand_over(run.hand_over)
            return run.result()
        except BaseException:
            run.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call the function in the loop and wait for what it returns or raises. It needs no task, unlike `run`.

        After an interrupt (Ctrl-C) while waiting it is not called, or it has ended, unless another interrupt comes
        meanwhile. Raises RaykaError as `run`.
        """
        self._require_other_thread()
        called = Called(function)
        try:
            self._hand_over(lambda: self._loop.call_soon_threadsafe(called))
            return called.result()
        except BaseException:
            called.end()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run the coroutine in the loop; `close` cancels it. Raises RaykaError after `close`, and in a fork."""
        try:
            future = self._hand_over(lambda: asyncio.run_coroutine_threadsafe(coroutine, self._loop))
        except RaykaError:
            coroutine.close()
            raise
        future.__class__ = UnpicklableFuture  # asyncio makes it, of no class but its own
        return future

    def _hand_over(self, hand_over: Callable[[], T]) -> T:
        """Give something to the loop, which begins it even if it gets closed now."""
        if not self.is_closed:  # in a fork nobody may give the lock back
            with self._submitting:
                if not self._closed:
                    with contextlib.suppress(RuntimeError):  # `close` was called within this very call
                        return hand_over()
        reason = "The connection to the cluster is closed" if self._closed else "A connection can't be used after fork"
        raise RaykaError(ErrorCode.INVALID_REQUEST, reason)

    def _require_other_thread(self) -> None:
        if self.is_current:
            reason = "A blocking call from a callback would wait for itself; use the async form"
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)

    def call_soon(self, function: Callable[[*Args], object], *args: *Args) -> None:
        """Call the function in the loop, from any thread. After `close` nothing is called."""
        if not self._closed:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(function, *args)

    def close(self) -> None:
        """Cancel what still runs, stop the loop and wait for the thread. Safe to repeat."""
        with self._submitting:  # what a thread has submitted before is in the loop and gets cancelled
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(RuntimeError):  # it has just ended by itself
            self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._closed:
                self._run_forever()
        finally:
            for _ in range(_MOST_CANCEL_ROUNDS):
                try:
                    self._cancel_tasks()
                    break
                except (SystemExit, KeyboardInterrupt, RuntimeError) as error:  # of one task, or the loop was stopped
                    logger.error("%r while the client's thread ends", error)
            self._tell_users()
            self._loop.close()

    def tell_of_end(self, user: LoopUser) -> None:
        """As the function of this name."""
        with self._noting_users:
            if not self._has_told:
                self._users.add(user)
                return
        user.loop_ends()

    def _tell_users(self) -> None:
        with self._noting_users:
            self._has_told = True
            users = list(self._users)
        for user in users:
            try:
                user.loop_ends()
            except Exception:
                logger.exception("%r failed at the end of the client's thread", user)

    def _run_forever(self) -> None:
        """Run until `close`, or until what a program gave to be called here wants to end the process: it must not."""
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            logger.error("%r in the client's thread, which keeps running", error)

    def _cancel_tasks(self) -> None:
        self._loop.run_until_complete(asyncio.sleep(0))  # what was submitted last becomes a task
        for _ in range(_MOST_CANCEL_ROUNDS):
            if not (tasks := asyncio.all_tasks(self._loop)):
                break
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that the calling thread runs, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
