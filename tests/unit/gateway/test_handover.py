"""Connections move to the process that leads what they ask for, over real sockets, and lose nothing on the way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rayka.coordinator.groups.spec import OFFSETS_TOPIC
from rayka.coordinator.transactions.spec import TRANSACTION_STATE_TOPIC
from rayka.gateway.server.handover import Affinity
from rayka.gateway.server.listener import Listener
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.storage.format.records import Record, build_batch
from rayka.types import TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking_groups import ask, commit_errors, committing
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
        assert not os.get_inheritable(connection._transport.get_extra_info("socket").fileno())
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


class Placed:
    """What an `Affinity` asks: the processes of partitions, `coordinator` of all groups and transactional ids."""

    def __init__(self) -> None:
        self.partitions = self
        self.groups = self
        self.transactions = self
        self.coordinator: str | None = "c"

    def process_of(self, topic_partition: TopicPartition) -> str | None:
        if topic_partition.topic in (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
            return self.coordinator
        return None if topic_partition.topic == "here" else topic_partition.topic

    def partition_of(self, group_id: str) -> int:
        return 3


def affinity_of(moves: int = 0) -> Affinity:
    broker: Any = Placed()
    return Affinity(broker, moves)


def test_consecutive_requests_for_one_process_move_a_connection_and_each_move_needs_more() -> None:
    affinity = affinity_of()
    for topic in ["a"] * 7 + ["b"] * 7 + ["here"] + ["a"] * 7:
        affinity.follow([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        assert not affinity.is_due
    affinity.follow([TopicPartition("a", 0), TopicPartition("b", 0)])
    for _ in range(8):
        assert not affinity.is_due
        affinity.follow([TopicPartition("a", 0)])
    assert affinity.is_due
    moved = affinity_of(moves=3)
    for _ in range(64):
        assert not moved.is_due
        moved.follow([TopicPartition("a", 0)])
    assert moved.is_due


@pytest.mark.parametrize("follow", [Affinity.follow_group, Affinity.follow_transaction])
def test_a_connection_follows_its_coordinator_unless_it_carries_records(
    follow: Callable[[Affinity, str], None],
) -> None:
    affinity = affinity_of()
    for _ in range(8):
        assert not affinity.is_due
        follow(affinity, "orders")
    assert (affinity.is_due, affinity.path) == (True, "c")
    shared = affinity_of()
    for _ in range(8):
        shared.follow([TopicPartition("here", 0)])
        follow(shared, "orders")
    assert not shared.is_due


def test_a_connection_with_a_share_session_stays_where_its_session_is() -> None:
    affinity = affinity_of()
    affinity.stay()
    for _ in range(10_000):
        affinity.follow([TopicPartition("a", 0)])
    affinity.reset()
    affinity.follow([TopicPartition("a", 0)])
    assert not affinity.is_due


def test_a_connection_that_commits_moves_to_its_coordinator(tmp_path: Path) -> None:
    async def main() -> None:
        pair = Pair(tmp_path)
        await pair.start()
        client = await WireClient.connect(pair.first.port)
        pair.broker.partitions.process_of = pair.leads_elsewhere  # type: ignore[method-assign]
        for offset in range(8):
            answer = await ask(client, ApiKey.OFFSET_COMMIT, 9, **committing(9, "orders", offset))
            assert commit_errors(answer) == [0]
        pair.broker.partitions.process_of = lambda topic_partition: None  # type: ignore[method-assign]
        await until(lambda: (pair.first.connections, pair.second.connections) == (0, 1))
        answer = await ask(client, ApiKey.OFFSET_COMMIT, 9, **committing(9, "orders", 8))
        assert commit_errors(answer) == [0]
        await client.close()
        await pair.stop()

    uvloop.run(main())
