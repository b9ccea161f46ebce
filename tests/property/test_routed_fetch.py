"""Fetches over several leaders: each partition's records begin with a whole batch, whatever sizes meet."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.actors.channel.link import AppendDone, FetchDone, FetchParams, LeaderClient
from rayka.actors.channel.router import Router
from rayka.actors.channel.socket import ChannelClosed
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.server import ReplicaServer
from rayka.config import LogConfig
from rayka.metadata.image import MetadataImage, PartitionImage, TopicImage
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import LOG_OVERHEAD, read_header
from rayka.storage.segments.reader import SegmentReader
from rayka.types import (
    AppendParams,
    AppendRequest,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    TopicPartition,
)
from tests.support.logs import NOW_MS, batch

TOPIC = "t"
READ_UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


class OnAnotherNode:
    """A leader whose answers have bytes instead of slices of files, as those of another node."""

    is_in_process = False

    def __init__(self, server: ReplicaServer) -> None:
        self._server = server
        self._reader = SegmentReader()

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        self._server.append(requests, params, done)

    def fetch(self, order: FetchParams, done: FetchDone) -> Hashable:
        def with_bytes(results: list[FetchResult] | ChannelClosed) -> None:
            assert not isinstance(results, ChannelClosed)
            loop.call_soon(done, [one._replace(records=self.read(one)) for one in results])

        loop = asyncio.get_running_loop()
        return self._server.fetch(order, with_bytes)

    def read(self, result: FetchResult) -> bytes | None:
        return self._reader.read(result.records) if isinstance(result.records, FileSlice) else None

    def cancel(self, key: Hashable) -> None:
        self._server.cancel(key)

    def call(self, method: str, arguments: Sequence[Any], done: Any, timeout_s: float = 1) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Leaders:
    """Partitions of one topic, spread over leaders; partition i has batches of about `sizes[i]` bytes."""

    def __init__(self, directory: str, leaders: Sequence[int], remote: frozenset[int], sizes: Sequence[list[int]]):
        topic_id = uuid.uuid4()
        led = []
        replicas = {number: Replicas() for number in set(leaders)}
        self.directories = {
            number: LogDirectory.open(str(Path(directory, str(number))), RealFiles(), now_ms=0) for number in replicas
        }
        for index, number in enumerate(leaders):
            name = TopicPartition(TOPIC, index)
            partition = Partition(self.directories[number].open_log(name, topic_id, LogConfig(), now_ms=0), topic_id)
            partition.become_leader(0)
            replicas[number].add(partition)
            for size in sizes[index]:
                records = memoryview(batch(bytes(size)))
                partition.append(AppendRequest(name, records), AppendParams(1, 1000), NOW_MS)
            led.append(PartitionImage(index, 1, 0, (1,), (1,), 0, (str(number),)))
        image = MetadataImage(topics={TOPIC: TopicImage(TOPIC, topic_id, tuple(led), is_internal=False)})
        self.partitions = [replicas[number].get(TopicPartition(TOPIC, i)) for i, number in enumerate(leaders)]
        links: dict[str, LeaderClient] = {}
        for number, held in replicas.items():
            server = ReplicaServer(held, self.directories[number], DiskThread())
            links[str(number)] = OnAnotherNode(server) if number in remote else server
        self.router = Router(lambda: image, "node", directory, "test", own=links)
        self.reader = SegmentReader()

    def close(self) -> None:
        for partition in self.partitions:
            partition.log.release()
        for directory in self.directories.values():
            directory.close([], now_ms=0)

    def bytes_of(self, result: FetchResult) -> bytes:
        if isinstance(result.records, FileSlice):
            return self.reader.read(result.records)
        return result.records or b""


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], frozenset[int], list[list[int]]]:
    """The leader of each partition, those on other nodes, and the sizes of each partition's batches."""
    leaders = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    remote = draw(st.frozensets(st.integers(0, 3)))
    size = st.one_of(st.integers(0, 200), st.integers(0, 5000))
    return leaders, remote, [draw(st.lists(size, max_size=5)) for _ in leaders]


@settings(max_examples=60, deadline=None)
@given(
    cluster=clusters(),
    max_bytes=st.one_of(st.integers(0, 600), st.integers(0, 12_000)),
    partition_max_bytes=st.one_of(st.integers(0, 600), st.integers(0, 12_000)),
    min_bytes=st.integers(0, 3000),
)
def test_everything_is_read_and_no_first_batch_is_cut(
    cluster: tuple[list[int], frozenset[int], list[list[int]]], max_bytes: int, partition_max_bytes: int, min_bytes: int
) -> None:
    """A Java consumer fails at a partition whose records do not begin with a whole batch ("no complete records")."""

    async def main(directory: str) -> None:
        leaders = Leaders(directory, *cluster)
        offsets = dict.fromkeys(range(len(leaders.partitions)), 0)
        ends = {index: one.log.log_end_offset for index, one in enumerate(leaders.partitions)}
        try:
            while offsets != ends:
                order = sorted(offsets, key=lambda index: offsets[index])
                wanted = [FetchPartition(TopicPartition(TOPIC, i), offsets[i], partition_max_bytes) for i in order]
                results = await leaders.router.fetch(
                    wanted, max_wait_ms=2, min_bytes=min_bytes, max_bytes=max_bytes, isolation=READ_UNCOMMITTED
                )
                read = [leaders.bytes_of(result) for result in results]
                first = next(data for data in read if data)
                assert sum(map(len, read)) <= max(max_bytes, len(first))
                for index, data in zip(order, read, strict=True):
                    offsets[index] = position_after(data, offsets[index])
        finally:
            leaders.close()

    with tempfile.TemporaryDirectory(prefix="rayka-routed-", dir="/dev/shm") as directory:
        asyncio.run(main(directory))


def test_limits_that_let_in_less_than_min_bytes_are_not_waited_for() -> None:
    """Each leader ends its records with a whole batch, below its limit; the limits are what the reader waits for."""

    async def main(directory: str) -> None:
        leaders = Leaders(directory, [0, 1], frozenset(), [[9000] * 4] * 2)
        try:
            wanted = [FetchPartition(TopicPartition(TOPIC, index), 0, 20_000) for index in range(2)]
            results = await asyncio.wait_for(
                leaders.router.fetch(
                    wanted, max_wait_ms=600_000, min_bytes=40_000, max_bytes=40_000, isolation=READ_UNCOMMITTED
                ),
                30,
            )
            assert all(18_000 < result.size < 20_000 for result in results)
        finally:
            leaders.close()

    with tempfile.TemporaryDirectory(prefix="rayka-routed-", dir="/dev/shm") as directory:
        asyncio.run(main(directory))


def position_after(data: bytes, offset: int) -> int:
    """Where a reader goes on; it fails if there are records but no complete batch."""
    position = 0
    while position + LOG_OVERHEAD <= len(data):
        size = int.from_bytes(data[position + 8 : position + LOG_OVERHEAD]) + LOG_OVERHEAD
        if position + size > len(data):
            break
        offset = read_header(data, position).next_offset
        position += size
    assert position > 0 or not data, f"{len(data)} bytes and no complete batch"
    return offset
