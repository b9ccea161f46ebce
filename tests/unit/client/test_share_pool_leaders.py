"""What a pool of actors does while leaders of its partitions do not answer, or move, with actors in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share.consumer import AsyncShareConsumer
from rayka.client.share.pool import AsyncProcessingPool
from rayka.errors import ErrorCode
from rayka.gateway.ports import ShareLeaders
from rayka.share.config import AcquireMode
from rayka.share.record_state import AcknowledgeType
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import TopicPartition
from tests.unit.client.test_share_consumer import broker_config as broker_config
from tests.unit.client.test_share_consumer import cluster, configure, write
from tests.unit.client.test_share_pool import Accepting, lose_lease, member, until

__all__ = ["broker_config", "cluster"]  # fixtures
FIRST, SECOND = TopicPartition("tasks", 0), TopicPartition("tasks", 1)


class StandingLeaders:
    """The leaders of a cluster. Acknowledgements for `stopped` are not answered before `gate` is open, and
    those for `moved` are refused for now.

    `renewed` has the number of records of each renewal, and `acknowledged` that of each other acknowledgement.
    """

    def __init__(self, leaders: ShareLeaders) -> None:
        self.stopped: TopicPartition | None = None
        self.gate = asyncio.Event()
        self.moved: TopicPartition | None = None
        self.renewed: dict[TopicPartition, list[int]] = {FIRST: [], SECOND: []}
        self.acknowledged: dict[TopicPartition, list[int]] = {FIRST: [], SECOND: []}
        self._leaders = leaders

    async def fetch(
        self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any
    ) -> tuple[int, list[ShareFetchResult]]:
        said = {one.topic_partition: one.acknowledgement_batches for one in partitions if one.acknowledgement_batches}
        for partition, batches in said.items():
            is_renewal = batches[0].acknowledge_types == (AcknowledgeType.RENEW,)
            count = sum(batch.last_offset - batch.first_offset + 1 for batch in batches)
            (self.renewed if is_renewal else self.acknowledged)[partition].append(count)
        if self.stopped in said:
            await self.gate.wait()
        if self.moved in said:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return 0, [ShareFetchResult(acknowledge_error=code)] * len(partitions)
        return await self._leaders.fetch(params, partitions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leaders, name)


@pytest.fixture
def leaders(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> StandingLeaders:
    """In front of those of the cluster."""
    broker = cluster._connection.broker
    leaders = StandingLeaders(broker.share_leaders)
    monkeypatch.setattr(broker, "share_leaders", leaders)
    return leaders


def write_to_both(cluster: Cluster) -> None:
    cluster.admin().create_partitions({"tasks": 2})
    with cluster.producer() as producer:
        for partition in (0, 1):
            producer.send("tasks", b"task", partition=partition)


async def pool_of(cluster: Cluster, workers: list[Accepting], records: int) -> AsyncProcessingPool:
    """A pool that has leased so many records."""
    spawned = iter(workers)
    pool = AsyncProcessingPool(member(cluster, AsyncShareConsumer), lambda: next(spawned), len(workers))
    pool._ahead.records = 1
    await until(lambda: sum(len(worker.records) for worker in workers) + len(pool._waiting) == records)
    return pool


def test_a_leader_that_does_not_answer_lets_no_lock_at_others_expire(
    cluster: Cluster, leaders: StandingLeaders
) -> None:
    write_to_both(cluster)

    async def process() -> int:
        workers = [Accepting(), Accepting()]
        pool = await pool_of(cluster, workers, 2)
        leaders.stopped = FIRST
        already = len(leaders.renewed[SECOND])
        await until(lambda: len(leaders.renewed[SECOND]) >= already + 6)  # it takes more than the second of a lock
        leaders.gate.set()
        depth = await leaders.depth("workers", SECOND, cluster._connection.broker.image.topics["tasks"].topic_id.bytes)
        await pool.close(timeout_ms=0)
        return depth.acquired

    assert cluster._connection.loop.run(process()) == 1


def test_a_leader_that_does_not_answer_delays_no_acknowledgements_for_others(
    cluster: Cluster, leaders: StandingLeaders
) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write_to_both(cluster)

    async def process() -> int:
        workers = [Accepting(), Accepting()]
        pool = await pool_of(cluster, workers, 2)
        leaders.stopped = FIRST
        first, second = sorted(workers, key=lambda worker: worker.records[0].partition)
        first.gate.set()
        await until(lambda: bool(leaders.acknowledged[FIRST]))
        second.gate.set()
        await until(lambda: pool.counts.accepted == 1)
        leaders.gate.set()
        await pool.join(idle_ms=0, timeout_ms=30_000)
        await pool.close()
        return pool.counts.accepted

    assert cluster._connection.loop.run(process()) == 2


def test_locks_that_were_not_renewed_because_the_leader_moves_are_not_renewed_one_by_one(
    cluster: Cluster, leaders: StandingLeaders
) -> None:
    write(cluster, 2)

    async def process() -> set[int]:
        pool = await pool_of(cluster, [Accepting()], 2)
        leaders.renewed[FIRST].clear()
        leaders.moved = FIRST
        await until(lambda: len(leaders.renewed[FIRST]) >= 3)
        await pool.close(timeout_ms=0)
        return set(leaders.renewed[FIRST])

    assert cluster._connection.loop.run(process()) == {2}


def test_acknowledgements_are_sent_again_when_the_leader_has_moved(cluster: Cluster, leaders: StandingLeaders) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 2)

    async def process() -> tuple[int, int]:
        workers = [Accepting()]
        pool = await pool_of(cluster, workers, 2)
        leaders.moved = FIRST
        workers[0].gate.set()
        await until(lambda: len(leaders.acknowledged[FIRST]) >= 1)
        leaders.moved = None
        await pool.join(idle_ms=0, timeout_ms=30_000)
        await pool.close()
        return pool.counts.accepted, pool.counts.lost

    assert cluster._connection.loop.run(process()) == (2, 0)


def test_leases_that_a_new_leader_never_gave_do_not_lose_those_that_it_gave(
    cluster: Cluster, leaders: StandingLeaders
) -> None:
    """The new leader has leased the first record again, and does not know that the second one was ever leased."""
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 2)

    async def process() -> tuple[int, int]:
        workers = [Accepting()]
        pool = await pool_of(cluster, workers, 2)
        pool._ahead.records = 0
        await until(lambda: not pool._consumer._arrivals.is_fetching)  # it has no room for more
        pool._feeder.cancel()
        leaders.partitions.released(FIRST)
        member_id = pool._consumer._member.member_id
        topic_id = cluster._connection.broker.image.topics["tasks"].topic_id.bytes
        params = ShareFetchParams(
            "workers", member_id, 5.0, 1, 1 << 20, max_records=1, acquire_mode=AcquireMode.RECORD_LIMIT
        )
        _, (result,) = await leaders.fetch(params, [ShareFetchPartition(FIRST, topic_id)])
        assert result.acquired_offsets == [(0, 0)]
        workers[0].gate.set()
        await pool.join(idle_ms=0, timeout_ms=30_000)
        await pool.close()
        return pool.counts.accepted, pool.counts.lost

    assert cluster._connection.loop.run(process()) == (1, 1)


def test_one_lost_lease_costs_few_requests_which_do_not_wait_for_each_other(
    cluster: Cluster, leaders: StandingLeaders
) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    count = 16
    write(cluster, count)

    async def process() -> tuple[int, int]:
        worker = Accepting()
        consumer = member(cluster, AsyncShareConsumer)
        pool = AsyncProcessingPool(consumer, lambda: worker, 1)
        pool._ahead.records = count
        await until(lambda: len(worker.records) + len(pool._waiting) == count)
        pool._feeder.cancel()
        await until(lambda: not consumer._arrivals.is_fetching)
        await lose_lease(cluster, consumer, 0)
        leaders.stopped, whole = FIRST, leaders.gate
        worker.gate.set()
        await until(lambda: len(leaders.acknowledged[FIRST]) == 1)
        leaders.gate = asyncio.Event()
        whole.set()
        await until(lambda: len(leaders.acknowledged[FIRST]) == 3)
        leaders.gate.set()
        await pool.join(idle_ms=0, timeout_ms=30_000)
        await pool.close()
        return pool.counts.accepted, pool.counts.lost

    assert cluster._connection.loop.run(process()) == (count - 1, 1)
    assert len(leaders.acknowledged[FIRST]) < count


def test_after_their_locks_have_ended_no_acknowledgements_are_sent_again(
    cluster: Cluster, leaders: StandingLeaders
) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    count, before = 64, 1 + 2 + 4 + 8 + 16
    write(cluster, count)

    class AfterThose(asyncio.Event):
        async def wait(self) -> Literal[True]:
            return len(leaders.acknowledged[FIRST]) <= before or await super().wait()

    async def process() -> tuple[int, int, int]:
        worker, now_s = Accepting(), [0.0]
        consumer = member(cluster, AsyncShareConsumer)
        pool = AsyncProcessingPool(consumer, lambda: worker, 1)
        pool._ahead.records = count
        await until(lambda: len(worker.records) + len(pool._waiting) == count)
        pool._feeder.cancel()
        await until(lambda: not consumer._arrivals.is_fetching)
        for offset in range(0, count, 2):
            await lose_lease(cluster, consumer, offset)
        pool._commits._loop = cast("asyncio.AbstractEventLoop", SimpleNamespace(time=lambda: now_s[0]))
        leaders.stopped, leaders.gate = FIRST, AfterThose()
        worker.gate.set()
        await until(lambda: len(leaders.acknowledged[FIRST]) == before + 16)
        now_s[0] = 31.0
        leaders.gate.set()
        await until(lambda: pool.counts.lost == count)
        await pool.close()
        return pool.counts.accepted, pool.counts.lost, len(leaders.acknowledged[FIRST])

    assert cluster._connection.loop.run(process()) == (0, count, before + 16)
