"""Keeps the remote store in step with the logs that one partition actor leads: copies segments, and deletes them there.

The event loop and the disk thread do not wait for the store; separate threads do. `rayka.storage.remote` decides which
steps are necessary, and in which order. Each partition is checked every `remote.log.manager.task.interval.ms`. After a
failure its check is repeated after a pause, which grows with each failure.
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
from typing import NamedTuple, TypeVar

from rayka.actors.background import BackgroundTasks
from rayka.actors.remote.bandwidth import Bandwidth
from rayka.actors.remote.metadata_topic import METADATA_TOPIC, MetadataTopic
from rayka.actors.remote.slots import MOST_THREADS, Slots
from rayka.actors.replica.disk import DiskThread
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles, storage_error
from rayka.storage.remote.copy_plan import next_copyable, take_up
from rayka.storage.remote.remote_partition import FINISHED, RemotePartition
from rayka.storage.remote.retention import expired_of
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata, RemotePartitionDeleteState
from rayka.storage.remote.steps import Author, Step, StoreWork, copy, copy_of, delete, delete_partition, metadata_of
from rayka.storage.remote.store import RemoteStore, partition_prefix
from rayka.types import NO_LEADER_EPOCH, TopicIdPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")
Forget = Callable[[RemoteLogSegmentMetadata], None]
Check = Callable[[], Awaitable[None]]
"""Raises RaykaError if what is in progress must not continue."""


class _Loaded(NamedTuple):
    """When the metadata of a partition was taken up: in which leader epoch, and after how many resets of the topic."""

    leader_epoch: int
    resets: int


@dataclass(slots=True)
class Tiered:
    """What was copied and deleted since the start."""

    copied_segments: int = 0
    copied_bytes: int = 0
    deleted_segments: int = 0
    failures: int = 0


class RemoteLog:
    """The remote parts of the logs of one actor. `forget` is called for segments that are deleted.

    `catch_up` returns when this process knows what the controller has decided, and raises RaykaError if it can't.
    """

    def __init__(
        self,
        actor_name: str,
        broker: Broker,
        catch_up: Callable[[], Awaitable[None]],
        replicas: Replicas,
        directory: LogDirectory,
        disk: DiskThread,
        store: RemoteStore,
        forget: Forget,
    ) -> None:
        self.done = Tiered()
        self._actor_name = actor_name
        self._broker = broker
        self._catch_up = catch_up
        self._replicas = replicas
        self._directory = directory
        self._disk = disk
        self._store = store
        self._forget = forget
        self._files = RealFiles()
        self._topic = MetadataTopic(broker, self._create_store)
        self._background = BackgroundTasks("remote log")
        config = broker.config
        self._copy_slots = Slots(lambda: broker.config["remote.log.manager.copier.thread.pool.size"])
        self._expiry_slots = Slots(lambda: broker.config["remote.log.manager.expiration.thread.pool.size"])
        self._threads = ThreadPoolExecutor(2 * MOST_THREADS, thread_name_prefix="rayka-remote")
        self._bandwidth = Bandwidth(lambda: broker.config["remote.log.manager.copy.max.bytes.per.second"])
        self._interval_s = config["remote.log.manager.task.interval.ms"] / 1000
        self._loaded: dict[TopicIdPartition, _Loaded] = {}
        self._verified: dict[TopicIdPartition, _Loaded] = {}
        """The partitions of which neither the metadata nor the store has anything."""
        self._copying: set[uuid.UUID] = set()
        self._put: dict[uuid.UUID, RemoteLogSegmentMetadata] = {}
        """Copies of which objects may have been put, and of which it is not settled whether they are known."""
        self._copies: dict[TopicIdPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._under_way: set[tuple[str, TopicIdPartition]] = set()
        self._unknown: set[TopicIdPartition] = set()

    def start(self) -> None:
        """Begin to check the partitions regularly."""
        self._background.repeat("remote log", self._look_through, interval_s=self._interval_s)

    async def stop(self) -> None:
        """Stop. A copy under way is abandoned, and its objects are deleted after the next start."""
        self._bandwidth.stop()
        await self._background.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def known(self, partition: Partition) -> RemotePartition:
        """The segments in the store of a partition that this process leads. Raises RaykaError."""
        identity, leader_epoch = _identity(partition), partition.leader_epoch
        if self._loaded.get(identity) != (leader_epoch, self._topic.resets):
            remote = await self._topic.read(identity)
            loaded = _Loaded(leader_epoch, self._topic.resets)
            if self._loaded.get(identity) != loaded:
                remote.unmark()
                self._loaded[identity] = loaded
                self._take_up(partition)
        return self._topic.known(identity)

    def partitions_removed(self, partitions: Iterable[TopicIdPartition]) -> None:
        """The topic of these partitions was deleted: delete their segments in the store."""
        if self._topic.exists:
            for partition in partitions:
                self._begin("delete", partition, partial(self._delete_partition, partition), lambda: True)

    # -- looking through ------------------------------------------------------------------------

    async def _look_through(self) -> None:
        for partition in self._replicas:
            identity, leads = _identity(partition), partial(self._leads, partition)
            if partition.log.config.is_copied:
                self._begin("copy", identity, partial(self._copy_all, partition), leads)
            if self._may_have_segments(partition):
                self._begin("expire", identity, partial(self._expire, partition), leads)
        for number in self._topic.led_by(self._actor_name):
            try:
                await self._topic.read_to_end(number)
            except RaykaError as error:  # the other partitions of the topic name deleted topics too
                logger.warning("tiered storage, looking for deleted topics failed: %s", error)
                continue
            for remote in self._topic.known_in(number):
                self._look_at_removed(remote)
        await self._settle_copies()

    def _may_have_segments(self, partition: Partition) -> bool:
        """Whether the store may have something of a partition: its topic has tiered storage, or may have had it."""
        if partition.log.config.remote_storage_enable:
            return True
        if not self._topic.exists:
            return False
        is_loaded = self._loaded.get(_identity(partition)) == (partition.leader_epoch, self._topic.resets)
        return not is_loaded or bool(self._topic.known(_identity(partition)).segments)

    def _look_at_removed(self, remote: RemotePartition) -> None:
        """Continue with the deletion of a topic. One may be missing for other reasons: then its segments stay."""
        identity, image = remote.partition, self._broker.image
        if remote.delete_state in _DELETING or identity.topic_id in image.deleted_tiered_topics:
            self._begin("delete", identity, partial(self._delete_partition, identity), lambda: True)
        elif remote.segments and image.topic_by_id(identity.topic_id) is None:
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
                    if not is_wanted():
                        return
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
        await self._check_metadata(partition)
        async with self._copies[_identity(partition)]:
            while self._leads(partition) and partition.log.config.is_copied:
                if not await self._copy_next(partition):
                    return

    async def _check_metadata(self, partition: Partition) -> None:
        """Raise KAFKA_STORAGE_ERROR if `__remote_log_metadata` has lost what it said of a partition.

        Nothing is copied or deleted then: what it named can be neither read nor deleted any more. A partition that it
        never named has nothing in the store; what its log start offset says beside that is older than a crash.
        """
        identity, log = _identity(partition), partition.log
        remote = await self.known(partition)
        missing = self._take_up(partition)
        if not remote.is_unknown and missing:
            raise _lost(
                f"offsets {missing.start} to {missing.stop - 1} of {identity} are not here, and {METADATA_TOPIC} does "
                "not say where they are in the remote store. To give them up, delete the records up to there."
            )
        if remote.is_unknown and self._verified.get(identity) != self._loaded[identity]:
            found = await self._in_thread(lambda: next(iter(self._store.list(partition_prefix(identity))), None))
            if found is not None:
                raise _lost(f"the remote store has {found}, which {METADATA_TOPIC} does not name")
            if self._leads(partition):
                log.delete_records(min(log.local_log_start_offset, log.high_watermark))
            await self._disk.run(lambda: self._directory.write_log_starts([log]))
            self._verified[identity] = self._loaded[identity]

    async def _check_leads(self, partition: Partition, leader_epoch: int) -> None:
        """Raise FENCED_LEADER_EPOCH unless this actor leads in that epoch still: it may have been paused for long."""
        await self._catch_up()
        if partition.leader_epoch != leader_epoch or not self._leads(partition):
            message = f"leader epoch {leader_epoch} of {partition.topic_partition} is over"
            raise RaykaError(ErrorCode.FENCED_LEADER_EPOCH, message)

    async def _copy_next(self, partition: Partition) -> bool:
        """Copy the next segment. Returns whether there may be more."""
        log, identity, started = partition.log, _identity(partition), time.monotonic()
        check = partial(self._check_leads, partition, partition.leader_epoch)
        copyable = await self._disk.run(partial(next_copyable, log, _now_ms()))
        if copyable is None:
            return False
        author = self._author()
        metadata = await self._disk.run(partial(metadata_of, identity, log, copyable, uuid.uuid4(), author))
        work = partial(copy_of(log, copyable).write, self._files, metadata=metadata, throttle=self._bandwidth)
        if not await self._complete(metadata, work, author, check):
            return False
        self._take_up(partition)
        self.done.copied_segments += 1
        self.done.copied_bytes += metadata.size
        logger.info(
            "copied %s up to offset %d: %.1f MB in %.2f s", identity, metadata.end_offset, metadata.size / 1e6,
            time.monotonic() - started,
        )  # fmt: skip
        return log.copied_offset >= metadata.end_offset

    async def _complete(
        self, metadata: RemoteLogSegmentMetadata, work: StoreWork, author: Author, check: Check
    ) -> bool:
        """Copy a segment; whether the copy counts."""

        def put(store: RemoteStore) -> None:
            self._put[metadata.segment_id] = metadata
            work(store)

        self._copying.add(metadata.segment_id)
        try:
            await self._carry_out(copy(metadata, put, author), check)
        finally:
            self._copying.discard(metadata.segment_id)
        known = self._topic.known(metadata.partition).get(metadata.segment_id)
        await self._settle_copies()
        return known is not None and known.state is FINISHED

    async def _settle_copies(self) -> None:
        """Name the copies again that another leader has deleted meanwhile as left over.

        Nobody would know else of what was put after that. Retention deletes them once more.
        """
        for segment_id, metadata in list(self._put.items()):
            if segment_id in self._copying:
                continue
            remote = await self._topic.read(metadata.partition)
            if segment_id in self._put and remote.get(segment_id) is None:
                logger.warning("a copy of %s was deleted meanwhile: %s", metadata.partition, segment_id)
                await self._topic.append(metadata)
            self._put.pop(segment_id, None)

    def _take_up(self, partition: Partition) -> range:
        """Let the log know what is in the store; the offsets of which nobody knows where they are."""
        if not self._leads(partition):
            return range(0)
        return take_up(partition.log, self._topic.known(_identity(partition)))

    # -- deleting -------------------------------------------------------------------------------

    async def _expire(self, partition: Partition) -> None:
        remote, log = await self.known(partition), partition.log
        check = partial(self._check_leads, partition, partition.leader_epoch)
        if not remote.is_unknown or log.config.remote_storage_enable or log.config.remote_log_delete_on_disable:
            await self._check_metadata(partition)
        found = expired_of(log, remote, _now_ms(), self._copying)
        remote.mark_for_deletion(found.segments)
        is_start_higher = found.log_start_offset > log.log_start_offset
        if is_start_higher:
            log.delete_records(min(found.log_start_offset, log.high_watermark))
        self._take_up(partition)
        if is_start_higher:
            await self._disk.run(lambda: self._directory.write_log_starts([log]))
        for segment in found.segments:
            await self._carry_out(delete(segment, self._author()), check)
            self._forget(segment)
            self.done.deleted_segments += 1
        self._take_up(partition)

    async def _delete_partition(self, identity: TopicIdPartition) -> None:
        """Wait for a copy under way first: objects that it wrote later would never be deleted."""
        async with self._copies[identity]:
            remote = await self._topic.read(identity)
            if not remote.is_unknown:
                count = len(remote.segments)
                await self._carry_out(delete_partition(remote, self._author()), _no_check)
                self.done.deleted_segments += count
        for known in (self._loaded, self._verified, self._copies):
            known.pop(identity, None)
        self._unknown.discard(identity)

    # -- steps ----------------------------------------------------------------------------------

    async def _carry_out(self, steps: Iterable[Step], check: Check) -> None:
        """Run the steps in order. Stop at the first that fails, or when `check` fails."""
        for step in steps:
            if callable(step):
                await self._in_thread(partial(step, self._store))
            else:
                await check()
                await self._topic.append(step)

    async def _create_store(self) -> None:
        try:
            await self._in_thread(self._store.create)
        except OSError as error:
            raise storage_error("The remote store", error) from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _author(self) -> Author:
        return Author(self._broker.node_id, _now_ms())


_DELETING = (
    RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
    RemotePartitionDeleteState.DELETE_PARTITION_STARTED,
)


async def _no_check() -> None:
    """Nothing to check: the segments of a deleted topic may be deleted by any actor."""


def _lost(message: str) -> RaykaError:
    return RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, message)


def _identity(partition: Partition) -> TopicIdPartition:
    return TopicIdPartition(partition.topic_id, partition.topic_partition)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
