"""Runs and supervises the background loops of a process.

An exception that a loop did not expect is logged with its traceback and counted, and the loop continues after a pause
that grows while it keeps failing. A loop that an actor cannot do without says `die_after`: after so many failures in a
row the process exits, so that Ray restarts the actor from its logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from rayka.errors import ErrorCode, RaykaError

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 30.0
FAILURES_BEFORE_EXIT = 5
EXIT_CODE = 1

failures: Counter[str] = Counter()
"""How often each loop of this process has failed, by its name."""


class StopLoop(Exception):
    """Raised by a step when its loop is to end."""


async def in_daemon_thread(call: Callable[[], T]) -> T:
    """As `asyncio.to_thread`, for a call that may wait long or for ever: its thread does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(method: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            method(outcome)

    def run() -> None:
        try:
            outcome, method = call(), future.set_result
        except Exception as error:
            outcome, method = error, future.set_exception  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, method, outcome)

    threading.Thread(target=run, name="rayka-call", daemon=True).start()
    return await future


async def answered(work: Awaitable[T]) -> T | RaykaError:
    """The result, or the error as a value: whoever waits for the answer gets it also if nobody expects the error."""
    try:
        return await work
    except RaykaError as error:
        return error
    except Exception as error:
        logger.exception("a request failed")
        return RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}")


def exit_process() -> None:
    """End this process at once; Ray restarts the actor."""
    logging.shutdown()
    os._exit(EXIT_CODE)


def exit_if_failed(started: asyncio.Future[None]) -> None:
    """For the task in which an actor starts: one that could not start leaves, so that Ray starts it again.

    A RaykaError is a refusal, which would be repeated: the actor stays, and its calls raise the error.
    """
    error = None if started.cancelled() else started.exception()
    if error is not None:
        logger.error("could not start", exc_info=error)
        if not isinstance(error, RaykaError):
            exit_process()


class BackgroundTasks:
    """The loops and single tasks of one owner, which ends them with `stop`."""

    def __init__(self, owner: str, die: Callable[[], None] = exit_process) -> None:
        self._owner = owner
        self._die = die
        self._tasks: set[asyncio.Task[None]] = set()

    def repeat(
        self,
        name: str,
        step: Callable[[], Awaitable[None]],
        *,
        interval_s: float = 0.0,
        die_after: int | None = None,
    ) -> asyncio.Task[None]:
        """Run `step` again and again, `interval_s` after each time, until it raises StopLoop."""
        return self._run(self._repeat(name, step, interval_s, die_after))

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something once. An exception is logged and counted."""
        task = self._run(self._once(name, work))
        task.add_done_callback(lambda _: work.close())  # it may have been cancelled before it began
        return task

    async def stop(self) -> None:
        """Cancel everything and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def cancel(self) -> None:
        """Cancel everything, without waiting."""
        for task in self._tasks:
            task.cancel()

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _once(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._failed(name, error)

    async def _repeat(
        self, name: str, step: Callable[[], Awaitable[None]], interval_s: float, die_after: int | None
    ) -> None:
        in_a_row = 0
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():  # a step may miss it: up to Python 3.11, `wait_for` returns a result instead
            await asyncio.sleep(max(interval_s, _pause_s(in_a_row)))
            try:
                await step()
                in_a_row = 0
            except StopLoop:
                return
            except Exception as error:
                in_a_row += 1
                self._failed(name, error)
                if die_after is not None and in_a_row >= die_after:
                    logger.critical("%s: %s failed %d times in a row; restarting", self._owner, name, in_a_row)
                    self._die()

    def _failed(self, name: str, error: Exception) -> None:
        failures[name] += 1
        if isinstance(error, RaykaError):
            logger.error("%s: %s failed: %s", self._owner, name, error)
        else:
            logger.error("%s: %s failed", self._owner, name, exc_info=error)


def _pause_s(failures_in_a_row: int) -> float:
    if not failures_in_a_row:
        return 0.0
    return min(FIRST_PAUSE_S * 2.0 ** min(failures_in_a_row - 1, 16), MAX_PAUSE_S)
