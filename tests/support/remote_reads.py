"""The reads of an actor that leads one partition with tiered storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rayka.actors.channel.requests import FetchParams
from rayka.actors.remote.reads import RemoteReads
from rayka.config import BrokerConfig, LogConfig
from rayka.errors import ErrorCode
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.format.records import read_records
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FetchPartition, FetchResult, IsolationLevel, OffsetAnswer, OffsetQuery
from tests.support.logs import NOW_MS, ORDERS
from tests.support.tiered import TieredLog

CONFIG = LogConfig(
    remote_storage_enable=True, internal_segment_bytes=1_000, index_interval_bytes=100, retention_ms=-1,
    local_retention_bytes=1_500,
)  # fmt: skip
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


def fill_with_records(tiered: TieredLog) -> None:
    """The first half and more is in the store alone."""
    tiered.append(200)
    tiered.copy()
    tiered.log.delete_old_segments(NOW_MS)


class Reads:
    """The reads of a partition of 200 records, of which the first hundred and more are in the store alone."""

    def __init__(self, path: Path, fill: Callable[[TieredLog], None], **settings: str) -> None:
        self.tiered = TieredLog(path, CONFIG)
        fill(self.tiered)
        self.log = self.tiered.log
        self.partition = Partition(self.log, self.tiered.partition.topic_id)
        self.partition.become_leader(9)
        self.replicas = Replicas()
        self.replicas.add(self.partition)
        broker: Any = SimpleNamespace(config=BrokerConfig.parse(settings))
        self.reads = RemoteReads(self.replicas, broker, self.tiered.store, str(path / "reads"))
        self.reads.known = self._known

    async def _known(self, partition: Partition) -> Any:
        assert partition is self.partition
        return self.tiered.remote

    async def fetch(
        self, *offsets: int, max_bytes: int = 10_000, isolation: IsolationLevel = UNCOMMITTED
    ) -> list[FetchResult]:
        """One fetch, as a client's."""
        partitions = tuple(FetchPartition(ORDERS, offset, max_bytes) for offset in offsets)
        params = FetchParams(partitions, 0.0, 1, max_bytes, isolation)
        found: asyncio.Future[list[FetchResult]] = asyncio.get_running_loop().create_future()
        results = self.replicas.fetch(partitions, max_bytes, isolation)
        self.reads.fetch(params, results, found.set_result)
        return await found

    async def list_offsets(self, timestamp: int) -> OffsetAnswer:
        """One search, as a client's."""
        queries = [OffsetQuery(ORDERS, timestamp)]
        found: asyncio.Future[list[OffsetAnswer]] = asyncio.get_running_loop().create_future()
        answers = self.replicas.list_offsets(queries, UNCOMMITTED)
        if answers[0].error != ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            return answers[0]
        self.reads.list_offsets(queries, UNCOMMITTED, answers, found.set_result)
        return (await found)[0]


def offsets_in(result: FetchResult) -> list[int]:
    """The offsets of the records of a result."""
    if result.records is None:
        return []
    data = result.records if isinstance(result.records, bytes) else SegmentReader().read(result.records)
    return [record.offset for record in read_records(data)]


Check = Callable[[Reads], Coroutine[Any, Any, None]]


def run(path: Path, check: Check, fill: Callable[[TieredLog], None] = fill_with_records, **settings: str) -> None:
    """Let a test have its reads."""

    async def main() -> None:
        reads = Reads(path, fill, **settings)
        try:
            await asyncio.wait_for(check(reads), 60)
        finally:
            await reads.reads.stop()

    asyncio.run(main())


def meanwhile(reads: Reads, method: str, work: Callable[[], None]) -> None:
    """Let `work` be done just before the store is read."""
    reader = reads.reads._reader
    read = getattr(reader, method)
    setattr(reader, method, lambda *asked: (work(), read(*asked))[1])
