"""A coroutine is begun at once, and becomes a task only if it has to wait.

Most requests find all that they need in this process and never wait. A task would cost them a turn of the event loop,
which is as much as many of them take. From Python 3.12 on this is an eager task. Before, what runs until the first wait
is in no task: `asyncio.current_task()` is None there, which the `asyncio.wait_for` of 3.11 does not mind.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Coroutine, Generator
from typing import Any


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, None], pending: Any) -> Generator[Any, Any, None]:
    """What is left of a coroutine that waits for `pending`."""
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


def begin(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Run the coroutine until it first waits; the task for the rest, None if it has ended. Raises what it raises."""
    if sys.version_info >= (3, 12):
        task = asyncio.Task(coroutine, loop=loop, eager_start=True)
        return task if not task.done() else task.result()
    try:
        pending = coroutine.send(None)
    except StopIteration:
        return None
    return loop.create_task(_finish(coroutine, pending))
