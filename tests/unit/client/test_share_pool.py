"""What a pool of actors does with records, with actors in this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share.consumer import AsyncShareConsumer
from rayka.client.share.pool import AsyncProcessingPool
from rayka.client.share.record_socket import ProcessedRecord
from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.client.share.records_ahead import RecordsAhead
from rayka.client.share.worker import OnLost, OnProcessed, Worker
from rayka.errors import RaykaError
from rayka.share.record_state import AcknowledgeType
from rayka.types import TopicIdPartition
from tests.unit.client.test_share_consumer import broker_config as broker_config
from tests.unit.client.test_share_consumer import cluster, configure, write

__all__ = ["broker_config", "cluster"]  # fixtures
C = TypeVar("C", bound=AsyncShareConsumer)


class SlowConsumer(AsyncShareConsumer):
    """Acknowledgements are sent, but not before `gate` is open."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    def commit_partition(self, partition: TopicIdPartition) -> Coroutine[Any, Any, RaykaError | None]:
        return self._later(super().commit_partition(partition))

    async def _later(self, work: Coroutine[Any, Any, RaykaError | None]) -> RaykaError | None:
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            work.close()
            raise
        return await work


class Accepting(Worker):
    """Accepts every record, once `gate` is open. It has been given `given`, a list for each time."""

    def __init__(self) -> None:
        super().__init__(None)
        self.gate = asyncio.Event()
        self.given: list[list[ShareRecord]] = []
        self.processing: set[asyncio.Task[None]] = set()

    async def ready(self, on_processed: OnProcessed, on_lost: OnLost) -> None:
        """At once."""
        self._on_processed, self._on_lost = on_processed, on_lost

    def serve(self) -> None:
        """It does."""

    def give(self, records: Sequence[ShareRecord]) -> None:
        self.given.append(list(records))
        self.records.extend(records)
        self.processing.add(asyncio.ensure_future(self._process(len(records))))

    async def _process(self, count: int) -> None:
        await self.gate.wait()
        for _ in range(min(count, len(self.records))):
            self._on_processed(self, [ProcessedRecord(self.acknowledgement(self.records[0]), seconds=0.0)])

    def acknowledgement(self, record: ShareRecord) -> RecordAcknowledgement:
        return RecordAcknowledgement(AcknowledgeType.ACCEPT)

    def die(self, begun: int = 1) -> None:
        """As if its process were killed."""
        self._on_lost(self, begun)

    def kill(self) -> None:
        """Nothing is left."""


def member(cluster: Cluster, kind: type[C]) -> C:
    """The member of a pool."""
    broker = cluster._connection.broker
    return kind(broker, "workers", ["tasks"], acknowledgement_mode="explicit", acquire_mode="record_limit")


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_pool_waits_for_acknowledgements_that_are_under_way(cluster: Cluster, is_joined: bool) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 1)

    async def process() -> int:
        consumer = member(cluster, SlowConsumer)
        worker = Accepting()
        worker.gate.set()
        pool = AsyncProcessingPool(consumer, lambda: worker, 1)
        await asyncio.wait_for(consumer.begun.wait(), 60)
        if is_joined:
            with pytest.raises(TimeoutError):
                await pool.join(idle_ms=0, timeout_ms=800)
        closing = asyncio.ensure_future(pool.close())
        await asyncio.sleep(0)
        consumer.gate.set()
        await closing
        return pool.counts.accepted

    assert cluster._connection.loop.run(process()) == 1
    with cluster.share_consumer("workers", ["tasks"]) as other:
        assert other.poll(timeout_ms=300) == []


class BrokenConsumer(AsyncShareConsumer):
    """No commit succeeds, for a reason that nobody expects."""

    async def commit_partition(self, partition: TopicIdPartition) -> RaykaError | None:
        raise MemoryError(str(partition))


