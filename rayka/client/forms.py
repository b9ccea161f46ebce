"""The two forms of a client: the asynchronous one has the code; the blocking one is for callers without a loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from rayka.client.loop import LoopThread, submit_to

P = ParamSpec("P")
T = TypeVar("T")


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
        return await asyncio.wrap_future(submit_to(method(self, *args, **kwargs), self.home))

    return call


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
