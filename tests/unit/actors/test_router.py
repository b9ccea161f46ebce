"""What becomes of appends under way when their leader's actor starts again."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rayka.actors.channel.actor_link import ActorLeaderClient
from rayka.actors.channel.requests import DeleteRecords, DescribeLogDir, encode_value
from rayka.actors.channel.router import Router
from rayka.actors.channel.socket import CONNECT_TIMEOUT_S, ChannelClosed
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import MetadataImage, PartitionImage, TopicImage
from rayka.metadata.values import ActorImage, BrokerImage
from rayka.types import (
    AppendParams,
    AppendRequest,
    AppendResult,
    FetchPartition,
    IsolationLevel,
    LogDirDescription,
    TopicPartition,
)
from tests.support.logs import batch

NAME = TopicPartition("orders", 0)
PARAMS = AppendParams(-1, 10_000)
APPEND = [AppendRequest(NAME, memoryview(bytearray(batch(b"value"))))]
REFUSED = [AppendResult(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))]


class Cluster:
    """One partition, whose leader's actor has started `starts` times and does not listen yet."""

    def __init__(self, directory: Path) -> None:
        self.starts = 1
        self._image = self._build()
        self.router = Router(lambda: self._image, "node", str(directory), "test")

    def start_again(self) -> None:
        self.starts += 1
        self._image = self._build()

    def _build(self) -> MetadataImage:
        partition = PartitionImage(0, 1, self.starts, (1,), (1,), self.starts, ("leader",))
        return MetadataImage(
            brokers={1: BrokerImage(1, "localhost", 9092, None, False, "node", 1)},
            topics={"orders": TopicImage("orders", uuid.UUID(int=5), (partition,), is_internal=False)},
            actors={"leader": ActorImage("leader", 1, "/logs", self.starts, True)},
        )


def test_appends_that_wait_for_an_earlier_start_end_when_the_image_shows_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        waiting = cluster.router.append(APPEND, PARAMS)
        cluster.start_again()
        cluster.router.image_changed()
        assert await asyncio.wait_for(waiting, CONNECT_TIMEOUT_S / 2) == REFUSED
        await asyncio.sleep(0)
        later = cluster.router.append(APPEND, PARAMS)
        assert not later.done(), "it waits for the actor to listen"
        cluster.router.close()
        assert await later == REFUSED

    asyncio.run(main())


