"""Which of the fetches that wait for records are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rayka.actors.share.waiters import GroupPartition, Waiters
from rayka.types import TopicPartition

HERE, THERE = (GroupPartition("group", TopicPartition("topic", number)) for number in range(2))
OTHERS = HERE._replace(group_id="others")
Woken = list[tuple[str, bool]]
LATER_S = 60.0


class Scene:
    """Members that wait, and those that were woken, in order, with whether it is worth looking."""

    def __init__(self) -> None:
        self.waiters = Waiters()
        self.woken: Woken = []
        self._tasks: list[asyncio.Task[None]] = []

    async def wait(self, member: str, *keys: GroupPartition, seconds: float = LATER_S) -> None:
        self._tasks.append(asyncio.ensure_future(self._wait(member, keys, seconds)))
        await asyncio.sleep(0)

    async def _wait(self, member: str, keys: Sequence[GroupPartition], seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        is_worth_looking = await self.waiters.wait((keys[0].group_id, member), keys, until)
        self.woken.append((member, is_worth_looking))

    async def settle(self) -> list[str]:
        """Who was woken since the last time."""
        for _ in range(3):
            await asyncio.sleep(0)
        names, self.woken = [name for name, _ in self.woken], []
        return names


def play(scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        one = Scene()
        await scene(one)
        for task in one._tasks:
            task.cancel()

    asyncio.run(run())


def test_the_fetch_of_a_group_that_waited_longest_is_woken() -> None:
    async def scene(scene: Scene) -> None:
        await scene.wait("a", HERE)
        await scene.wait("b", HERE)
        await scene.wait("c", OTHERS)
        assert scene.waiters.keys(HERE.topic_partition) == [HERE, OTHERS]
        scene.waiters.wake(HERE)
        scene.waiters.wake(HERE)
        assert await scene.settle() == ["a"]
        scene.waiters.wake(HERE)
        assert await scene.settle() == ["b"]
        assert not scene.waiters.has_waiters(HERE)
        assert scene.waiters.has_waiters(OTHERS)

    play(scene)


def test_records_that_a_woken_fetch_cannot_use_are_offered_to_each_other_fetch_once() -> None:
    async def scene(scene: Scene) -> None:
        for name in "abc":
            await scene.wait(name, HERE)
        scene.waiters.wake(HERE)
        order = []
        while woken := await scene.settle():
            (name,) = woken
            order.append(name)
            await scene.wait(name, HERE)
            scene.waiters.pass_on(HERE)
        assert order == ["a", "b", "c"]

    play(scene)


def test_a_fetch_that_waits_in_two_places_is_woken_once_and_hides_none_of_the_others() -> None:
    async def scene(scene: Scene) -> None:
        await scene.wait("a", HERE, THERE)
        await scene.wait("b", THERE)
        scene.waiters.wake(HERE)
        scene.waiters.wake(THERE)
        assert await scene.settle() == ["a"]
        scene.waiters.pass_on(THERE)
        assert await scene.settle() == ["b"]

    play(scene)


def test_all_are_woken_when_the_leader_is_another_one() -> None:
    async def scene(scene: Scene) -> None:
        await scene.wait("a", HERE)
        await scene.wait("b", HERE)
        assert await scene.settle() == []
        scene.waiters.wake_all(HERE.topic_partition)
        assert await scene.settle() == ["a", "b"]

    play(scene)


def test_a_later_fetch_of_a_member_ends_the_wait_of_the_one_before() -> None:
    async def scene(scene: Scene) -> None:
        await scene.wait("a", HERE)
        await scene.wait("a", HERE)
        await asyncio.sleep(0)
        assert scene.woken == [("a", False)]
        assert scene.waiters.has_waiters(HERE)

    play(scene)
