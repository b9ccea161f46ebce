"""Group commit: one fsync in a thread covers every append that arrived while the one before it ran."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice

from rayka.actors.background import failures
from rayka.errors import RaykaError
from rayka.replica.partition import Partition
from rayka.storage.log.flush_job import FlushJob
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 32
"""The most partitions of one round, so that its beginning and its end never block the loop for long."""
_RETRY_S = 0.1


class GroupCommit:
    """Flushes partitions; calls `flushed(partition)` or `failed(partition, error)` in the loop for each.

    An error of one partition, also one that `flushed` or `failed` raises, is no other's. A round that fails for another
    reason, as without a thread to wait in, is logged and counted, and done again.
    """

    def __init__(self, flushed: Callable[[Partition], None], failed: Callable[[Partition, RaykaError], None]) -> None:
        self._flushed = flushed
        self._failed = failed
        self._dirty: dict[TopicPartition, Partition] = {}
        self._task: asyncio.Task[None] | None = None

    def flush(self, partitions: Iterable[Partition]) -> None:
        """Flush these soon."""
        for partition in partitions:
            self._dirty[partition.topic_partition] = partition
        if self._dirty and self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Wait until nothing is left to flush."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._dirty:
                partitions = [self._dirty.pop(name) for name in list(islice(self._dirty, _MOST_AT_ONCE))]
                try:
                    await self._flush_round(partitions)
                except Exception:
                    failures["group commit"] += 1
                    logger.exception("a round of flushes failed; it is done again")
                    self._dirty = {partition.topic_partition: partition for partition in partitions} | self._dirty
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._task = None

    async def _flush_round(self, partitions: Iterable[Partition]) -> None:
        jobs: list[tuple[Partition, FlushJob]] = []
        try:
            for each in partitions:
                if (job := self._begin(each)) is not None:
                    jobs.append((each, job))
            await asyncio.get_running_loop().run_in_executor(None, _run_jobs, [job for _, job in jobs])
        except Exception:
            for _, job in jobs:
                job.give_up()
            raise
        for partition, job in jobs:
            self._finish(partition, job)

    def _begin(self, partition: Partition) -> FlushJob | None:
        try:
            return partition.log.begin_flush()
        except RaykaError as error:
            self._fail(partition, error)
            return None

    def _finish(self, partition: Partition, job: FlushJob) -> None:
        try:
            partition.log.finish_flush(job)
            self._flushed(partition)
        except RaykaError as error:
            self._fail(partition, error)
        except Exception:
            logger.exception("%s: the flush succeeded, but the work after it failed", partition.topic_partition)

    def _fail(self, partition: Partition, error: RaykaError) -> None:
        try:
            self._failed(partition, error)
        except Exception:
            logger.exception("%s: the flush failed (%s), and the work after it too", partition.topic_partition, error)


def _run_jobs(jobs: list[FlushJob]) -> None:
    for job in jobs:
        job.run()
