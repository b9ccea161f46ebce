"""Keeps the remote store in step with the logs that one partition actor leads: copies segments, and deletes them there.

Neither the serving loop nor the disk thread waits for the store: a few threads of their own do. What is to be done, and
in which order, is decided in `rayka.storage.remote`. Every `remote.log.manager.task.interval.ms` each partition is
looked at; after a failure it is tried again alone, after a pause that grows.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rayka.actors.background import BackgroundTasks
from rayka.actors.remote.bandwidth import Bandwidth
from rayka.actors.remote.metadata_topic import MetadataTopic
from rayka.actors.remote.slots import MOST_THREADS, Slots
from rayka.actors.replica.disk import DiskThread
from rayka.errors import RaykaError
from rayka.gateway.ports import Broker
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.log.log import Log
from rayka.storage.remote.copy_plan import CopyableSegment, copyable_segments, take_up
from rayka.storage.remote.remote_partition import FINISHED, RemotePartition
from rayka.storage.remote.retention import Expired, LocalState, expired
from rayka.storage.remote.segment_copy import delete_objects
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata, RemotePartitionDeleteState
from rayka.storage.remote.steps import Author, Step, StoreWork, copy, copy_of, delete, delete_partition, metadata_of
from rayka.storage.remote.store import RemoteStore
from rayka.types import NO_LEADER_EPOCH, TopicIdPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")
Forget = Callable[[RemoteLogSegmentMetadata], None]


@dataclass(slots=True)
class Tiered:
    """What was done since the start."""

    copied_segments: int = 0
    copied_bytes: int = 0
    deleted_segments: int = 0
    failures: int = 0


class RemoteLog:
    """The remote parts of the logs of one actor. `forget` is told of segments that are deleted."""

    def __init__(
        self,
        actor_name: str,
        broker: Broker,
        replicas: Replicas,
        directory: LogDirectory,
        disk: DiskThread,
        store: RemoteStore,
        forget: Forget,
    ) -> None:
        self.done = Tiered()
        self._actor_name = actor_name
        self._broker = broker
        self._replicas = replicas
        self._directory = directory
        self._disk = disk
        self._store = store
        self._forget = forget
        self._files = RealFiles()
        self._topic = MetadataTopic(broker)
        self._background = BackgroundTasks("remote log")
        config = broker.config
        self._copy_slots = Slots(lambda: broker.config["remote.log.manager.copier.thread.pool.size"])
        self._expiry_slots = Slots(lambda: broker.config["remote.log.manager.expiration.thread.pool.size"])
        self._threads = ThreadPoolExecutor(2 * MOST_THREADS, thread_name_prefix="rayka-remote")
        self._bandwidth = Bandwidth(lambda: broker.config["remote.log.manager.copy.max.bytes.per.second"])
        self._interval_s = config["remote.log.manager.task.interval.ms"] / 1000
        self._loaded: dict[TopicIdPartition, int] = {}
        self._copying: set[uuid.UUID] = set()
        self._copies: dict[TopicIdPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._under_way: set[tuple[str, TopicIdPartition]] = set()
        self._unknown: set[TopicIdPartition] = set()

    def start(self) -> None:
        """Begin to look through the partitions."""
        self._background.repeat("remote log", self._look_through, interval_s=self._interval_s)

    async def stop(self) -> None:
        """End; what is being copied is left, and deleted after the next start."""
        self._bandwidth.stop()
        await self._background.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def known(self, partition: Partition) -> RemotePartition:
        """What is in the store of a partition that is led here. Raises RaykaError."""
        identity = _identity(partition)
        if self._loaded.get(identity) != partition.leader_epoch:
            leader_epoch = partition.leader_epoch
            remote = await self._topic.read(identity)
            if self._loaded.get(identity) != leader_epoch:
                remote.unmark()
                self._loaded[identity] = leader_epoch
                self._take_up(partition)
        return self._topic.known(identity)

    def partitions_removed(self, partitions: Iterable[TopicIdPartition]) -> None:
        """The topic of these was deleted: delete what the store has of them."""
        if self._topic.exists:
            for partition in partitions:
                self._begin("delete", partition, partial(self._delete_partition, partition), lambda: True)

    # -- looking through ------------------------------------------------------------------------

    async def _look_through(self) -> None:
        for partition in self._replicas:
            config = partition.log.config
            if not config.remote_storage_enable and not config.remote_log_delete_on_disable:
                continue
            identity, leads = _identity(partition), partial(self._leads, partition)
            if config.is_copied:
                self._begin("copy", identity, partial(self._copy_all, partition), leads)
            if config.remote_storage_enable or self._topic.exists:
                self._begin("expire", identity, partial(self._expire, partition), leads)
        for number in self._topic.led_by(self._actor_name):
            await self._topic.read_to_end(number)
            for remote in self._topic.known_in(number):
                self._look_at_removed(remote)

    def _look_at_removed(self, remote: RemotePartition) -> None:
        """Go on with a deletion that was begun. A topic may be missing for other reasons: its segments stay."""
        identity = remote.partition
        if remote.delete_state in _DELETING:
            self._begin("delete", identity, partial(self._delete_partition, identity), lambda: True)
        elif remote.segments and self._broker.image.topic_by_id(identity.topic_id) is None:
            if remote.delete_state is None and identity not in self._unknown:
                logger.warning("the remote store has segments of %s, a topic that the cluster does not know", identity)
            self._unknown.add(identity)

    def _leads(self, partition: Partition) -> bool:
        is_led = partition.leader_epoch != NO_LEADER_EPOCH and self._replicas.holds(partition)
        return is_led and not partition.log.is_released

    def _begin(
        self, what: str, identity: TopicIdPartition, work: Callable[[], Awaitable[None]], is_wanted: Callable[[], bool]
    ) -> None:
        if (what, identity) not in self._under_way and is_wanted():
            self._under_way.add((what, identity))
            self._background.start(what, self._until_done(what, identity, work, is_wanted))

    async def _until_done(
        self, what: str, identity: TopicIdPartition, work: Callable[[], Awaitable[None]], is_wanted: Callable[[], bool]
    ) -> None:
        failures = 0
        slots = self._copy_slots if what == "copy" else self._expiry_slots
        try:
            while is_wanted():
                try:
                    async with slots:
                        await work()
                    return
                except (OSError, RaykaError) as error:
                    failures += 1
                    self.done.failures += 1
                    logger.warning("tiered storage, %s of %s failed: %s", what, identity, error)
                    await asyncio.sleep(self._pause_s(failures))
        finally:
            self._under_way.discard((what, identity))

    def _pause_s(self, failures: int) -> float:
        config = self._broker.config
        longest = config["remote.log.manager.task.retry.backoff.max.ms"]
        pause_ms = min(config["remote.log.manager.task.retry.backoff.ms"] * 2 ** min(failures - 1, 20), longest)
        jitter = config["remote.log.manager.task.retry.jitter"]
        return float(pause_ms * random.uniform(1 - jitter, 1 + jitter) / 1000)

    # -- copying --------------------------------------------------------------------------------

    async def _copy_all(self, partition: Partition) -> None:
        await self.known(partition)
        async with self._copies[_identity(partition)]:
            while self._leads(partition) and partition.log.config.is_copied:
                if not await self._copy_next(partition):
                    return

    async def _copy_next(self, partition: Partition) -> bool:
        """Copy the next segment; whether there may be more."""
        log, identity, started = partition.log, _identity(partition), time.monotonic()
        copyable = await self._disk.run(partial(_next_copyable, log, _now_ms()))
        if copyable is None:
            return False
        author = self._author()
        metadata = await self._disk.run(partial(metadata_of, identity, log, copyable, uuid.uuid4(), author))
        work = partial(copy_of(log, copyable).write, self._files, metadata=metadata, throttle=self._bandwidth)
        if not await self._complete(metadata, work, author):
            return False
        self._take_up(partition)
        self.done.copied_segments += 1
        self.done.copied_bytes += metadata.size
        logger.info(
            "copied %s up to offset %d: %.1f MB in %.2f s", identity, metadata.end_offset, metadata.size / 1e6,
            time.monotonic() - started,
        )  # fmt: skip
        return log.copied_offset >= metadata.end_offset

    async def _complete(self, metadata: RemoteLogSegmentMetadata, work: StoreWork, author: Author) -> bool:
        """Copy a segment; whether the copy counts.

        Another leader may have deleted it meanwhile as left over. Nobody knows then of what was put after that.
        """
        self._copying.add(metadata.segment_id)
        try:
            await self._carry_out(copy(metadata, work, author))
        finally:
            self._copying.discard(metadata.segment_id)
        known = self._topic.known(metadata.partition).get(metadata.segment_id)
        if known is not None and known.state is FINISHED:
            return True
        logger.warning("the copy of %s from offset %d was deleted meanwhile", metadata.partition, metadata.start_offset)
        await self._in_thread(partial(delete_objects, self._store, metadata))
        return False

    def _take_up(self, partition: Partition) -> None:
        if self._leads(partition):
            take_up(partition.log, self._topic.known(_identity(partition)))

    # -- deleting -------------------------------------------------------------------------------

    async def _expire(self, partition: Partition) -> None:
        remote, log = await self.known(partition), partition.log
        found = _expired(log, remote, self._copying)
        remote.mark_for_deletion(found.segments)
        is_start_higher = found.log_start_offset > log.log_start_offset
        if is_start_higher:
            log.delete_records(min(found.log_start_offset, log.high_watermark))
        self._take_up(partition)
        if is_start_higher:
            await self._disk.run(lambda: self._directory.write_log_starts([log]))
        for segment in found.segments:
            if not self._leads(partition):
                return
            await self._delete(segment)
        self._take_up(partition)

    async def _delete(self, segment: RemoteLogSegmentMetadata) -> None:
        await self._carry_out(delete(segment, self._author()))
        self._forget(segment)
        self.done.deleted_segments += 1

    async def _delete_partition(self, identity: TopicIdPartition) -> None:
        """A copy that is under way ends first: what it wrote later would stay."""
        async with self._copies[identity]:
            remote = await self._topic.read(identity)
            if remote.delete_state is None and not remote.segments:
                return
            if remote.delete_state is not RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                count = len(remote.segments)
                await self._carry_out(delete_partition(remote, self._author()))
                self.done.deleted_segments += count
        self._loaded.pop(identity, None)
        self._copies.pop(identity, None)

    # -- steps ----------------------------------------------------------------------------------

    async def _carry_out(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if callable(step):
                await self._in_thread(partial(step, self._store))
            else:
                await self._topic.append(step)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _author(self) -> Author:
        return Author(self._broker.node_id, _now_ms())


_DELETING = (
    RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
    RemotePartitionDeleteState.DELETE_PARTITION_STARTED,
)


def _identity(partition: Partition) -> TopicIdPartition:
    return TopicIdPartition(partition.topic_id, partition.topic_partition)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _next_copyable(log: Log, now_ms: int) -> CopyableSegment | None:
    safe_offset = min(log.last_stable_offset, log.recovery_point)
    plan = copyable_segments(log.segments, log.config, now_ms, copied_offset=log.copied_offset, safe_offset=safe_offset)
    found = next(plan, None)
    if found is None or not log.has_unwritten_snapshots:
        return found
    log.write_snapshots()
    return found


def _expired(log: Log, remote: RemotePartition, copying: set[uuid.UUID]) -> Expired:
    """What retention deletes; all of it where the topic has no tiered storage any more."""
    if not log.config.remote_storage_enable:
        gone = tuple(segment for segment in remote.segments if segment.segment_id not in copying)
        return Expired(log.local_log_start_offset, gone)
    local_bytes = sum(segment.size for segment in log.segments if segment.base_offset > log.copied_offset)
    local = LocalState(log.leader_epochs, log.log_start_offset, log.log_end_offset, local_bytes)
    return expired(remote, log.config, _now_ms(), local, copying)
