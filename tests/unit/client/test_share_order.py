"""The order in which a share consumer asks for its partitions."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence

import pytest

from rayka.actors.channel.requests import ShareFetch, ShareFetched
from rayka.actors.share.router import ShareRouter
from rayka.client.cluster import Cluster
from rayka.client.share import leaders as leaders_module
from rayka.client.share.arrivals import _next_order
from rayka.client.share.leaders import is_full
from rayka.share.acquire import AcquiredRecords
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.testing import wait_until
from rayka.types import TopicIdPartition, TopicPartition
from tests.unit.client.test_share_consumer import broker_config as broker_config
from tests.unit.client.test_share_consumer import cluster as cluster

__all__ = ["broker_config", "cluster"]  # fixtures
MAX_RECORDS = 500


class ManyLeaders:
    """The leaders of partitions, asked by the real router. `available` is how many records each partition has."""

    def __init__(self, leaders: Sequence[int], available: list[int]) -> None:
        self._leaders = leaders
        self.available = available

    def locate(self, topic_partition: TopicPartition) -> tuple[str, int]:
        return str(self._leaders[topic_partition.partition]), 0

    async def ask(self, _name: str, request: ShareFetch, _timeout_s: float = 0) -> ShareFetched:
        left, results = request.params.max_records, []
        for partition in request.partitions:
            number = partition.topic_partition.partition
            count = min(left, self.available[number])
            left -= count
            self.available[number] -= count
            results.append(ShareFetchResult(acquired=(AcquiredRecords(0, count - 1, 1),) if count else ()))
        return ShareFetched(30_000, tuple(results), False)


@pytest.mark.parametrize(("partitions", "leader_count"), [(2, 1), (3, 1), (4, 2), (6, 2), (6, 3), (12, 3)])
def test_no_partition_waits_for_more_fetches_than_there_are_partitions(partitions: int, leader_count: int) -> None:
    """Some have more records than are read, some a few now and then, and some none."""
    for seed in range(25):
        waited = asyncio.run(longest_waits(partitions, leader_count, random.Random(seed)))
        assert max(waited) < partitions, f"seed {seed}: {waited}"


async def longest_waits(partitions: int, leader_count: int, choose: random.Random) -> list[int]:
    """How many fetches in a row brought no records of a partition that had some, for each partition."""
    most = [choose.choice([0, 10, 10**9]) for _ in range(partitions)]
    leaders = ManyLeaders([choose.randrange(leader_count) for _ in most], [0] * partitions)
    router = ShareRouter(leaders)  # type: ignore[arg-type]
    params = ShareFetchParams("workers", "member", max_bytes=1, max_records=MAX_RECORDS)
    order = [TopicIdPartition(uuid.UUID(int=1), TopicPartition("tasks", number)) for number in range(partitions)]
    choose.shuffle(order)
    waiting, longest = [0] * partitions, [0] * partitions
    for _ in range(60):
        for number, count in enumerate(most):
            leaders.available[number] = max(leaders.available[number], choose.choice([0, count]))
        before = tuple(leaders.available)
        asked = [ShareFetchPartition(one.topic_partition, one.topic_id.bytes) for one in order]
        _, results = await router.fetch(params, asked)
        had_records = [bool(result.acquired) for result in results]
        order = list(_next_order(order, had_records, is_full=is_full(results, MAX_RECORDS)))
        for number, count in enumerate(before):
            waiting[number] = waiting[number] + 1 if count and leaders.available[number] == count else 0
            longest[number] = max(longest[number], waiting[number])
    return longest


def test_a_partition_with_large_records_holds_up_no_other(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is full of bytes before it has as many records as a poll may return."""
    monkeypatch.setattr(leaders_module, "_MAX_BYTES", 3000)
    cluster.admin().create_partitions({"tasks": 3})
    with cluster.producer(linger_ms=0) as producer:
        for number in (0,) * 30 + (1,) * 20 + (2,):
            producer.send("tasks", bytes(1000), partition=number).get()
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        wait_until(lambda: len(consumer._core._member.assignment) == 3, 60, "it has all partitions")
        read: list[int] = []
        while 2 not in read:
            for record in consumer.poll(timeout_ms=500):
                read.append(record.partition)
                consumer.accept(record)
        assert len(read) < 30
