"""A client in a Ray task is refused with what to do instead."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share.pool import AsyncProcessingPool, ProcessingPool
from rayka.client.share.worker import Worker


class Starting(Worker):
    """An actor that never gets ready."""

    def __init__(self) -> None:
        super().__init__(None)

    async def ready(self, *_: object) -> None:
        await asyncio.Event().wait()

    def kill(self) -> None:
        """Nothing is left."""


def pool(cluster: Cluster) -> ProcessingPool:
    async def create() -> AsyncProcessingPool:
        return AsyncProcessingPool(await cluster._share_consumer("a group", ["tasks"], {}), Starting, 1)

    loop = cluster._connection.loop
    return cluster._member(ProcessingPool(loop.run(create()), loop))


def streams(cluster: Cluster) -> Any:
    cluster.admin().create_topic("tasks")
    return cluster.consumer_connector("a group").create_message_streams({"tasks": 1})["tasks"]


@pytest.mark.parametrize(
    "create",
    [
        lambda cluster: cluster,
        Cluster.admin,
        Cluster.producer,
        Cluster.reader,
        Cluster.consumer,
        lambda cluster: cluster.consumer("a group"),
        lambda cluster: cluster.share_consumer("a group", ["tasks"]),
        pool,
        lambda cluster: cluster.consumer_connector("a group"),
        lambda cluster: streams(cluster)[0],
        Cluster.async_admin,
        Cluster.async_producer,
        Cluster.async_reader,
        Cluster.async_consumer,
        lambda cluster: cluster.async_consumer("a group"),
        lambda cluster: cluster.async_share_consumer("a group", ["tasks"]),
        lambda cluster: pool(cluster)._core,
        lambda cluster: cluster.async_consumer_connector("a group"),
        lambda cluster: streams(cluster)[0]._core,
    ],
)
def test_pickling_a_client_says_where_to_connect(cluster: Cluster, create: Callable[[Cluster], Any]) -> None:
    client = create(cluster)
    message = rf"{type(client).__name__} can't be pickled: call rayka\.connect\(\) in the Ray task or actor"
    with pytest.raises(pickle.PicklingError, match=message):
        pickle.dumps([client])


@pytest.mark.parametrize(
    "begin",
    [
        lambda cluster: cluster.producer().send("tasks", b"value"),
        lambda cluster: cluster.producer().send_many("tasks", [b"value"])[0],
        lambda cluster: cluster.consumer("a group").commit_async({("tasks", 0): 0}),
        lambda cluster: cluster.share_consumer("a group", ["tasks"]).commit_async(),
    ],
)
def test_pickling_a_future_says_to_wait_for_it(cluster: Cluster, begin: Callable[[Cluster], Any]) -> None:
    cluster.admin().create_topic("tasks")
    future = begin(cluster)
    with pytest.raises(pickle.PicklingError, match="can't be pickled: wait for its result"):
        pickle.dumps([future])
    future.result(30)
