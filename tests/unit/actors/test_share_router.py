"""Share fetches over partitions of two leaders: how they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rayka.actors.channel.requests import DescribeShareRecords
from rayka.actors.share import router
from rayka.actors.share.router import ShareRouter
from rayka.coordinator.shares.requests import InitializeShareGroupStateRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import NewTopic
from rayka.share.acknowledge import AcknowledgementBatch
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import TopicPartition
from tests.support.local_broker import LocalBroker
from tests.support.local_share_leaders import LocalShareLeaders
from tests.unit.gateway.asking import append, create, run
from tests.unit.gateway.wire_client import WireClient

FEW = 12


class TwoLeaders:
    """The way to two partition actors, of which each leads one partition of topic `t`."""

    def __init__(self, broker: LocalBroker) -> None:
        self.first = LocalShareLeaders(broker)
        self._leaders = (self.first, broker.share_leaders)
        broker.partitions.more_bytes = self._more_bytes
        self.asked, self.last_asked = 0, 1000
        self.in_progress = 0
        self.first_may_answer = asyncio.Event()
        self.first_may_answer.set()

    def _more_bytes(self, topic_partition: TopicPartition) -> None:
        for leaders in self._leaders:
            leaders.partitions.more_bytes(topic_partition)

    def locate(self, topic_partition: TopicPartition) -> tuple[str, int]:
        return str(topic_partition.partition), 0

    async def ask(self, name: str, request: Any, timeout_s: float = 0) -> Any:
        self.asked += 1
        assert self.asked < 1000, "the leaders are asked over and over"
        if self.asked > self.last_asked:
            return RaykaError(ErrorCode.REQUEST_TIMED_OUT)
        self.in_progress += 1
        try:
            if name == "0" and not await self._first_answers(request, timeout_s):
                return RaykaError(ErrorCode.REQUEST_TIMED_OUT)
            return await self._leaders[int(name)]._ask(request)
        finally:
            self.in_progress -= 1

    async def _first_answers(self, request: Any, timeout_s: float) -> bool:
        """Whether it may answer in time; fetches wait for it as long as it takes."""
        waiting = asyncio.ensure_future(self.first_may_answer.wait())
        try:
            await asyncio.wait([waiting], timeout=timeout_s if isinstance(request, DescribeShareRecords) else None)
            return waiting.done()
        finally:
            waiting.cancel()


def check(path: Path, body: Callable[[LocalBroker, TwoLeaders, Any], Coroutine[Any, Any, None]]) -> None:
    """Run `body` with a function that fetches from both partitions for group `g`."""

    async def begin(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("t", num_partitions=2))
        topic_id = broker.image.topics["t"].topic_id
        for number in range(2):
            await broker.shares.execute(InitializeShareGroupStateRequest("g", topic_id, number, 1, 0))
        leaders = TwoLeaders(broker)
        share_router = ShareRouter(leaders)  # type: ignore[arg-type]
        partitions = [ShareFetchPartition(TopicPartition("t", number), topic_id.bytes) for number in range(2)]

        async def fetch(**values: Any) -> int:
            params = {"max_wait_s": 30.0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, **values}
            _, results = await share_router.fetch(ShareFetchParams("g", "m", **params), partitions)
            assert [result.error for result in results] == [0, 0]
            return sum(result.acquired_count for result in results)

        await body(broker, leaders, fetch)

    run(path, begin)


def test_a_fetch_waits_at_both_leaders(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        waiting = asyncio.ensure_future(fetch())
        await asyncio.sleep(0)
        append(broker, "t", 1)
        assert await waiting == 1
        assert leaders.asked < FEW

    check(tmp_path, body)


@pytest.mark.parametrize("values", [{"max_records": 0}, {"max_records": -1}, {"max_bytes": 0}, {"max_bytes": -1}])
def test_a_fetch_that_has_no_room_for_records_asks_each_leader_once(tmp_path: Path, values: dict[str, int]) -> None:
    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        append(broker, "t", 1)
        assert await fetch(**values) == 0
        assert leaders.asked < FEW

    check(tmp_path, body)


def test_acknowledgements_that_were_taken_stay_so_when_the_leader_fails_afterwards(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        append(broker, "t", 1)
        assert await fetch() == 1
        topic_id, accepted = broker.image.topics["t"].topic_id.bytes, (AcknowledgementBatch(0, 0, (1,)),)
        partitions = [
            ShareFetchPartition(TopicPartition("t", number), topic_id, True, batches)
            for number, batches in ((1, ()), (0, accepted))
        ]
        leaders.last_asked = leaders.asked + 2
        params = ShareFetchParams("g", "m", max_wait_s=0.0, min_bytes=1, max_bytes=1 << 20, max_records=500)
        _, results = await ShareRouter(leaders).fetch(params, partitions)  # type: ignore[arg-type]
        assert [result.error for result in results] == [0, ErrorCode.REQUEST_TIMED_OUT]
        assert results[1].acknowledge_error == 0

    check(tmp_path, body)


def test_a_second_fetch_of_a_member_ends_the_wait_of_the_first(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        first = asyncio.ensure_future(fetch())
        while leaders.asked < 4:
            await asyncio.sleep(0.001)
        second = asyncio.ensure_future(fetch())
        async with asyncio.timeout(10):
            assert await first == 0
            assert not second.done()
            append(broker, "t", 1)
            assert await second == 1
        assert leaders.asked < 2 * FEW

    check(tmp_path, body)


def test_a_fetch_that_is_cancelled_leaves_no_wait_behind(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        waiting = asyncio.ensure_future(fetch())
        while leaders.asked < 4:
            await asyncio.sleep(0.001)
        assert leaders.in_progress == 2
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert leaders.in_progress == 0

    check(tmp_path, body)


def test_a_leader_that_stands_still_holds_up_no_other_and_what_it_acquires_late_is_given_back(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        append(broker, "t", 1)
        append(broker, "t", 1, 2, partition=1)
        leaders.first_may_answer.clear()
        async with asyncio.timeout(20):
            assert await fetch() == 2
            assert await fetch(max_wait_s=0.1) == 0
        asked = leaders.asked
        waiting = asyncio.ensure_future(fetch())
        leaders.first_may_answer.set()
        async with asyncio.timeout(20):
            assert await waiting == 1
        assert leaders.asked < asked + FEW
        (records,) = await leaders.first.records("g", TopicPartition("t", 0)) or ()
        assert records.delivery_count == 1

    check(tmp_path, body)


def test_a_leader_that_does_not_take_acknowledgements_holds_up_no_other_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "_ACKNOWLEDGE_PATIENCE_S", 0.1)

    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        append(broker, "t", 1)
        assert await fetch() == 1
        append(broker, "t", 1, 2, partition=1)
        leaders.first_may_answer.clear()
        topic_id, accepted = broker.image.topics["t"].topic_id.bytes, (AcknowledgementBatch(0, 0, (1,)),)
        partitions = [
            ShareFetchPartition(TopicPartition("t", number), topic_id, True, batches)
            for number, batches in ((0, accepted), (1, ()))
        ]
        params = ShareFetchParams("g", "m", max_wait_s=30.0, min_bytes=1, max_bytes=1 << 20, max_records=500)
        async with asyncio.timeout(20):
            _, results = await ShareRouter(leaders).fetch(params, partitions)  # type: ignore[arg-type]
        assert [result.acquired_count for result in results] == [0, 2]
        assert [result.acknowledge_error for result in results] == [ErrorCode.REQUEST_TIMED_OUT, 0]
        assert [result.error for result in results] == [0, 0]
        leaders.first_may_answer.set()

    check(tmp_path, body)


def test_acknowledgements_alone_wait_longer_for_a_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is acquired whose locks may expire meanwhile."""
    monkeypatch.setattr(router, "_ACKNOWLEDGE_PATIENCE_S", 0.01)

    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        append(broker, "t", 1)
        append(broker, "t", 1, partition=1)
        assert await fetch() == 2
        leaders.first_may_answer.clear()
        topic_id, accepted = broker.image.topics["t"].topic_id.bytes, (AcknowledgementBatch(0, 0, (1,)),)
        partitions = [ShareFetchPartition(TopicPartition("t", each), topic_id, False, accepted) for each in (0, 1)]
        acknowledging = asyncio.ensure_future(
            ShareRouter(leaders).fetch(ShareFetchParams("g", "m"), partitions)  # type: ignore[arg-type]
        )
        assert not (await asyncio.wait([acknowledging], timeout=0.3))[0]
        leaders.first_may_answer.set()
        _, results = await acknowledging
        assert [result.acknowledge_error for result in results] == [0, 0]

    check(tmp_path, body)


