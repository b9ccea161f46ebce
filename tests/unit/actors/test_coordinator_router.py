"""Where requests to coordinators go, and what comes back when a coordinator is not there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from rayka.actors.channel.messages import MessageCodec
from rayka.actors.channel.requests import Coordinate
from rayka.actors.channel.socket import ChannelClosed
from rayka.actors.coordinator.router import CoordinatorRouter
from rayka.config import BrokerConfig
from rayka.coordinator.transactions.requests import InitProducerIdRequest, ListTransactionsRequest
from rayka.coordinator.transactions.spec import TRANSACTIONS
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import NewTopic, TopicResult
from rayka.metadata.image import MetadataImage
from rayka.metadata.values import BrokerImage, PartitionImage, TopicImage
from rayka.types import TopicPartition

CODEC = MessageCodec(TRANSACTIONS.message_types())
REQUEST = InitProducerIdRequest("t", 60_000, new_producer_id=5)
LEADERS = (1, 2, 1)
"""Brokers of the partitions; by default transactional id "t" belongs to partition 16, and of three to partition 2."""

T = TypeVar("T")


def image_with(leaders: tuple[int, ...]) -> MetadataImage:
    partitions = tuple(
        PartitionImage(number, leader, 0, (leader,), (leader,), 0, (f"actor-{number}",))
        for number, leader in enumerate(leaders)
    )
    topic = TopicImage(TRANSACTIONS.topic, uuid.uuid4(), partitions, is_internal=True)
    brokers = {number: BrokerImage(number, f"host-{number}", 9092, None, False, "node", 1) for number in (1, 2)}
    return MetadataImage(version=1, topics={topic.name: topic} if leaders else {}, brokers=brokers)


class Cluster:
    """Actors that answer with what they are asked, or with `answer`, and a controller that creates the topic."""

    def __init__(self, leaders: tuple[int, ...] = LEADERS, answer: Any = None, is_in_process: bool = False) -> None:
        self.image = image_with(leaders)
        self.answer = answer
        self.is_in_process = is_in_process
        self.asked: list[tuple[str, int]] = []
        self.created: list[NewTopic] = []
        self.creation = ErrorCode.NONE
        config = BrokerConfig.parse({})
        self.router = CoordinatorRouter(
            TRANSACTIONS, cast(Any, self), cast(Any, self), lambda: self.image, lambda: config
        )

    def locate(self, topic_partition: TopicPartition) -> tuple[str, int] | ErrorCode:
        partition = self.image.partition(topic_partition)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return (partition.actors[0], 0) if partition.leader > 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def link(self, actor_name: str) -> Any:
        def ask(request: Coordinate, done: Callable[[Any], None], timeout_s: float) -> None:
            self.asked.append((actor_name, request.partition))
            assert request.coordinator == TRANSACTIONS.name
            assert isinstance(request.message, bytes) is not self.is_in_process
            done(request.message if self.answer is None else self.answer)

        return SimpleNamespace(is_in_process=self.is_in_process, ask=ask)

    async def create_topics(self, topics: list[NewTopic], *, validate_only: bool, timeout_ms: int) -> list[TopicResult]:
        self.created += topics
        await asyncio.sleep(0)
        if self.creation is not ErrorCode.INVALID_REPLICATION_FACTOR:
            self.image = image_with(LEADERS)
        return [TopicResult(TRANSACTIONS.topic, error=self.creation)]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


def refusal(cluster: Cluster) -> ErrorCode:
    with pytest.raises(RaykaError) as refused:
        run(cluster.router.execute(REQUEST))
    return refused.value.code


@pytest.mark.parametrize("is_in_process", [True, False])
def test_a_request_goes_to_the_leader_of_the_partition_of_its_key(is_in_process: bool) -> None:
    """In another process as bytes."""
    cluster = Cluster(is_in_process=is_in_process)
    assert run(cluster.router.execute(REQUEST)) == REQUEST
    assert cluster.asked == [("actor-2", 2)]


def test_keys_are_spread_over_the_partitions_that_the_topic_has_or_will_have() -> None:
    assert Cluster().router.partition_of("t") == 2
    assert Cluster(leaders=()).router.partition_of("t") == 16


def test_a_query_goes_to_all_coordinators_or_to_those_of_one_node() -> None:
    cluster = Cluster()
    assert len(run(cluster.router.execute_all(ListTransactionsRequest()))) == 3
    assert len(run(cluster.router.execute_all(ListTransactionsRequest(), node_id=1))) == 2
    assert [number for _, number in cluster.asked] == [0, 1, 2, 0, 2]
    assert run(Cluster(leaders=()).router.execute_all(ListTransactionsRequest())) == []


@pytest.mark.parametrize(
    ("cluster", "error"),
    [
        (Cluster(leaders=()), ErrorCode.NOT_COORDINATOR),
        (Cluster(leaders=(1, 2, -1)), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (Cluster(answer=ChannelClosed("gone", True)), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (Cluster(answer=RaykaError(ErrorCode.REQUEST_TIMED_OUT)), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (Cluster(answer=RaykaError(ErrorCode.INVALID_REQUEST)), ErrorCode.INVALID_REQUEST),
        (Cluster(answer=CODEC.encode(RaykaError(ErrorCode.NOT_COORDINATOR))), ErrorCode.NOT_COORDINATOR),
    ],
    ids=["no topic", "no leader", "leader gone", "no answer in time", "no such request", "refused"],
)
def test_an_error_on_the_way_to_the_coordinator_is_raised(cluster: Cluster, error: ErrorCode) -> None:
    assert refusal(cluster) is error


def test_a_list_fails_with_a_retriable_error_while_a_coordinator_starts() -> None:
    """Kafka's admin client gives up on a list after NOT_COORDINATOR."""
    cluster = Cluster(answer=CODEC.encode(RaykaError(ErrorCode.NOT_COORDINATOR)))
    with pytest.raises(RaykaError) as refused:
        run(cluster.router.execute_all(ListTransactionsRequest()))
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("creation", [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS])
def test_the_topic_is_created_once_when_coordinators_are_first_looked_for(creation: ErrorCode) -> None:
    """Another process may create it at the same time."""
    cluster = Cluster(leaders=())
    cluster.creation = creation

    async def look() -> list[BrokerImage]:
        return await asyncio.gather(*(cluster.router.coordinator_of("t") for _ in range(3)))

    assert [broker.host for broker in run(look())] == ["host-1"] * 3
    assert [topic.name for topic in cluster.created] == [TRANSACTIONS.topic]


def test_a_topic_that_cannot_be_created_leaves_no_coordinator() -> None:
    cluster = Cluster(leaders=())
    cluster.creation = ErrorCode.INVALID_REPLICATION_FACTOR
    with pytest.raises(RaykaError, match="INVALID_REPLICATION_FACTOR") as refused:
        run(cluster.router.coordinator_of("t"))
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
