"""What a pool of actors does with records, with actors in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share.consumer import AsyncShareConsumer, CommitResults
from rayka.client.share.pool import AsyncProcessingPool
from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.client.share.worker import Worker
from rayka.share.record_state import AcknowledgeType
from tests.unit.client.test_share_consumer import broker_config as broker_config
from tests.unit.client.test_share_consumer import cluster, configure, write

__all__ = ["broker_config", "cluster"]  # fixtures


class SlowConsumer(AsyncShareConsumer):
    """Acknowledgements are sent, but not before `gate` is open."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    def commit(self) -> Coroutine[Any, Any, CommitResults]:
        if not self._said:
            return super().commit()
        return self._later(super().commit())

    async def _later(self, work: Coroutine[Any, Any, CommitResults]) -> CommitResults:
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            work.close()
            raise
        return await work


class Accepting(Worker):
    """Accepts every record."""

    async def ready(self) -> None:
        """At once."""

    async def process(self, record: ShareRecord) -> RecordAcknowledgement:
        return RecordAcknowledgement(AcknowledgeType.ACCEPT)

    def kill(self) -> None:
        """Nothing is left."""


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_pool_waits_for_acknowledgements_that_are_under_way(cluster: Cluster, is_joined: bool) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    write(cluster, 1)
    loop = cluster._connection.loop

    async def process() -> int:
        consumer = SlowConsumer(
            cluster._connection.broker, "workers", ["tasks"],
            acknowledgement_mode="explicit", acquire_mode="record_limit",
        )  # fmt: skip
        pool = AsyncProcessingPool(consumer, lambda: Accepting(None), 1)
        await asyncio.wait_for(consumer.begun.wait(), 30)
        if is_joined:
            with pytest.raises(TimeoutError):
                await pool.join(idle_ms=0, timeout_ms=800)
        closing = asyncio.ensure_future(pool.close())
        await asyncio.sleep(0)
        consumer.gate.set()
        await closing
        return pool.counts.accepted

    assert loop.run(process()) == 1
    with cluster.share_consumer("workers", ["tasks"]) as other:
        assert other.poll(timeout_ms=300) == []
