"""Connections move to the process that leads what they ask for, over real sockets, and lose nothing on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop

from rayka.gateway.server.handover import Affinity
from rayka.gateway.server.listener import Listener
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.storage.format.records import Record, build_batch
from rayka.types import TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.requests import produce_v3
from tests.unit.gateway.test_listener import until
from tests.unit.gateway.wire_client import WireClient

RECORDS = bytes(build_batch([Record(0, 1, None, b"value", ())]))


class Pair:
    """Two listeners on one broker; the first believes that the second's process leads every partition."""

    def __init__(self, directory: Path) -> None:
        self.broker = LocalBroker(str(directory / "logs"))
        self.path = str(directory / "b.1.fds")
        self.first = Listener(self.broker)
        self.second = Listener(self.broker, handover_path=self.path)

    def leads_elsewhere(self, topic_partition: TopicPartition) -> str | None:
        return self.path

    async def start(self) -> None:
        await self.first.start()
        await self.second.start()
        self.broker.register("127.0.0.1", self.first.port)
        await self.broker.controller.create_topics([NewTopic("orders", 1)], validate_only=False, timeout_ms=1000)

    async def stop(self) -> None:
        await self.first.stop(1)
        await self.second.stop(1)
        self.broker.close()


def test_a_connection_moves_to_its_leader_and_every_request_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        pair = Pair(tmp_path)
        await pair.start()
        client = await WireClient.connect(pair.first.port)
        address = client.writer.get_extra_info("sockname")
        for _ in range(5):
            await client.ask(ApiKey.PRODUCE, 3, produce_v3(RECORDS))
        assert (pair.first.connections, pair.second.connections) == (1, 0)
        pair.broker.partitions.process_of = pair.leads_elsewhere  # type: ignore[method-assign]
        for _ in range(8):
            await client.ask(ApiKey.PRODUCE, 3, produce_v3(RECORDS))
        pair.broker.partitions.process_of = lambda topic_partition: None  # type: ignore[method-assign]
        await until(lambda: (pair.first.connections, pair.second.connections) == (0, 1))
        for _ in range(10):
            await client.ask(ApiKey.PRODUCE, 3, produce_v3(RECORDS))
        assert pair.second._context is not None
        (connection,) = pair.second._context.connections
        assert connection.client == f"{address[0]}:{address[1]}"
        assert pair.broker.partitions.replicas.get(TopicPartition("orders", 0)).log.log_end_offset == 23
        await client.close()
        await until(lambda: pair.second.connections == 0)
        await pair.stop()

    uvloop.run(main())


def test_a_connection_stays_when_the_other_process_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        pair = Pair(tmp_path)
        await pair.start()
        await pair.second.stop(1)
        pair.broker.partitions.process_of = pair.leads_elsewhere  # type: ignore[method-assign]
        client = await WireClient.connect(pair.first.port)
        for _ in range(30):
            await client.ask(ApiKey.PRODUCE, 3, produce_v3(RECORDS))
        assert pair.first.connections == 1
        await client.close()
        await pair.stop()

    asyncio.run(main())


def test_only_requests_for_one_process_in_a_row_move_a_connection_and_each_move_takes_more() -> None:
    affinity = Affinity()
    for path in ["a"] * 7 + ["b"] * 7 + [None] + ["a"] * 7:
        affinity.note(path)
        assert not affinity.is_due
    affinity.note("a")
    assert affinity.is_due
    moved = Affinity(moves=3)
    for _ in range(63):
        moved.note("a")
    assert not moved.is_due
    moved.note("a")
    assert moved.is_due