@pytest.mark.parametrize("is_joined", [True, False])
def test_the_error_of_a_commit_comes_to_the_user_as_itself(cluster: Cluster, is_joined: bool) -> None:
    write(cluster, 1)

    async def process() -> None:
        worker = Accepting()
        worker.gate.set()
        pool = AsyncProcessingPool(member(cluster, BrokenConsumer), lambda: worker, 1)
        await until(lambda: pool._failure is not None)
        with pytest.raises(MemoryError, match="tasks") as raised:
            await (pool.join(timeout_ms=30_000) if is_joined else pool.close())
        assert raised.value.__context__ is None
        with contextlib.suppress(MemoryError):
            await pool.close()

    cluster._connection.loop.run(process())


async def lose_lease(cluster: Cluster, consumer: AsyncShareConsumer, offset: int) -> None:
    """Anybody may get the record now; the consumer does not know it."""
    leaders = cluster._connection.broker.share_leaders
    ((partition, topic_id),) = consumer._member.assignment.items()
    await leaders.give_back("workers", consumer._member.member_id, partition, topic_id.bytes, [(offset, offset)])


@pytest.mark.parametrize(("count", "accepted", "lost"), [(1, 1, 0), (3, 2, 1)])
def test_a_lost_lease_neither_ends_the_pool_nor_loses_other_acknowledgements(
    cluster: Cluster, count: int, accepted: int, lost: int
) -> None:
    """With one record the pool itself gets it again, and processes it twice; with three it has no room for it."""
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, count)

    async def process() -> tuple[int, int]:
        consumer, worker = member(cluster, AsyncShareConsumer), Accepting()
        pool = AsyncProcessingPool(consumer, lambda: worker, 1)
        pool._ahead.records = 1
        await until(lambda: len(worker.records) + len(pool._waiting) == count)
        await lose_lease(cluster, consumer, 0)
        await until(lambda: len(worker.records) == 2)
        pool._feeder.cancel()
        worker.gate.set()
        await pool.join(idle_ms=0, timeout_ms=30_000)
        await pool.close()
        return pool.counts.accepted, pool.counts.lost

    assert cluster._connection.loop.run(process()) == (accepted, lost)


def test_a_processed_record_of_a_deleted_topic_accepts_none_of_the_next_topic(cluster: Cluster) -> None:
    """They have the same offset, and nobody has processed the new one."""
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 1)

    def create_again() -> None:
        cluster.admin().delete_topic("tasks")
        cluster.admin().create_topic("tasks", partitions=1)
        write(cluster, 1)

    async def process() -> tuple[bool, int]:
        consumer, workers = member(cluster, AsyncShareConsumer), [Accepting(), Accepting()]
        spawned = iter(workers)
        pool = AsyncProcessingPool(consumer, lambda: next(spawned), 2)
        await until(lambda: any(worker.given for worker in workers))
        old, new = sorted(workers, key=lambda worker: not worker.given)
        await asyncio.to_thread(create_again)
        await until(lambda: bool(new.given))
        old.gate.set()
        await until(lambda: not old.records and pool._commits.is_empty)
        is_held = consumer.holds(new.records[0])
        new.gate.set()
        await pool.join(idle_ms=0, timeout_ms=30_000)
        await pool.close()
        return is_held, pool.counts.accepted

    assert cluster._connection.loop.run(process()) == (True, 1)


