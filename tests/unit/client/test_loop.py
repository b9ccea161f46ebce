"""The event loop's thread behind the blocking clients."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from rayka.client.forms import at_home
from rayka.client.loop import LoopThread, tell_of_end
from rayka.errors import RaykaError


def test_results_and_errors_come_back() -> None:
    async def add(left: int, right: int) -> int:
        return left + right

    async def fail() -> None:
        raise KeyError("why")

    loop = LoopThread()
    assert loop.run(add(1, 2)) == 3
    assert loop.submit(add(3, 4)).result(60) == 7
    with pytest.raises(KeyError, match="why"):
        loop.run(fail())
    loop.close()


def test_functions_are_called_in_the_loop() -> None:
    def fail() -> None:
        raise KeyError("why")

    loop = LoopThread()
    assert loop.call(asyncio.get_running_loop) is loop.loop
    with pytest.raises(KeyError, match="why"):
        loop.call(fail)
    with pytest.raises(SystemExit):
        loop.call(lambda: sys.exit(3))
    assert loop.call(lambda: "still here") == "still here"
    with pytest.raises(RaykaError, match="callback"):
        loop.call(lambda: loop.call(print))
    loop.close()
    with pytest.raises(RaykaError, match="closed"):
        loop.call(print)


def test_an_error_of_a_function_is_kept_by_nobody() -> None:
    """A traceback refers to all that its functions know, such as open files."""

    class Held:
        pass

    def fail() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        raise KeyError

    loop, seen = LoopThread(), list[weakref.ref[Held]]()
    gc.disable()
    try:
        with contextlib.suppress(KeyError):
            loop.call(fail)
        loop.run(asyncio.sleep(0))  # the loop's thread has left the call
        assert seen[0]() is None
    finally:
        gc.enable()
        loop.close()


@contextlib.contextmanager
def interrupted_when(event: threading.Event) -> Iterator[None]:
    """Raise KeyboardInterrupt in this thread, as Ctrl-C does, a moment after the event."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        event.wait(60)
        threading.Event().wait(0.1)  # until the other thread waits; if it does not yet, the outcome is the same
        signal.pthread_kill(interrupted, signal.SIGUSR1)

    interrupted, before = threading.get_ident(), signal.signal(signal.SIGUSR1, interrupt)
    sending = threading.Thread(target=send)
    sending.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        sending.join()
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_call_that_has_not_begun_is_not_made() -> None:
    loop, is_busy, may_end, calls = LoopThread(), threading.Event(), threading.Event(), list[int]()

    def be_busy() -> None:
        is_busy.set()
        may_end.wait(60)

    loop.call_soon(be_busy)
    with interrupted_when(is_busy):
        loop.call(lambda: calls.append(1))
    may_end.set()
    loop.call(lambda: calls.append(2))
    assert calls == [2]
    loop.close()


def test_an_interrupted_call_that_has_begun_has_ended_when_the_interrupt_comes_out() -> None:
    loop, has_begun, calls = LoopThread(), threading.Event(), list[int]()

    def work() -> None:
        has_begun.set()
        threading.Event().wait(0.5)
        calls.append(1)

    with interrupted_when(has_begun):
        loop.call(work)
    assert calls == [1]
    loop.close()


def test_an_error_of_an_interrupted_call_is_kept_by_nobody() -> None:
    class Held:
        pass

    def work() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        has_begun.set()
        threading.Event().wait(0.5)
        raise KeyError

    loop, has_begun, seen = LoopThread(), threading.Event(), list[weakref.ref[Held]]()
    gc.disable()
    try:
        with interrupted_when(has_begun):
            loop.call(work)
        loop.run(asyncio.sleep(0))
        assert seen[0]() is None
    finally:
        gc.enable()
        loop.close()


def test_a_call_that_cannot_begin_has_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    loop = LoopThread()
    monkeypatch.setattr(loop.loop, "create_task", fail)
    with pytest.raises(MemoryError):
        loop.run(asyncio.sleep(0))
    monkeypatch.undo()
    assert loop.run(asyncio.sleep(0, "goes on")) == "goes on"
    loop.close()


def test_an_interrupted_coroutine_is_cancelled() -> None:
    loop, has_begun, has_ended = LoopThread(), threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    with interrupted_when(has_begun):
        loop.run(wait_for_ever())
    assert has_ended.wait(30)
    loop.close()


def test_who_waits_for_the_loop_holds_no_lock_that_an_interrupt_could_leave_locked() -> None:
    """That of `threading.Condition` is taken by Python code. The loop would wait for it for ever."""
    loop, seen = LoopThread(), list[str]()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == threading.__file__:
            seen.append(frame.f_code.co_name)

    sys.setprofile(see)
    try:
        loop.run(asyncio.sleep(0.01))
        loop.call(list)
    finally:
        sys.setprofile(None)
        loop.close()
    assert not {"__enter__", "wait", "notify_all"} & {*seen}


