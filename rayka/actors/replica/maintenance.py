"""What a partition actor does at intervals: flushes, checkpoints, retention, removal of deleted files, compiling."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from rayka.actors.background import BackgroundTasks
from rayka.actors.replica.disk import DiskThread, delete_old_segments
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig
from rayka.errors import RaykaError
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.format.record_checks import COMPILED
from rayka.storage.log.log import Log

logger = logging.getLogger(__name__)

_FLUSH_CHECK_S = 1.0
_PARTITIONS_A_TURN = 100
_EXPIRY_CHECK_S = 600.0
_COMPILE_CHECK_S = 10.0


class LogUpkeep:
    """Runs each task at the interval that its setting gives."""

    def __init__(
        self,
        replicas: Replicas,
        directory: LogDirectory,
        disk: DiskThread,
        server: ReplicaServer,
        config: BrokerConfig,
    ) -> None:
        self._replicas = replicas
        self._directory = directory
        self._disk = disk
        self._server = server
        self._intervals: tuple[tuple[float, Callable[[], Awaitable[None]]], ...] = (
            (min(_FLUSH_CHECK_S, config["log.flush.scheduler.interval.ms"] / 1000), self._flush),
            (config["log.flush.offset.checkpoint.interval.ms"] / 1000, self._checkpoint),
            (config["log.retention.check.interval.ms"] / 1000, self._retain),
            (_EXPIRY_CHECK_S, self._expire_producers),
            (_COMPILE_CHECK_S, self._compile_checks),
        )
        self._background = BackgroundTasks("log upkeep")

    def start(self) -> None:
        """Begin."""
        for interval_s, task in self._intervals:
            self._background.repeat(task.__name__.strip("_"), task, interval_s=interval_s)

    async def stop(self) -> None:
        """End; work that is in the disk's thread already is done there."""
        await self._background.stop()

    async def _flush(self) -> None:
        """Flush the logs whose `flush.ms` is over, and those with closed segments that are not on the device yet.

        Snapshots of producers are written, without a flush, and files are made for the rolls that come next. A log that
        became slow is flushed to give back the blocks that it was given ahead.
        """
        now_ms = time.time_ns() // 1_000_000
        for number, partition in enumerate(self._replicas):
            has_idle_blocks = partition.log.has_idle_blocks(now_ms)
            if has_idle_blocks:
                partition.log.give_back_blocks(now_ms)
            if has_idle_blocks or partition.log.flush_needed(now_ms):
                self._server.flush((partition,))
            if partition.log.has_unwritten_snapshots:
                with contextlib.suppress(RaykaError):  # a full disk keeps no other log from its flush
                    await self._disk.run(partition.log.write_snapshots)
            if partition.log.needs_spare(now_ms):
                await self._disk.run(partition.log.make_spare)
            if number % _PARTITIONS_A_TURN == _PARTITIONS_A_TURN - 1:
                await asyncio.sleep(0)

    async def _checkpoint(self) -> None:
        logs = [partition.log for partition in self._replicas]
        await self._disk.run(lambda: self._directory.checkpoint(logs))

    async def _retain(self) -> None:
        for partition in self._replicas:
            await self._delete_old_segments(partition.log)
        await self._disk.run(lambda: self._directory.remove_deleted(time.time_ns() // 1_000_000))

    async def _delete_old_segments(self, log: Log) -> None:
        """A log that was deleted meanwhile, or can't be read, keeps no other from its retention."""
        try:
            await delete_old_segments(self._directory, self._disk, log)
        except RaykaError as error:
            logger.error("retention of %s failed: %s", log.topic_partition, error)

    async def _expire_producers(self) -> None:
        """One log a turn of the event loop: it may remember a hundred thousand producers."""
        now_ms = time.time_ns() // 1_000_000
        for partition in self._replicas:
            partition.log.remove_expired_producers(now_ms)
            await asyncio.sleep(0)

    async def _compile_checks(self) -> None:
        """Load the compiled checks of records, if the topics led here need many."""
        if COMPILED.is_worth_loading:
            await asyncio.to_thread(COMPILED.load)