def test_a_fetch_that_is_cancelled_has_the_answers_about_acknowledgements_that_have_come(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        append(broker, "t", 1)
        append(broker, "t", 1, partition=1)
        assert await fetch() == 2
        leaders.first_may_answer.clear()
        topic_id, accepted = broker.image.topics["t"].topic_id.bytes, (AcknowledgementBatch(0, 0, (1,)),)
        partitions = [ShareFetchPartition(TopicPartition("t", each), topic_id, False, accepted) for each in (0, 1)]
        acknowledged: dict[int, ShareFetchResult] = {}
        acknowledging = asyncio.ensure_future(
            ShareRouter(leaders).fetch(ShareFetchParams("g", "m"), partitions, acknowledged)  # type: ignore[arg-type]
        )
        while not acknowledged:
            await asyncio.sleep(0.001)
        acknowledging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acknowledging
        assert {index: result.acknowledge_error for index, result in acknowledged.items()} == {1: 0}

    check(tmp_path, body)


def test_one_answer_of_each_leader_tells_whether_a_group_is_read(tmp_path: Path) -> None:
    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        places = [TopicPartition("t", number) for number in (0, 0, 1, 1)]
        share_router = ShareRouter(leaders)  # type: ignore[arg-type]
        assert not await share_router.is_read("g", places)
        assert leaders.asked == 2
        append(broker, "t", 1, partition=1)
        assert await fetch() == 1
        assert await share_router.is_read("g", places)

    check(tmp_path, body)


def test_whether_a_group_is_read_is_not_known_while_a_leader_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "_IS_READ_TIMEOUT_S", 0.01)

    async def body(broker: LocalBroker, leaders: TwoLeaders, fetch: Any) -> None:
        places = [TopicPartition("t", number) for number in (0, 1)]
        share_router = ShareRouter(leaders)  # type: ignore[arg-type]
        leaders.first_may_answer.clear()
        with pytest.raises(RaykaError, match="does not answer") as refused:
            await share_router.is_read("g", places)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        leaders.first_may_answer.set()
        append(broker, "t", 1, partition=1)
        assert await fetch() == 1
        leaders.first_may_answer.clear()
        assert await share_router.is_read("g", places)  # The other one knows that somebody reads.
        monkeypatch.setattr(leaders, "locate", lambda _: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert not await share_router.is_read("g", places)

    check(tmp_path, body)
