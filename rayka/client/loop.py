"""An event loop in a thread of its own, on which the asynchronous clients run for callers that are not."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, TypeVarTuple

import uvloop

from rayka.client.unpicklable import UnpicklableFuture
from rayka.errors import ErrorCode, RaykaError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Args = TypeVarTuple("Args")


_MOST_CANCEL_ROUNDS = 100
"""So often, `close` cancels the tasks that others began while they were cancelled."""


class Threads(ThreadPoolExecutor):
    """Threads that start when they are needed.

    Python's executor keeps a call whose thread could not be started, until one can be. Here only an empty call is kept:
    who was told so tries again, or does the work himself. With several threads another one may have begun it by then.
    """

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """See `Executor`. Raises RuntimeError where no thread can be started, and after `shutdown`."""
        calls = [functools.partial(call, *args, **kwargs)]
        try:
            return super().submit(_call_unless_gone, calls)
        except RuntimeError:
            calls.clear()
            raise


def _call_unless_gone(calls: list[functools.partial[T]]) -> T:
    """Raises IndexError, which nobody sees, if the call was taken away."""
    return calls.pop()()


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


class _Run(Generic[T]):
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
        run = _Run(coroutine, self._loop)
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


async def in_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, but where no thread can be started the call is gone: see `Threads`."""
    calls = [functools.partial(call, *args, **kwargs)]
    try:
        return await asyncio.to_thread(_call_unless_gone, calls)
    except RuntimeError:
        calls.clear()
        raise


async def in_time(asked: Awaitable[T], timeout_s: float, whom: str) -> T:
    """The answer. Raises REQUEST_TIMED_OUT if it does not come in time; what was asked may be done all the same."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asked
    except TimeoutError:
        raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"no answer from {whom} in {timeout_s:g} s") from None


class AtHome(Protocol):
    """An asynchronous client, whose state belongs to one event loop."""

    @property
    def home(self) -> asyncio.AbstractEventLoop:
        """The loop."""


H = TypeVar("H", bound=AtHome)
Core = TypeVar("Core")


def at_home(
    method: Callable[Concatenate[H, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Lets a client's method be awaited in any event loop; its body runs in the client's own."""

    @functools.wraps(method)
    async def call(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if asyncio.get_running_loop() is self.home:
            return await method(self, *args, **kwargs)
        return await asyncio.wrap_future(_submit(method(self, *args, **kwargs), self.home))

    return call


def _submit(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> concurrent.futures.Future[T]:
    if isinstance(loop, _OwnedLoop):  # a closed one takes nothing, and who asks it would wait for ever
        return loop.owner.submit(coroutine)
    return asyncio.run_coroutine_threadsafe(coroutine, loop)


class Shell(Generic[Core]):
    """The blocking form of a client: the asynchronous one and the thread of its loop."""

    def __init__(self, core: Core, loop: LoopThread) -> None:
        self._core = core
        self._loop = loop

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coroutine)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The blocking form of an asynchronous client's method: same arguments, same documentation."""

    def call(self: Shell[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._core, *args, **kwargs))

    return _documented(call, method)


def blocking_close(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Any, P], None]:
    """The blocking form of a client's `close`: from any thread; nothing is left to do once the cluster is closed."""

    def call(self: Shell[Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self._loop.is_closed:
            self._loop.run(method(self._core, *args, **kwargs))

    return _documented(call, method)


def report_outcome(
    callback: Callable[[T | None, BaseException | None], object], done: concurrent.futures.Future[T]
) -> None:
    """Call back with the result of a future, or with None and its error."""
    error = concurrent.futures.CancelledError() if done.cancelled() else done.exception()
    callback(None if error else done.result(), error)


def _documented(call: Callable[P, T], method: Callable[..., Any]) -> Callable[P, T]:
    call.__name__ = method.__name__
    call.__qualname__ = method.__qualname__
    call.__doc__ = method.__doc__
    call.__wrapped__ = method  # type: ignore[attr-defined]
    return call


class _Closable(Protocol):
    def close(self) -> object: ...


class _AsyncClosable(Protocol):
    def close(self) -> Awaitable[object]: ...


class Closing:
    """Lets `with` close what has a `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self: _Closable, *raised: object) -> None:
        self.close()


class AsyncClosing:
    """Lets `async with` close what has a `close` to be awaited."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: _AsyncClosable, *raised: object) -> None:
        await self.close()
