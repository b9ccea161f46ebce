"""Share fetches over several leaders: nothing is acquired in vain, and nothing waits longer than it must."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rayka.actors.channel.requests import EndShareSession, ShareFetch, ShareFetched
from rayka.actors.channel.socket import ChannelClosed
from rayka.actors.share.router import ShareRouter
from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import AcknowledgementBatch
from rayka.share.acquire import AcquiredRecords
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import TopicPartition

PARAMS = ShareFetchParams("g", "m", max_wait_s=0.2, min_bytes=1, max_bytes=1000, max_records=10)
ACKNOWLEDGEMENT = (AcknowledgementBatch(0, 0, (1,)),)


class Leaders:
    """The leaders of partitions 0 and 1 of topic `t`; partition 2 has none. Each holds so many `records`."""

    def __init__(self, **records: int) -> None:
        self.records = records
        self.asked: list[tuple[str, Any]] = []
        self.failure: Exception | None = None
        self.ready = asyncio.Event()

    def locate(self, topic_partition: TopicPartition) -> tuple[str, int] | ErrorCode:
        number = topic_partition.partition
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if number == 2 else ("ab"[number], 0)

    async def ask(self, actor_name: str, request: Any, timeout_s: float) -> Any:
        self.asked.append((actor_name, request))
        if isinstance(request, EndShareSession):
            return 1
        if self.failure is not None:
            return self.failure
        if request.is_wait and not self.records[actor_name]:
            await self.ready.wait()
        return ShareFetched(30_000, tuple(self._result(actor_name, request) for _ in request.partitions))

    def _result(self, name: str, request: ShareFetch) -> ShareFetchResult:
        count = 0 if request.is_wait else min(self.records[name], request.params.max_records)
        self.records[name] -= count
        return ShareFetchResult(acquired=(AcquiredRecords(0, count - 1, 1),) if count else ())

    @property
    def waits(self) -> list[str]:
        return [name for name, request in self.asked if request.is_wait]


def partitions(*numbers: int, acknowledged: bool = False) -> list[ShareFetchPartition]:
    batches = ACKNOWLEDGEMENT if acknowledged else ()
    return [ShareFetchPartition(TopicPartition("t", number), bytes(16), True, batches) for number in numbers]


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 10))  # type: ignore[arg-type]


def fetch(leaders: Any, *numbers: int, **options: bool) -> Awaitable[tuple[int, list[ShareFetchResult]]]:
    return ShareRouter(leaders).fetch(PARAMS, partitions(*numbers, **options))


def test_a_single_leader_does_the_waiting() -> None:
    async def body() -> None:
        leaders = Leaders(a=0)
        await fetch(leaders, 0)
        ((_, request),) = leaders.asked
        assert (request.params.max_wait_s, request.is_wait) == (0.2, False)

    run(body)


def test_the_second_leader_gives_what_the_first_has_not() -> None:
    async def body() -> None:
        leaders = Leaders(a=4, b=20)
        lock_duration_ms, results = await fetch(leaders, 0, 1)
        assert [result.acquired_count for result in results] == [4, 6]
        assert lock_duration_ms == 30_000
        assert not leaders.waits

    run(body)


def test_a_leader_whose_records_are_not_needed_is_not_asked() -> None:
    async def body() -> None:
        leaders = Leaders(a=10, b=10)
        await fetch(leaders, 0, 1)
        assert [name for name, _ in leaders.asked] == ["a"]

    run(body)


def test_each_acknowledgement_is_sent_once() -> None:
    async def body() -> None:
        leaders = Leaders(a=10, b=10)
        await fetch(leaders, 0, 1, acknowledged=True)
        sent = [name for name, request in leaders.asked for one in request.partitions if one.acknowledgement_batches]
        assert sorted(sent) == ["a", "b"]
        assert leaders.records == {"a": 0, "b": 10}

    run(body)


def test_the_first_leader_with_records_ends_the_wait() -> None:
    async def body() -> None:
        leaders = Leaders(a=0, b=0)
        waiting = asyncio.ensure_future(fetch(leaders, 0, 1, acknowledged=True))
        while not leaders.waits:
            await asyncio.sleep(0)
        leaders.records["b"] = 3
        leaders.ready.set()
        _, results = await waiting
        assert [result.acquired_count for result in results] == [0, 3]
        sent = [name for name, request in leaders.asked for one in request.partitions if one.acknowledgement_batches]
        assert sorted(sent) == ["a", "b"]

    run(body)


def test_a_wait_ends_with_its_time() -> None:
    async def body() -> None:
        begun = time.monotonic()
        _, results = await fetch(Leaders(a=0, b=0), 0, 1)
        assert not any(result.acquired or result.error for result in results)
        assert 0.19 <= time.monotonic() - begun < 5

    run(body)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ChannelClosed("gone", sent=True), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, "broken"), ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_leader_that_fails_is_an_error_of_its_partitions(failure: Exception, code: ErrorCode) -> None:
    async def body() -> None:
        leaders = Leaders(a=1)
        leaders.failure = failure
        _, (result,) = await fetch(leaders, 0, acknowledged=True)
        assert (result.error, result.acknowledge_error) == (code, code)

    run(body)


def test_a_partition_without_a_leader_does_not_keep_the_others_from_being_read() -> None:
    async def body() -> None:
        _, results = await fetch(Leaders(a=2), 2, 0)
        assert [result.error for result in results] == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
        assert results[1].acquired_count == 2

    run(body)


def test_the_end_of_a_session_reaches_each_leader_once() -> None:
    async def body() -> None:
        leaders = Leaders()
        names = [TopicPartition("t", number) for number in (0, 1, 0, 2)]
        await ShareRouter(leaders).end_session("g", "m", names, is_lost=True)  # type: ignore[arg-type]
        assert leaders.asked == [(name, EndShareSession("g", "m", True)) for name in "ab"]

    run(body)
