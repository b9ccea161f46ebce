"""Large batches go to a leader through shared memory: whatever happens to the connection, each row is there once."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayka.actors.channel.channel_link import ChannelLeaderClient
from rayka.actors.channel.requests import AppendFrame, AppendShared
from rayka.actors.channel.server import ChannelRequest, ChannelServer
from rayka.actors.channel.service import FrameService
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.server import ReplicaServer
from rayka.client.cluster import Cluster
from rayka.client.loop import LoopThread
from rayka.config import LogConfig
from rayka.errors import ErrorCode
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.records import read_records
from rayka.types import AppendParams, AppendRequest, AppendResult, TopicPartition
from tests.support.client_connection import LocalConnection

NAMES = [TopicPartition("rows", number) for number in range(2)]
ROWS, ROW_BYTES = 8_000, 1_000


class RemoteLeader:
    """The leader of all partitions, in a thread of its own, and the client's way to it.

    `faults` is the share of the appends at which it drops the connection: half of them before, half after the append.
    """

    def __init__(self, connection: LocalConnection, directory: Path) -> None:
        self.faults = 0.0
        self.seen: Counter[type] = Counter()
        self.logs: list[Any] = []
        self._chance = random.Random(1)
        self._local = connection.broker.partitions
        self._loop = LoopThread("leader")
        self._path = str(directory / "channel" / "leader.0.sock")
        self._loop.run(self._start(directory / "leader"))
        self._link = connection.loop.run(self._connect())
        connection.broker.partitions = self

    async def _start(self, directory: Path) -> None:
        files, replicas = LogDirectory.open(str(directory), RealFiles(), now_ms=0), Replicas()
        for name in NAMES:
            partition = Partition(files.open_log(name, uuid.uuid4(), LogConfig(), now_ms=0), uuid.uuid4())
            partition.become_leader(0)
            replicas.add(partition)
            self.logs.append(partition.log)
        self._service = FrameService(ReplicaServer(replicas, files, DiskThread()))
        self._server = ChannelServer(self._path, self._serve)
        await self._server.start()

    async def _connect(self) -> ChannelLeaderClient:
        return ChannelLeaderClient(self._path)

    def _serve(self, request: ChannelRequest) -> None:
        is_append = isinstance(request.message, (AppendFrame, AppendShared))
        self.seen[type(request.message)] += 1
        if not is_append or self._chance.random() >= self.faults:
            self._service.serve(request)
            return
        if self._chance.random() < 0.5:
            self._service.serve(request)
        for connection in list(self._server._connections):
            connection._transport.abort()  # type: ignore[union-attr]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def append(self, requests: Sequence[AppendRequest], params: AppendParams) -> asyncio.Future[list[AppendResult]]:
        """As `Router.append`."""
        future: asyncio.Future[list[AppendResult]] = asyncio.get_running_loop().create_future()

        def done(answer: Any) -> None:
            if not future.done():
                is_lost = isinstance(answer, Exception)
                future.set_result([AppendResult(ErrorCode.NETWORK_EXCEPTION)] if is_lost else list(answer))

        self._link.append([request._replace(leader_epoch=0) for request in requests], params, done)
        return future

    def values(self) -> list[bytes | None]:
        """Those of all records in the logs."""
        for log in self.logs:
            log.flush()
        paths = [path for log in self.logs for path in sorted(Path(log.directory).glob("*.log"))]
        return [record.value for path in paths for record in read_records(path.read_bytes())]

    def close(self) -> None:
        self._loop.run(self._server.stop())
        self._loop.close()


@pytest.fixture
def leader(connection: LocalConnection, cluster: Cluster, tmp_path: Path) -> Iterator[RemoteLeader]:
    """The leader of the two partitions of the topic `rows`."""
    cluster.admin().create_topic("rows", partitions=len(NAMES))
    leader = RemoteLeader(connection, tmp_path)
    yield leader
    leader.close()


def rows() -> np.ndarray[Any, Any]:
    """Values that differ in their first eight bytes."""
    values = np.zeros((ROWS, ROW_BYTES), np.uint8)
    values[:, :8] = np.arange(ROWS, dtype=">i8").view(np.uint8).reshape(ROWS, 8)
    return values


def test_tables_go_through_shared_memory(cluster: Cluster, leader: RemoteLeader) -> None:
    with cluster.producer() as producer:
        for _ in range(3):
            producer.send_table("rows", {"value": rows()})
            producer.flush()  # so that the leader has mapped the memory
    assert len(leader.values()) == 3 * ROWS
    assert leader.seen[AppendShared] > leader.seen[AppendFrame]


@pytest.mark.parametrize("settings", [{}, {"compression_type": "lz4"}, {"buffer_memory": 2 << 20}], ids=str)
def test_a_leader_that_drops_connections_loses_and_repeats_nothing(
    cluster: Cluster, leader: RemoteLeader, settings: dict[str, Any]
) -> None:
    values = rows()
    with cluster.producer(retry_backoff_ms=1, **settings) as producer:
        producer.send_table("rows", {"value": values[:10]})
        producer.flush()
        leader.faults = 0.2
        futures = [each for _ in range(5) for each in producer.send_table("rows", {"value": values})]
        assert sum(future.result(60).record_count for future in futures) == 5 * ROWS
    assert bool(leader.seen[AppendShared]) is ("compression_type" not in settings)
    expected = Counter({bytes(value): 5 for value in values})
    expected.update(bytes(value) for value in values[:10])
    assert Counter(leader.values()) == expected
