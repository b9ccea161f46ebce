"""When the controller takes a partition actor for dead: the pool beside real metadata, with Ray's handle acted out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from rayka.actors.node import pool as partition_pool
from rayka.actors.node.pool import PartitionPool
from rayka.actors.node.spec import NodeSpec
from rayka.actors.replica.actor import is_taken_for_dead
from rayka.metadata.commands import ActorRegistration, NewTopic
from tests.unit.metadata.cluster import DIRECTORY, Cluster

GRACE_S = 0.1


class Handle:
    """A partition actor whose process dies once, when `dies` is set; the next one never becomes ready."""

    def __init__(self) -> None:
        self.watched = asyncio.Event()
        self.dies = asyncio.Event()
        self.watched_again = asyncio.Event()
        self.lives = SimpleNamespace(remote=self._lives)
        self.polled = asyncio.Event()
        self.ready = SimpleNamespace(remote=self._ready)

    async def _ready(self) -> None:
        self.polled.set()
        await asyncio.Event().wait()

    async def _lives(self) -> None:
        if not self.dies.is_set():
            self.watched.set()
            await self.dies.wait()
            raise ray.exceptions.ActorUnavailableError("it died", None)
        self.watched_again.set()
        await asyncio.Event().wait()


class Node:
    """One broker with one partition actor, which leads all the partitions of a topic."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.spec = NodeSpec("test", "node-1", 1, "/data", ("/data",), "127.0.0.1", 0, "localhost", 0)
        self.name = self.spec.partition_actor_name(0)
        self.cluster.add_broker(actors=0)
        self.register("first")
        self.cluster.create(NewTopic("orders", 1, 1))
        self.handle = Handle()
        self.pool = PartitionPool(self.spec, lambda spec, name: {}, self.epoch, self.lost, GRACE_S)
        actor_class = SimpleNamespace(remote=lambda spec, index: self.handle)
        self.pool._actor_class = SimpleNamespace(options=lambda: actor_class)  # type: ignore[assignment]
        self.pool.ensure([0])

    def register(self, incarnation: str) -> None:
        registration = ActorRegistration(self.name, 1, "/data", incarnation, DIRECTORY)
        self.cluster.run(self.cluster.controller.register_actor(registration))

    def epoch(self, name: str) -> int:
        return self.cluster.image.actors[name].epoch

    def lost(self, name: str, epoch: int) -> None:
        self.cluster.run(self.cluster.controller.actor_died(name, epoch))

    @property
    def leader(self) -> int:
        return self.cluster.partition("orders").leader


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_pool, "_POLL_AFTER_LOSS_S", 0.01)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_an_actor_that_recovers_longer_than_the_session_timeout_keeps_its_partitions() -> None:
    async def test() -> None:
        node = Node()
        await node.handle.watched.wait()
        node.handle.dies.set()
        await node.handle.polled.wait()
        node.register("second")
        await node.handle.watched_again.wait()
        assert node.leader == 1
        node.pool.stop()

    run(test)


def test_the_partitions_of_an_actor_that_does_not_register_again_lose_their_leader() -> None:
    async def test() -> None:
        node = Node()
        await node.handle.watched.wait()
        node.handle.dies.set()
        await node.handle.watched_again.wait()
        assert node.leader == -1
        node.pool.stop()

    run(test)


def test_a_running_process_notices_that_the_image_has_it_offline() -> None:
    cluster = Cluster()
    cluster.add_broker(actors=1)
    own = ActorRegistration("a1-0", 1, "/data/a1-0", "life-1", DIRECTORY)
    assert not is_taken_for_dead(own, cluster.image)
    cluster.run(cluster.controller.actor_died("a1-0", 1))
    assert is_taken_for_dead(own, cluster.image)
    cluster.start_actor("a1-0", 1, life=2)
    cluster.run(cluster.controller.actor_died("a1-0", 2))
    assert not is_taken_for_dead(own, cluster.image), "another process has taken its place"
