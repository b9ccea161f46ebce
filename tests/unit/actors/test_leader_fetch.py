"""A fetch that one leader answers alone: when it is done, asked again, lost and given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, cast

import pytest

from rayka.actors.channel.leader_fetch import LeaderFetch
from rayka.actors.channel.link import FetchDone, LeaderClient
from rayka.actors.channel.requests import FetchParams
from rayka.actors.channel.socket import ChannelClosed
from rayka.errors import ErrorCode, RaykaError
from rayka.types import FetchPartition, FetchResult, FileSlice, IsolationLevel, TopicPartition

EMPTY = FetchResult(0, 5, 5, 0)
WAIT_S = 600.0


def found(size: int, *, has_more: bool = False) -> FetchResult:
    return FetchResult(0, 5, 5, 0, None, FileSlice("a.log", 0, size), has_more)


class Leader:
    """Keeps what it was asked; the test answers. It answers at once with what is in `ready`."""

    def __init__(self) -> None:
        self.asked: list[tuple[FetchParams, FetchDone]] = []
        self.ready: list[Any] = []
        self.cancelled: list[Hashable] = []

    def fetch(self, params: FetchParams, done: FetchDone) -> Hashable:
        self.asked.append((params, done))
        if self.ready:
            done(self.ready.pop(0))
            return None
        return len(self.asked)

    def cancel(self, key: Hashable) -> None:
        self.cancelled.append(key)

    def start(self, *, min_bytes: int = 100, max_wait_s: float = WAIT_S, partitions: int = 1) -> Any:
        wanted = tuple(FetchPartition(TopicPartition("t", number), 5, 1000) for number in range(partitions))
        params = FetchParams(wanted, max_wait_s, min_bytes, 1000, IsolationLevel.READ_UNCOMMITTED)
        link = cast("LeaderClient", self)
        return LeaderFetch(lambda: link, params, asyncio.get_running_loop()).start()


def run(check: Callable[[Leader], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(check(Leader()))


@pytest.mark.parametrize(
    "results",
    [
        [found(100)],
        [found(10, has_more=True)],
        [FetchResult(int(ErrorCode.OFFSET_OUT_OF_RANGE))],
        [found(50), found(50)],
        [EMPTY, FetchResult(int(ErrorCode.KAFKA_STORAGE_ERROR))],
    ],
)
@pytest.mark.parametrize("is_at_once", [True, False])
def test_enough_an_error_or_a_limit_ends_the_fetch(results: list[FetchResult], is_at_once: bool) -> None:
    async def check(leader: Leader) -> None:
        if is_at_once:
            leader.ready.append(results)
        future = leader.start(partitions=len(results))
        if not is_at_once:
            assert not future.done()
            leader.asked[0][1](tuple(results))
        assert await future == results
        await asyncio.sleep(0)
        assert (len(leader.asked), leader.cancelled) == (1, [])

    run(check)


def test_a_leader_that_answers_too_little_too_early_is_asked_again() -> None:
    """It counts what was appended, also what a reader of committed records can't read yet."""

    async def check(leader: Leader) -> None:
        future = leader.start()
        for number in range(3):
            leader.asked[number][1]([found(99)])
            await asyncio.sleep(0)
        assert not future.done()
        first, *others = [params for params, _ in leader.asked]
        assert len(others) == 3
        assert all(one.max_wait_s <= WAIT_S and one._replace(max_wait_s=WAIT_S) == first for one in others)
        leader.asked[-1][1]([found(100)])
        assert await future == [found(100)]

    run(check)


def test_what_is_there_when_the_time_is_over_is_the_result() -> None:
    async def check(leader: Leader) -> None:
        leader.ready.append([found(10)])
        assert await leader.start(max_wait_s=0) == [found(10)]
        future = leader.start(max_wait_s=0.001)
        leader.asked[-1][1]([EMPTY])
        assert await future == [EMPTY]

    run(check)


@pytest.mark.parametrize("loss", [ChannelClosed("gone", sent=True), RaykaError(ErrorCode.INVALID_REQUEST)])
def test_a_leader_that_is_lost_is_the_error_of_every_partition(loss: Exception) -> None:
    async def check(leader: Leader) -> None:
        future = leader.start(partitions=2)
        leader.asked[0][1](cast("Any", loss))
        assert await future == [FetchResult(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))] * 2

    run(check)


def test_several_partitions_have_no_more_than_the_limit_together() -> None:
    """Records of the remote store come on top of what the leader has counted."""

    async def check(leader: Leader) -> None:
        future = leader.start(partitions=3)
        batch = bytes(8) + (188).to_bytes(4) + bytes(188)
        leader.asked[0][1]([found(900), EMPTY, FetchResult(0, 5, 5, 0, None, batch)])
        results = await future
        assert [result.size for result in results] == [900, 0, 0]

    run(check)


def test_a_fetch_that_nobody_waits_for_is_given_up() -> None:
    async def check(leader: Leader) -> None:
        future = leader.start()
        future.cancel()
        await asyncio.sleep(0)
        assert leader.cancelled == [1]
        leader.asked[0][1]([found(100)])

        again = leader.start()
        leader.asked[1][1]([EMPTY])
        again.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (len(leader.asked), leader.cancelled) == (2, [1])

    run(check)
