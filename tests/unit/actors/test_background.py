"""Background loops survive what they did not expect, or end the process."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rayka.actors import background
from rayka.actors.background import BackgroundTasks, StopLoop, in_daemon_thread


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FIRST_PAUSE_S", 0.0001)


@in_a_loop
async def test_a_loop_continues_after_an_exception_which_is_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    async def step() -> None:
        calls.append(None)
        if len(calls) == 4:
            raise StopLoop
        if len(calls) < 3:
            raise KeyError("unexpected")

    before = background.failures["upkeep"]
    await BackgroundTasks("test").repeat("upkeep", step)
    assert len(calls) == 4
    assert background.failures["upkeep"] - before == 2
    assert "unexpected" in caplog.text


@in_a_loop
async def test_a_loop_that_keeps_failing_ends_the_process_if_it_says_so() -> None:
    class Exited(BaseException):
        pass

    def die() -> None:
        raise Exited

    async def step() -> None:
        raise ValueError("again")

    before = background.failures["watch"]
    with pytest.raises(Exited):
        await BackgroundTasks("test", die).repeat("watch", step, die_after=3)
    assert background.failures["watch"] - before == 3


@in_a_loop
async def test_a_single_task_that_fails_is_counted() -> None:
    async def work() -> None:
        raise ValueError("once")

    before = background.failures["load"]
    await BackgroundTasks("test").start("load", work())
    assert background.failures["load"] - before == 1


@in_a_loop
async def test_stop_ends_every_loop() -> None:
    running = asyncio.Event()

    async def step() -> None:
        running.set()
        await asyncio.Event().wait()

    tasks = BackgroundTasks("test")
    loop = tasks.repeat("forever", step)
    await running.wait()
    await tasks.stop()
    assert loop.cancelled()


@in_a_loop
async def test_a_call_in_a_thread_gives_its_result_or_its_error() -> None:
    assert await in_daemon_thread(threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(lambda: 1 // 0)


def test_a_call_that_waits_for_ever_does_not_keep_the_process_alive() -> None:
    """Ray's calls do, once its GCS is gone."""
    program = (
        "import asyncio, threading\n"
        "from rayka.actors.background import in_daemon_thread\n"
        "async def main():\n"
        "    call = asyncio.ensure_future(in_daemon_thread(threading.Event().wait))\n"
        "    await asyncio.sleep(0.1)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_thread_of_ours_never_starts_ray() -> None:
    """Ray starts a cluster for a call in a process without one, also in one that has just left its own."""
    program = (
        "import threading, ray\n"
        "from rayka.actors.controller.watch import NamedController\n"
        "def call():\n"
        "    try: NamedController('rayka')\n"
        "    except Exception as error: print(type(error).__name__)\n"
        "thread = threading.Thread(target=call, name='rayka-client')\n"
        "thread.start(); thread.join()\n"
        "print(ray.is_initialized())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["RaySystemError", "False"], done.stderr


@in_a_loop
async def test_a_loop_stops_though_its_step_misses_the_cancellation() -> None:
    """Up to Python 3.11, `wait_for` returns when it is cancelled as its result comes."""
    steps = 0
    came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def step() -> None:
        nonlocal steps
        steps += 1
        try:
            await came
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    tasks = BackgroundTasks("test")
    tasks.repeat("upkeep", step)
    while not steps:
        await asyncio.sleep(0)
    await asyncio.wait_for(tasks.stop(), 10)
    assert steps == 1
