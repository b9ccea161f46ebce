"""Starts a coroutine inline and creates a task only if it has to wait.

Most requests find everything they need in this process and never wait. A task would cost them an iteration of the
event loop, which takes as long as many of them do. From Python 3.12 on this is an eager task. Before that, the code up
to the first wait runs in no task: `asyncio.current_task()` is None there, which `asyncio.wait_for` of 3.11 accepts.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Coroutine, Generator
from typing import Any


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, None], pending: Any) -> Generator[Any, Any, None]:
    """The rest of a coroutine that waits for `pending`."""
    while True:
        try:
            try:
                value = yield pending
            except BaseException as error:
                pending = coroutine.throw(error)
            else:
                pending = coroutine.send(value)
        except StopIteration:
            return


async def _finish(coroutine: Coroutine[Any, Any, None], pending: Any) -> None:
    await _rest(coroutine, pending)


def start_eagerly(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Run the coroutine until it first waits; return the task for the rest, None if it has ended.

    Raises what the coroutine raises before its first wait.
    """
    if sys.version_info >= (3, 12):
        task = asyncio.Task(coroutine, loop=loop, eager_start=True)
        return task if not task.done() else task.result()
    try:
        pending = coroutine.send(None)
    except StopIteration:
        return None
    return loop.create_task(_finish(coroutine, pending))
