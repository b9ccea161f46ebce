"""Threads that do what an event loop must not wait for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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


async def in_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, but where no thread can be started the call is gone: see `Threads`."""
    calls = [functools.partial(call, *args, **kwargs)]
    try:
        return await asyncio.to_thread(_call_unless_gone, calls)
    except RuntimeError:
        calls.clear()
        raise