class Releasing(Accepting):
    """Releases each record once, without taking any time."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.set()

    def acknowledgement(self, record: ShareRecord) -> RecordAcknowledgement:
        if record.delivery_count == 1:
            return RecordAcknowledgement(AcknowledgeType.RELEASE, 0)
        return RecordAcknowledgement(AcknowledgeType.ACCEPT)


def test_quick_records_are_sent_together_and_redelivered_ones_alone(cluster: Cluster) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 50)

    async def process() -> list[list[ShareRecord]]:
        worker = Releasing()
        pool = AsyncProcessingPool(member(cluster, AsyncShareConsumer), lambda: worker, 1)
        await until(lambda: pool.counts.accepted == 50)
        await pool.close()
        return worker.given

    given = cluster._connection.loop.run(process())
    assert len(given[0]) == 1, "it is not known yet how long a record takes"
    assert max(map(len, given)) > 5
    assert all(len(one) == 1 for one in given if any(record.delivery_count == 2 for record in one))


@pytest.mark.parametrize(("begun", "released"), [(1, 1), (2, 2)])
def test_records_that_a_dead_actor_had_begun_are_released_and_the_rest_goes_to_another(
    cluster: Cluster, begun: int, released: int
) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 2)
    workers = [Accepting(), Accepting()]
    spawned = iter(workers)

    async def process() -> tuple[int, int, int]:
        pool = AsyncProcessingPool(member(cluster, AsyncShareConsumer), lambda: next(spawned), 1)
        pool._ahead.records = 1
        await until(lambda: len(workers[0].records) == 2)
        workers[0].die(begun)
        workers[0].die(begun)  # Ray noticed it too
        await until(lambda: len(workers[1].records) == 2)
        workers[1].gate.set()
        await pool.join(idle_ms=0, timeout_ms=30_000)
        await pool.close()
        return pool.counts.accepted, pool.counts.released, pool.counts.lost

    assert cluster._connection.loop.run(process()) == (2, released, 0)
    deliveries = {record.offset: record.delivery_count for each in workers[1].given for record in each}
    assert deliveries == {offset: 1 + (offset < begun) for offset in range(2)}


class Standing(Accepting):
    """It is stopped, and may have begun one record."""

    begun = 1


@pytest.mark.parametrize(("kind", "begun"), [(Standing, 1), (Accepting, 2)])
def test_an_actor_that_exceeds_max_processing_ms_is_killed(cluster: Cluster, kind: type[Accepting], begun: int) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 2)
    workers = [kind(), Accepting()]
    workers[1].gate.set()
    spawned = iter(workers)

    async def process() -> tuple[int, int, int]:
        consumer = member(cluster, AsyncShareConsumer)
        pool = AsyncProcessingPool(consumer, lambda: next(spawned), 1, max_processing_ms=200)
        pool._ahead.records = 1
        await until(lambda: pool.counts.accepted == 2)
        await pool.close()
        return pool.counts.accepted, pool.counts.released, pool.counts.lost

    assert cluster._connection.loop.run(process()) == (2, begun, 0)
    deliveries = {record.offset: record.delivery_count for each in workers[1].given for record in each}
    assert deliveries == {offset: 1 + (offset < begun) for offset in range(2)}


def test_a_pause_of_the_program_kills_no_actor(cluster: Cluster) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 1)

    async def process() -> int:
        worker = Accepting()
        consumer = member(cluster, AsyncShareConsumer)
        pool = AsyncProcessingPool(consumer, lambda: worker, 1, max_processing_ms=500)
        await until(lambda: len(worker.records) == 1)
        worker.gate.set()
        time.sleep(1)  # the loop stands still
        await pool.join(idle_ms=0, timeout_ms=60_000)
        await pool.close()
        return pool.counts.accepted

    assert cluster._connection.loop.run(process()) == 1


@pytest.mark.parametrize("refused", [{"actors": 0}, {"actors": 1, "max_processing_ms": 0}])
def test_a_pool_with_invalid_settings_is_refused(cluster: Cluster, refused: dict[str, int]) -> None:
    async def process() -> None:
        AsyncProcessingPool(member(cluster, AsyncShareConsumer), Accepting, **refused)

    with pytest.raises(RaykaError, match=list(refused)[-1]):
        cluster._connection.loop.run(process())


@pytest.mark.parametrize(
    ("record_s", "size", "records"),
    [(0.011, 10, 1), (0.004, 10, 5), (0.004, 100_000, 2), (0.0, 10, 16), (0.1, 10, 1), (0.2, 10, 0), (0.0, 1 << 20, 1)],
)
def test_as_many_records_wait_at_an_actor_as_are_quickly_processed(record_s: float, size: int, records: int) -> None:
    ahead = RecordsAhead()
    for _ in range(3):
        ahead.processed(ShareRecord("tasks", 0, 0, 0, None, b"x" * size, (), 1), record_s)
    assert ahead.records == records


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)
