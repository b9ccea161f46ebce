"""Copying and deleting by one actor while others decide differently: nothing is lost, and no object stays for ever."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rayka.actors.remote.metadata_topic import METADATA_TOPIC
from rayka.actors.remote.remote_log import RemoteLog
from rayka.actors.replica.disk import DiskThread
from rayka.config import BrokerConfig, LogConfig
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.format.records import Record, build_batch
from rayka.storage.remote.metadata_records import encode
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from rayka.types import AppendParams, AppendRequest, AppendResult, FetchPartition, FetchResult
from tests.support.logs import NOW_MS
from tests.support.tiered import TieredLog

CONFIG = LogConfig(
    remote_storage_enable=True, internal_segment_bytes=1_000, index_interval_bytes=100, retention_ms=-1,
    local_retention_bytes=1_500,
)  # fmt: skip
SEGMENT_ID = re.compile(r"-([0-9a-f]{32})\.")
States = RemoteLogSegmentState


class MetadataPartition:
    """The leader of the only partition of the metadata topic."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    def write(self, records: bytes) -> None:
        batch = bytearray(records)
        batch[:8] = len(self.batches).to_bytes(8)
        self.batches.append(bytes(batch))

    async def append(self, requests: list[AppendRequest], _: AppendParams) -> list[AppendResult]:
        self.write(bytes(requests[0].records))
        return [AppendResult(0)]

    async def fetch(self, partitions: list[FetchPartition], **_: object) -> list[FetchResult]:
        return [FetchResult(0, log_start_offset=0, records=b"".join(self.batches[partitions[0].fetch_offset :]))]


class Actor:
    """The remote log of one partition of 200 records, none of them copied. A copy waits at `may_copy`."""

    def __init__(self, path: Path) -> None:
        self.tiered = TieredLog(path, CONFIG)
        self.tiered.append(200)
        self.log, self.store = self.tiered.log, self.tiered.store
        self.log.flush()
        self.is_copying, self.may_copy = threading.Event(), threading.Event()
        self._put, self.store.put = self.store.put, self._wait_and_put  # type: ignore[method-assign]
        self.partition = Partition(self.log, self.tiered.partition.topic_id)
        self.partition.become_leader(9)
        self.metadata = MetadataPartition()
        replicas = Replicas()
        replicas.add(self.partition)
        topic = SimpleNamespace(partitions=[SimpleNamespace(partition=0, leader_actor="another")])
        image = SimpleNamespace(topics={METADATA_TOPIC: topic}, topic_by_id=lambda _: topic)
        config = BrokerConfig.parse({"remote.log.manager.task.interval.ms": "10"})
        broker: Any = SimpleNamespace(config=config, image=image, partitions=self.metadata, node_id=0)
        directory: Any = SimpleNamespace(write_log_starts=lambda _: None)
        self.disk = DiskThread()
        self.remote_log = RemoteLog("actor", broker, replicas, directory, self.disk, self.store, lambda _: None)

    def _wait_and_put(self, name: str, pieces: Iterable[bytes]) -> None:
        if name.endswith(".log"):
            self.is_copying.set()
            assert self.may_copy.wait(30)
        self._put(name, pieces)

    def segments_in_store(self) -> set[str]:
        return {SEGMENT_ID.search(name).group(1) for name in self.store.list("")}  # type: ignore[union-attr]

    async def remote(self) -> RemotePartition:
        return await self.remote_log.known(self.partition)


def run(path: Path, check: Callable[[Actor], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        actor = Actor(path)
        actor.remote_log.start()
        try:
            await asyncio.wait_for(check(actor), 30)
        finally:
            actor.may_copy.set()
            await actor.remote_log.stop()
            actor.disk.stop()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """`run` bounds the wait."""
    while not condition():
        await asyncio.sleep(0.01)


def test_a_topic_that_leaves_tiered_storage_while_it_is_copied_leaves_no_objects(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await until(actor.is_copying.is_set)
        actor.log.configure(replace(CONFIG, remote_storage_enable=False, remote_log_delete_on_disable=True))
        written = len(actor.metadata.batches)
        await asyncio.sleep(0.05)  # what would be decided wrongly is decided in one of these rounds
        actor.may_copy.set()
        await until(lambda: len(actor.metadata.batches) >= written + 3)
        await until(lambda: not list(actor.store.list("")))

        remote = await actor.remote()
        assert remote.segments == ()
        assert actor.remote_log.done.copied_segments == 1

    run(tmp_path, check)


def test_objects_that_come_after_another_leader_deleted_their_segment_are_deleted(tmp_path: Path) -> None:
    async def check(actor: Actor) -> None:
        await until(actor.is_copying.is_set)
        (segment,) = (await actor.remote()).segments
        for state in (States.DELETE_SEGMENT_STARTED, States.DELETE_SEGMENT_FINISHED):
            event = RemoteLogSegmentMetadataUpdate(segment.partition, segment.segment_id, 1, NOW_MS, state)
            actor.metadata.write(build_batch([Record(0, NOW_MS, None, encode(event))]))
        actor.may_copy.set()
        await until(lambda: actor.log.copied_offset > 150)

        in_store, remote = actor.segments_in_store(), await actor.remote()
        assert segment.segment_id.hex not in in_store
        assert in_store <= {each.segment_id.hex for each in remote.segments}

    run(tmp_path, check)