def test_no_append_overtakes_those_that_an_earlier_start_lost(tmp_path: Path) -> None:
    async def main() -> None:
        for requests in (APPEND, [*APPEND, *APPEND]):
            cluster = Cluster(tmp_path)
            waiting = cluster.router.append(requests, PARAMS)
            cluster.start_again()
            overtaking = cluster.router.append(requests, PARAMS)
            assert (await waiting, await overtaking) == (REFUSED * len(requests), REFUSED * len(requests))
            cluster.router.close()

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 2])
def test_appends_keep_the_topic_id_on_their_way(count: int, tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        sent: list[AppendRequest] = []
        link: Any = SimpleNamespace(append=lambda requests, params, done: sent.extend(requests))
        router = Router(lambda: cluster._image, "node", str(tmp_path), "test", own={"leader": link})
        router.append([APPEND[0]._replace(topic_id=bytes(16))] * count, PARAMS)
        assert [(request.leader_epoch, request.topic_id) for request in sent] == [(1, bytes(16))] * count

    asyncio.run(main())


def test_leaders_on_this_node_are_told_from_those_on_others(tmp_path: Path) -> None:
    """A fetch gets the places of records in files from the former, and bytes that it has to hold from the latter."""

    async def main() -> None:
        cluster = Cluster(tmp_path)
        assert cluster.router.are_on_this_node([NAME, TopicPartition("unknown", 0)])
        elsewhere = Router(lambda: cluster._image, "another node", str(tmp_path), "test")
        assert not elsewhere.are_on_this_node([TopicPartition("unknown", 0), NAME])

    asyncio.run(main())


def test_no_request_goes_to_an_actor_of_the_same_name_in_another_ray_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program may have left the first cluster and joined another one."""
    requests: list[object] = []
    leader = SimpleNamespace(serve=SimpleNamespace(remote=lambda *request: requests.append(request)))
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: leader)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "in the second"))

    async def main() -> None:
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        ActorLeaderClient("leader", "test", "in the first").ask(DescribeLogDir(), answer.set_result)
        failure = await asyncio.wait_for(answer, 60)
        assert isinstance(failure, ChannelClosed)
        assert not failure.sent
        assert requests == []

    asyncio.run(main())


def test_requests_to_another_node_end_when_their_link_is_closed() -> None:
    async def main() -> None:
        client = ActorLeaderClient("leader", "test", "node")
        never = asyncio.get_running_loop().create_future()
        client._handle = SimpleNamespace(serve=SimpleNamespace(remote=lambda *_: never))
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        client.ask(DescribeLogDir(), answer.set_result)
        client.close()
        failure = await asyncio.wait_for(answer, 60)
        assert isinstance(failure, ChannelClosed)
        assert failure.sent
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_request_to_another_node_has_one_outcome() -> None:
    """Also if its answer comes when it is cancelled, or when the link is closed."""

    async def main() -> None:
        client = ActorLeaderClient("leader", "test", "node")
        calls: list[asyncio.Future[object]] = []

        def call(*_: object) -> asyncio.Future[object]:
            calls.append(asyncio.get_running_loop().create_future())
            return calls[-1]

        client._handle = SimpleNamespace(serve=SimpleNamespace(remote=call))
        answers: list[Any] = []
        client.ask(DescribeLogDir(), answers.append)
        client.cancel(client._submit(DescribeLogDir(), b"", answers.append, 60))
        cancelled = client._submit(DescribeLogDir(), b"", answers.append, 60)
        await asyncio.sleep(0)
        for each in calls:
            each.set_result((False, encode_value(LogDirDescription(0, "/d"))))
        client.cancel(cancelled)
        client.close()
        for _ in range(5):
            await asyncio.sleep(0)
        (answer,) = answers
        assert isinstance(answer, ChannelClosed)

    asyncio.run(main())


def test_requests_to_another_node_have_an_outcome_whatever_fails() -> None:
    """An answer that can't be read, or another caller, which fails with its own."""

    async def main() -> None:
        client = ActorLeaderClient("leader", "test", "node")
        calls: list[asyncio.Future[object]] = []

        def call(*_: object) -> asyncio.Future[object]:
            calls.append(asyncio.get_running_loop().create_future())
            return calls[-1]

        client._handle = SimpleNamespace(serve=SimpleNamespace(remote=call))
        answers: list[Any] = []
        client.ask(DescribeLogDir(), answers.append)
        await asyncio.sleep(0)
        calls[0].set_exception(ValueError("it can't be unpickled"))
        for _ in range(5):
            await asyncio.sleep(0)
        client.ask(DescribeLogDir(), _fail)
        client.ask(DescribeLogDir(), answers.append)
        client.close()
        assert [each.sent for each in answers] == [True, True]

    asyncio.run(main())


def _fail(answer: Any) -> None:
    raise ZeroDivisionError("unexpected")


def test_a_request_to_another_node_that_can_not_be_sent_fails_alone() -> None:
    async def main() -> None:
        client = ActorLeaderClient("leader", "test", "node")

        def forgotten(*_: object) -> None:
            raise Exception("Ray does not know the actor any more")

        client._handle = SimpleNamespace(serve=SimpleNamespace(remote=forgotten))
        answers: list[Any] = []
        client.ask(DeleteRecords(((NAME, 2**70),)), answers.append)
        client.ask(DescribeLogDir(), answers.append)
        client.cancel(client._submit(DescribeLogDir(), b"", answers.append, 60))
        assert not answers
        await asyncio.sleep(0)
        impossible, unsent = answers
        assert isinstance(impossible, RaykaError)
        assert isinstance(unsent, ChannelClosed)
        assert not unsent.sent
        assert client._handle is None, "it is looked up again"

    asyncio.run(main())


def test_a_fetch_that_is_given_up_cancels_what_it_sent_and_opens_no_other_link(tmp_path: Path) -> None:
    async def main() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        cluster = Cluster(tmp_path)
        fetch = cluster.router.fetch(
            [FetchPartition(NAME, 0, 1 << 20)],
            max_wait_ms=60_000,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation=IsolationLevel.READ_UNCOMMITTED,
        )
        link = cluster.router.link("leader")
        cluster.start_again()
        fetch.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not problems
        assert cluster.router._links["leader"][1] is link
        cluster.router.close()

    asyncio.run(main())


def test_names_that_no_topic_has_are_not_remembered(tmp_path: Path) -> None:
    async def main() -> None:
        router = Cluster(tmp_path).router
        assert router.process_of(NAME) is not None
        for number in range(100):
            assert router.process_of(TopicPartition(f"unknown-{number}", 0)) is None
            assert router.process_of(TopicPartition("orders", 1 + number)) is None
        assert list(router._processes) == [NAME]

    asyncio.run(main())
