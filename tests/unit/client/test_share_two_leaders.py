"""Acknowledgements for two leaders, of which one does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rayka.actors.channel.requests import ShareFetch
from rayka.actors.share.router import ShareRouter
from rayka.client.cluster import Cluster
from rayka.client.share import arrivals
from rayka.client.share.consumer import AsyncShareConsumer
from rayka.errors import RaykaError
from rayka.types import TopicPartition
from tests.support.local_share_leaders import LocalShareLeaders
from tests.unit.client.test_share_arrivals import EXPLICIT, at_home, held, long_locks
from tests.unit.client.test_share_consumer import broker_config as broker_config
from tests.unit.client.test_share_consumer import cluster, take

__all__ = ["broker_config", "cluster", "long_locks"]  # fixtures


class TwoLeaders:
    """The real router's way to the leader of each partition of the topic `tasks`.

    `acknowledged` has the partition of each acknowledgement that was sent. While `is_mute` nobody hears what the leader
    of the second partition says of one.
    """

    def __init__(self, leaders: LocalShareLeaders) -> None:
        self.acknowledged: list[int] = []
        self.is_mute = False
        self._leaders = leaders

    def locate(self, topic_partition: TopicPartition) -> tuple[str, int]:
        return str(topic_partition.partition), 0

    async def ask(self, name: str, request: Any, _timeout_s: float = 0) -> Any:
        acknowledges = isinstance(request, ShareFetch) and any(
            one.acknowledgement_batches for one in request.partitions
        )
        if acknowledges:
            self.acknowledged.append(int(name))
            if self.is_mute and name == "1":
                await asyncio.Event().wait()
        return await self._leaders._ask(request)


@pytest.fixture
def leaders(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> TwoLeaders:
    """Each leads a partition with one record."""
    cluster.admin().create_partitions({"tasks": 2})
    with cluster.producer() as producer:
        for number in range(2):
            producer.send("tasks", b"task", partition=number)
    broker = cluster._connection.broker
    leaders: Any = TwoLeaders(broker.share_leaders)
    router: Any = ShareRouter(leaders)
    router.partitions = broker.share_leaders.partitions  # for the end of the broker
    monkeypatch.setattr(broker, "share_leaders", router)
    return leaders


def test_close_sends_nothing_again_to_a_leader_that_has_answered(
    cluster: Cluster, leaders: TwoLeaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would refuse that, and a released record that the fetch has got again would count as delivered."""
    monkeypatch.setattr(arrivals, "_TO_END_S", 0.1)

    async def body(consumer: AsyncShareConsumer) -> None:
        for record in await held(consumer, 2):
            consumer.release(record, delay_ms=0)
        leaders.is_mute = True
        polling = asyncio.ensure_future(consumer.poll(timeout_ms=5000))
        while len(leaders.acknowledged) < 2:
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(consumer.close())
        while consumer._arrivals.is_fetching:
            await asyncio.sleep(0)
        leaders.is_mute = False
        await closing
        with pytest.raises(RaykaError, match="closed"):
            await polling

    at_home(cluster, body)
    assert sorted(leaders.acknowledged) == [0, 1, 1]
    assert "not acknowledged" not in caplog.text
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        assert [record.delivery_count for record in take(consumer, 2)] == [2, 2]
