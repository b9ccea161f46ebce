"""Compacts the logs of one partition actor: a process cleans the dirtiest log, and the actor swaps in the result.

The serving loop only switches segments. Measuring and renaming are done in the disk thread, cleaning in a process of
its own (`rayka.actors.cleaner`). At most `log.cleaner.threads` of these work at a time on a node: its actors share that
many slots, which are locked files.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rayka.actors.background import BackgroundTasks
from rayka.actors.cleaner.messages import CleaningEvent, CleaningFailure, CleaningRequest
from rayka.actors.cleaner.process import CleanerProcess
from rayka.actors.replica.disk import DiskThread
from rayka.config import BrokerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.replicas import Replicas
from rayka.storage.cleaner.dirtiness import Dirtiness, aborted_transactions, measure, plan_of
from rayka.storage.cleaner.plan import CleanerLimits, RoundEnd
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.log.log import Log
from rayka.storage.log.replacement import CleanedSegment
from rayka.storage.segments.transaction_index import AbortedTxn

logger = logging.getLogger(__name__)

_IDLE_S = 600.0
_SHORTEST_PAUSE_S = 0.01
_EARLY_ROLL_BYTES = 16 << 20
_EARLY_ROLL_GROWTH = 3
_DISK_ERRORS = frozenset((errno.EIO, errno.EROFS))


class LogCleaner:
    """`config` gives the settings as they are now; `slots` is a directory that the actors of the node share."""

    def __init__(
        self,
        replicas: Replicas,
        directory: LogDirectory,
        disk: DiskThread,
        config: Callable[[], BrokerConfig],
        slots: str,
    ) -> None:
        self._replicas = replicas
        self._directory = directory
        self._disk = disk
        self._config = config
        self._slots = slots
        self._files = RealFiles()
        self._process = CleanerProcess()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rayka-cleaner")
        self._background = BackgroundTasks("log cleaner")
        self._uncleanable: set[Log] = set()
        self._failed_logs: set[Log] = set()
        self._working = asyncio.Lock()
        self._is_stopped = False
        self._used_s = 0.0
        self.rounds = 0
        """Rounds that were carried out."""

    def start(self) -> None:
        """Look for dirty logs every `log.cleaner.backoff.ms`."""
        self._background.start("log cleaner", self._run())

    async def stop(self) -> None:
        """End the round under way; a segment that is being put in place is finished."""
        self._is_stopped = True
        self._process.stop()
        async with self._working:
            await self._background.stop()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._process.end)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        while not self._is_stopped:
            await asyncio.sleep(max(self._config()["log.cleaner.backoff.ms"] / 1000, _SHORTEST_PAUSE_S))
            try:
                await self._clean_all()
            except Exception:
                logger.exception("the log cleaner failed")

    async def _clean_all(self) -> None:
        """Clean what is dirty now, the dirtiest first; a log whose round fails keeps no other from its turn."""
        self._failed_logs.clear()
        failed = 0
        while await self.clean_one() or len(self._failed_logs) > failed:
            failed = len(self._failed_logs)

    async def clean_one(self) -> bool:
        """Clean the dirtiest log that should be cleaned, if a slot is free; return whether one was cleaned."""
        async with self._working:
            dirtiest = None if self._is_stopped else await self._dirtiest()
            if dirtiest is None:
                await self._end_idle_process()
                return False
            slot = self._take_slot()
            if slot is None:
                return False
            try:
                return await self._clean(dirtiest)
            finally:
                self._used_s = time.monotonic()
                self._files.close(slot)

    async def _end_idle_process(self) -> None:
        if time.monotonic() - self._used_s > _IDLE_S:
            await self._in_thread(self._process.end)

    async def _in_thread(self, work: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _take_slot(self) -> int | None:
        """The lock on a free slot, None if other actors of the node have all of them."""
        os.makedirs(self._slots, mode=0o700, exist_ok=True)
        for number in range(self._config()["log.cleaner.threads"]):
            with contextlib.suppress(BlockingIOError):
                return self._files.lock(os.path.join(self._slots, f"cleaner-{number}.lock"))
        return None

    # -- choosing -------------------------------------------------------------------------------

    async def _dirtiest(self) -> Dirtiness | None:
        if not self._config()["log.cleaner.enable"] or not self._config()["log.cleaner.threads"]:
            return None
        compacted = [each for each in self._replicas if "compact" in each.log.config.cleanup_policy]
        self._uncleanable &= {partition.log for partition in compacted}
        candidates = []
        for partition in compacted:
            if partition.is_internal:
                _roll_early(partition.log)
            if partition.log in self._uncleanable or partition.log in self._failed_logs:
                continue
            if (dirtiness := await self._measure(partition.log)) is not None:
                candidates.append(dirtiness)
        return max(candidates, key=lambda dirtiness: dirtiness.ratio, default=None)

    async def _measure(self, log: Log) -> Dirtiness | None:
        """The dirtiness of a log that should be cleaned."""
        cleaned_offset = self._directory.cleaned_offset(log.topic_partition)
        now_ms = time.time_ns() // 1_000_000
        try:
            dirtiness = await self._disk.run(lambda: measure(log, cleaned_offset, now_ms))
        except (OSError, RaykaError) as error:
            logger.warning("cannot measure how dirty %s is: %s", log.topic_partition, error)
            return None
        return dirtiness if dirtiness.should_be_cleaned else None

    # -- cleaning -------------------------------------------------------------------------------

    def _limits(self) -> CleanerLimits:
        config = self._config()
        threads = config["log.cleaner.threads"]
        return CleanerLimits(
            dedupe_buffer_bytes=config["log.cleaner.dedupe.buffer.size"] // threads,
            io_buffer_bytes=max(config["log.cleaner.io.buffer.size"] // threads, 64 * 1024),
            load_factor=config["log.cleaner.io.buffer.load.factor"],
            max_bytes_per_second=max(config["log.cleaner.io.max.bytes.per.second"] / threads, 1.0),
        )

    async def _clean(self, dirtiness: Dirtiness) -> bool:
        """Carry out one round; return whether it got to its end."""
        log, started, end = dirtiness.log, time.monotonic(), None
        try:
            aborted = await self._prepare(dirtiness)
            request = CleaningRequest(plan_of(dirtiness, aborted, time.time_ns() // 1_000_000), self._limits())
            await self._in_thread(lambda: self._process.begin(request))
            if (cleaned := await self._carry_out(dirtiness)) is not None:
                await self._disk.run(lambda: self._directory.write_cleaned_offset(log, cleaned.end_offset))
                end = cleaned
        except (OSError, RaykaError) as error:
            if not self._is_stopped and not log.is_released:
                logger.error("compaction of %s failed: %s", log.topic_partition, error)
        except Exception:  # the dirtiest log must not keep all others from their turn, time and again
            logger.exception("compaction of %s failed", log.topic_partition)
        finally:
            if end is None:
                self._failed_logs.add(log)
                await self._abandon(log)
        if end is None:
            return False
        self.rounds += 1
        logger.info(
            "compacted %s up to offset %d in %.1f s: %d of %d records kept, %.1f MB read and %.1f MB written",
            log.topic_partition, end.end_offset, time.monotonic() - started, end.records_kept, end.records_read,
            end.bytes_read / 1e6, end.bytes_written / 1e6,
        )  # fmt: skip
        return True

    async def _prepare(self, dirtiness: Dirtiness) -> tuple[AbortedTxn, ...]:
        """Make ready for a round; the aborted transactions.

        The markers of transactions in dirty segments may lie in the active one. They are flushed: a crash that takes
        a marker must find the older values of the keys that its transaction has written.
        """
        log = dirtiness.log
        await self._disk.run(lambda: self._directory.discard_cleaned(log))
        job = log.begin_flush()
        await self._in_thread(job.run)
        log.finish_flush(job)
        if self._directory.cleaned_offset(log.topic_partition) is None:
            await self._disk.run(lambda: self._directory.write_cleaned_offset(log, dirtiness.first_dirty_offset))
        return await self._disk.run(lambda: aborted_transactions(dirtiness))

    async def _carry_out(self, dirtiness: Dirtiness) -> RoundEnd | None:
        """Put each segment in place as it comes; the end of the round, None if it was ended early."""
        log = dirtiness.log
        while True:
            event = await self._in_thread(self._process.next)
            if not isinstance(event, CleaningEvent) or self._is_stopped:
                return None
            if event.failure is not None:
                self._failed(log, event.failure)
                return None
            if log.truncations != dirtiness.truncations or "compact" not in log.config.cleanup_policy:
                return None
            if event.end is not None:
                return event.end
            if event.segment is not None and not await self._replace(log, event.segment):
                return None

    def _failed(self, log: Log, failure: CleaningFailure) -> None:
        """A log that can't be cleaned is left alone until the next start; what the disk refuses is tried again."""
        if log.is_released:
            return
        logger.error("compaction of %s failed: %s", log.topic_partition, failure.message)
        if failure.errno in _DISK_ERRORS:
            self._directory.failed(OSError(failure.errno, failure.message))
        if failure.code and failure.code != ErrorCode.INVALID_CONFIG:
            self._uncleanable.add(log)

    async def _replace(self, log: Log, cleaned: CleanedSegment) -> bool:
        replacement = log.begin_replacement(cleaned)
        if replacement is None:
            return False
        try:
            if not await self._disk.run(lambda: self._directory.prepare_replacement(log, replacement)):
                return False
            deletion = log.replace_segments(replacement, time.time_ns() // 1_000_000)
            await self._disk.run(lambda: self._directory.finish_replacement(log, replacement, deletion))
        finally:
            log.end_replacement(replacement)
        return True

    async def _abandon(self, log: Log) -> None:
        """End the process, and remove what it has left behind."""
        await self._in_thread(self._process.end)
        with contextlib.suppress(RaykaError):
            await self._disk.run(lambda: self._directory.discard_cleaned(log))


def _roll_early(log: Log) -> None:
    """Close the active segment of an internal topic when most of the log is in it, out of the cleaner's reach.

    A coordinator loads the whole log, and `offsets.topic.segment.bytes` alone would let much outdated state gather.
    """
    active_bytes = log.segments[-1].size
    if active_bytes >= max(_EARLY_ROLL_BYTES, _EARLY_ROLL_GROWTH * (log.size - active_bytes)):
        with contextlib.suppress(RaykaError):
            log.roll(time.time_ns() // 1_000_000)