def test_a_function_that_comes_while_another_thread_closes_the_loop_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for one that is not called would wait for ever."""
    loop = LoopThread()
    closing, hand_over = threading.Thread(target=loop.close), loop.loop.call_soon_threadsafe

    def hand_over_late(function: Any) -> Any:
        if not closing.ident:
            closing.start()
            closing.join(0.1)  # until it waits for this call
        return hand_over(function)

    monkeypatch.setattr(loop.loop, "call_soon_threadsafe", hand_over_late)
    assert loop.call(lambda: "called") == "called"
    closing.join(30)


def test_a_call_that_wants_to_end_the_process_ends_only_itself() -> None:
    async def leave() -> None:
        sys.exit(3)

    loop = LoopThread()
    with pytest.raises(SystemExit):
        loop.run(leave())
    loop.call_soon(sys.exit, 4)
    assert loop.submit(asyncio.sleep(0, "still here")).result(30) == "still here"
    loop.close()


def test_close_ends_what_runs() -> None:
    ended = threading.Event()

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    loop = LoopThread()
    waiting = loop.submit(wait_for_ever())
    loop.run(asyncio.sleep(0))
    loop.close()
    loop.close()
    assert ended.is_set()
    assert waiting.cancelled()


def test_close_ends_all_calls_also_if_one_wants_to_end_the_process_meanwhile() -> None:
    loop, has_begun, outcomes = LoopThread(), threading.Semaphore(0), list[type[BaseException]]()

    async def wait_for_ever(error: type[BaseException] | None) -> None:
        has_begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            if error is not None:
                raise error
            await asyncio.sleep(0.01)

    def call(error: type[BaseException] | None) -> None:
        try:
            loop.run(wait_for_ever(error))
        except BaseException as raised:
            outcomes.append(type(raised))

    calling = [threading.Thread(target=call, args=[error]) for error in (SystemExit, None)]
    for each in calling:
        each.start()
        assert has_begun.acquire(timeout=30)
    loop.close()
    for each in calling:
        each.join(30)
    assert {*outcomes} == {SystemExit, concurrent.futures.CancelledError}
    assert loop.loop.is_closed()


def test_after_close_nothing_runs() -> None:
    loop = LoopThread()
    loop.close()
    loop.call_soon(print)
    with pytest.raises(RaykaError, match="closed"):
        loop.run(asyncio.sleep(0))


def test_a_function_that_comes_when_the_loop_has_just_ended_is_not_called() -> None:
    """Another thread may close it between the look at its state and the call."""
    loop, called = LoopThread(), []
    loop.close()
    loop._closed = False
    loop.call_soon(called.append, 1)
    assert not called


def test_a_call_during_which_another_thread_closes_the_loop_has_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that the loop does not take any more would wait for ever."""
    loop, start = LoopThread(), asyncio.run_coroutine_threadsafe
    closing = threading.Thread(target=loop.close)

    def start_late(*arguments: Any) -> Any:
        closing.start()
        closing.join(0.1)  # until it waits for this call
        return start(*arguments)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", start_late)
    with pytest.raises(concurrent.futures.CancelledError):
        loop.submit(asyncio.Event().wait()).result(30)
    closing.join(30)


@pytest.mark.parametrize("is_own_thread", [True, False])
def test_a_call_within_which_the_loop_gets_closed_has_an_outcome(
    monkeypatch: pytest.MonkeyPatch, is_own_thread: bool
) -> None:
    """The collector may drop an object that closes the connection while a call is under way in the same thread."""
    loop, start = LoopThread(), asyncio.run_coroutine_threadsafe
    called: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def close_and_start(*arguments: Any) -> Any:
        loop.close()
        return start(*arguments)

    def submit() -> None:
        try:
            called.set_result(loop.submit(asyncio.Event().wait()))
        except RaykaError as error:
            called.set_exception(error)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", close_and_start)
    if is_own_thread:
        loop.call_soon(submit)
        with pytest.raises(concurrent.futures.CancelledError):
            called.result(30).result(30)
    else:
        submit()
        with pytest.raises(RaykaError, match="closed"):
            called.result(30)


def test_close_ends_what_begins_while_tasks_are_cancelled() -> None:
    loop = LoopThread()
    tasks: list[asyncio.Task[Any]] = []

    async def begin_another() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.append(asyncio.create_task(asyncio.Event().wait()))

    loop.submit(begin_another())
    loop.run(asyncio.sleep(0))
    loop.close()
    assert tasks[0].cancelled()


class Client:
    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self.home = home

    @at_home
    async def wait(self) -> None:
        await asyncio.Event().wait()


def test_a_call_from_another_loop_during_close_is_refused() -> None:
    loop, cancelled, end = LoopThread(), threading.Event(), threading.Event()

    async def end_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await asyncio.to_thread(end.wait, 60)

    loop.submit(end_late())
    loop.run(asyncio.sleep(0))
    closing = threading.Thread(target=loop.close)
    closing.start()
    assert cancelled.wait(60)
    with pytest.raises(RaykaError, match="closed"):
        asyncio.run(asyncio.wait_for(Client(loop.loop).wait(), 5))
    end.set()
    closing.join(60)
    with pytest.raises(RaykaError, match="closed"):
        asyncio.run(asyncio.wait_for(Client(loop.loop).wait(), 5))


def test_waiting_in_its_own_thread_is_refused() -> None:
    loop = LoopThread()

    async def wait_for_itself() -> None:
        loop.run(asyncio.sleep(0))

    with pytest.raises(RaykaError, match="callback"):
        loop.run(wait_for_itself())
    loop.close()


def test_a_call_for_which_no_thread_can_be_started_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's executor keeps it: reads of a disk that were tried again many times would all come before a new one."""
    called: list[str] = []

    async def in_thread(name: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, called.append, name)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop = LoopThread()
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            loop.run(in_thread("too many threads"))
    loop.run(in_thread("again"))
    assert called == ["again"]
    loop.close()


def test_what_begins_to_use_a_loop_that_has_just_ended_is_told_too() -> None:
    class User:
        told = 0

        def loop_ends(self) -> None:
            self.told += 1

    thread, before, after = LoopThread(), User(), User()
    tell_of_end(thread.loop, before)
    thread.close()
    assert before.told == 1
    tell_of_end(thread.loop, after)
    assert (before.told, after.told) == (1, 1)
