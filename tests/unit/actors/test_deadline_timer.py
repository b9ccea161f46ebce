"""When a coordinator is woken for its deadlines."""

from __future__ import annotations

import asyncio
import time

from rayka.actors.coordinator.deadline_timer import DeadlineTimer, monotonic_ms


class Deadlines:
    """One deadline at a time; `events` has what has happened, in order."""

    def __init__(self, *after_ms: int) -> None:
        begun = monotonic_ms()
        self.left = [begun + ms for ms in after_ms]
        self.events: list[str] = []
        self.done = asyncio.Event()
        self.timer = DeadlineTimer(lambda: min(self.left, default=None), self.expire)

    def expire(self) -> None:
        while self.left and min(self.left) <= monotonic_ms():
            self.left.remove(min(self.left))
            self.events.append("expired")
        if not self.left:
            self.done.set()

    async def wait(self) -> list[str]:
        async with asyncio.timeout(30):
            await self.done.wait()
        return self.events


def test_each_deadline_is_handled_once() -> None:
    async def check() -> None:
        deadlines = Deadlines(5, 10, 15)
        deadlines.timer.schedule()
        assert await deadlines.wait() == ["expired"] * 3

    asyncio.run(check())


def test_an_earlier_deadline_moves_the_timer_forward() -> None:
    async def check() -> None:
        deadlines = Deadlines(3_600_000)
        deadlines.timer.schedule()
        deadlines.left = [monotonic_ms() + 5]
        deadlines.timer.schedule()
        assert await deadlines.wait() == ["expired"]

    asyncio.run(check())


def test_after_a_pause_pending_input_goes_before_deadlines() -> None:
    async def check() -> None:
        deadlines = Deadlines(10)
        deadlines.timer.schedule()
        time.sleep(0.3)  # the process is paused, and its deadline passes
        asyncio.get_running_loop().call_later(0.05, deadlines.events.append, "heartbeat")
        assert await deadlines.wait() == ["heartbeat", "expired"]

    asyncio.run(check())


def test_a_cancelled_timer_wakes_nobody() -> None:
    async def check() -> None:
        deadlines = Deadlines(1)
        deadlines.timer.schedule()
        deadlines.timer.cancel()
        await asyncio.sleep(0.05)
        assert deadlines.events == []

    asyncio.run(check())
