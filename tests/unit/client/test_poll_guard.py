"""One poll of a consumer at a time."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from rayka.client.consumer.poll_guard import OTHER_THREAD, Poll, PollGuard, TaskPoll, ThreadPoll
from rayka.errors import ErrorCode, RaykaError


def refusal(guard: PollGuard, poll: Poll) -> str:
    """What a poll is told that may not begin."""
    with pytest.raises(RaykaError) as refused:
        guard.begin(poll)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    return str(refused.value)


def test_the_next_poll_may_begin_when_one_has_ended() -> None:
    guard = PollGuard()
    first = guard.begin(ThreadPoll())
    assert "a signal handler must not poll" in refusal(guard, ThreadPoll())
    first.has_ended = True
    guard.begin(ThreadPoll())


def test_a_thread_is_told_that_another_one_polls() -> None:
    guard = PollGuard()
    other = threading.Thread(target=lambda: guard.begin(ThreadPoll()), name="rayka-other")
    other.start()
    other.join()
    assert OTHER_THREAD in refusal(guard, ThreadPoll())


def test_a_poll_of_a_cancelled_task_takes_nothing_when_the_next_one_has_begun() -> None:
    async def main() -> None:
        guard, polls = PollGuard(), list[TaskPoll]()

        async def poll() -> None:
            polls.append(guard.begin(TaskPoll()))
            await asyncio.sleep(60)

        task = asyncio.create_task(poll())
        await asyncio.sleep(0)
        assert polls[0].take(lambda: 1) == 1
        assert task.get_name() in refusal(guard, TaskPoll())
        task.cancel()
        guard.begin(TaskPoll())
        assert polls[0].take(lambda: 1) is None

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_is_not_kept_alive() -> None:
    guard, loop, states = PollGuard(), asyncio.new_event_loop(), list[bool]()

    async def poll() -> None:
        guard.begin(TaskPoll())
        try:
            await asyncio.Event().wait()
        finally:
            states.append(True)

    async def begin() -> None:
        task = asyncio.ensure_future(poll())
        await asyncio.wait([task], timeout=0.001)

    loop.run_until_complete(begin())
    gc.collect()
    assert states == [True]
    asyncio.run(asyncio.wait_for(take_turn(guard), 60))
    loop.close()


async def take_turn(guard: PollGuard) -> None:
    """Poll in another loop."""
    guard.begin(TaskPoll())


def test_a_task_that_has_ended_in_any_way_is_not_in_the_way() -> None:
    guard = PollGuard()

    async def main() -> None:
        await asyncio.create_task(take_turn(guard))
        await take_turn(guard)

    asyncio.run(main())


def test_iterations_of_one_loop_may_run_beside_each_other_and_no_poll_beside_any_of_them() -> None:
    async def main() -> None:
        guard, polls, may_end = PollGuard(), list[TaskPoll](), asyncio.Event()

        async def iterate() -> None:
            poll = guard.begin(TaskPoll(is_iteration=True))
            polls.append(poll)
            await may_end.wait()
            poll.has_ended = True

        tasks = [asyncio.create_task(iterate()) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(polls) == 3
        polls[2].has_ended = True
        assert "let one task poll" in refusal(guard, TaskPoll())
        polls[0].has_ended = True
        assert tasks[1].get_name() in refusal(guard, TaskPoll())
        may_end.set()
        await asyncio.gather(*tasks)
        guard.begin(TaskPoll())

    asyncio.run(main())
