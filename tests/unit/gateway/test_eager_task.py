"""`start_eagerly` creates no task for a coroutine that never waits, and an ordinary task for one that does."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from rayka.gateway.server.eager_task import start_eagerly


async def collect(seen: list[Any], *futures: asyncio.Future[Any]) -> None:
    """Waits for one after the other, and notes what came of it."""
    for future in futures:
        try:
            seen.append(await future)
        except (ValueError, asyncio.CancelledError) as error:
            seen.append(type(error))
            if isinstance(error, asyncio.CancelledError):
                raise
    seen.append("end")


def test_a_coroutine_that_never_waits_runs_without_a_task() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        ready.set_result(1)
        seen: list[Any] = []
        assert start_eagerly(collect(seen, ready), loop) is None
        assert seen == [1, "end"]

    asyncio.run(check())


def test_a_waiting_coroutine_continues_with_results_and_errors() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        first, second, third = (loop.create_future() for _ in range(3))
        seen: list[Any] = []
        task = start_eagerly(collect(seen, first, second, third), loop)
        assert task is not None
        assert seen == []
        loop.call_soon(first.set_result, 1)
        loop.call_soon(second.set_exception, ValueError())
        loop.call_soon(third.set_result, 3)
        await asyncio.wait_for(task, 60)
        assert seen == [1, ValueError, 3, "end"]

    asyncio.run(check())


def test_a_waiting_coroutine_can_be_cancelled() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        seen: list[Any] = []
        task = start_eagerly(collect(seen, future), loop)
        assert task is not None
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
        assert seen == [asyncio.CancelledError]
        assert future.cancelled()

    asyncio.run(check())


def test_cancelled_before_the_first_turn_of_the_task() -> None:
    """What was begun is cleaned up."""

    async def check() -> None:
        loop = asyncio.get_running_loop()
        seen: list[str] = []

        async def wait() -> None:
            try:
                await loop.create_future()
            finally:
                seen.append("cleaned up")

        task = start_eagerly(wait(), loop)
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
        del task
        gc.collect()
        assert seen == ["cleaned up"]

    asyncio.run(check())


def test_an_error_before_the_first_wait_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("at once")

    async def check() -> None:
        with pytest.raises(ValueError, match="at once"):
            start_eagerly(fail(), asyncio.get_running_loop())

    asyncio.run(check())
