"""Disk work that no request waits for, and the monitoring of a failing disk.

One thread does all work on a log directory other than appends, reads and flushes: opening and recovering logs,
checkpoints, retention, removals. So the event loop never waits for it, and the directory needs no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rayka.actors.background import BackgroundTasks, StopLoop
from rayka.errors import RaykaError
from rayka.storage.directory.disk_state import State
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.log.deletion import SegmentDeletion
from rayka.storage.log.log import Log

logger = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_INTERVAL_S = 5.0


class DiskThread:
    """Runs work in the order in which it comes."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rayka-disk")

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread; returns what it returns, raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def start(self, work: Callable[[], object]) -> None:
        """Run `work`, which raises nothing and which nobody waits for, in the thread. Any thread may call it."""
        self._executor.submit(work)

    def stop(self) -> None:
        """Wait until everything is done."""
        self._executor.shutdown()


async def delete_old_segments(directory: LogDirectory, disk: DiskThread, log: Log) -> None:
    """Delete the segments of a log that retention allows to be deleted. Raises KAFKA_STORAGE_ERROR.

    On a full disk snapshots of the producers may find no room. Then the segments whose snapshots were written before
    are deleted, which makes room.
    """
    now_ms = time.time_ns() // 1_000_000
    deletable = log.end_segments(await disk.run(lambda: log.deletable_segments(now_ms)), now_ms)
    if deletable.segments:
        with contextlib.suppress(RaykaError):
            await disk.run(log.write_snapshots)
    deletion = log.delete_segments(deletable, now_ms)
    if deletion is not None:
        await disk.run(lambda: _rename(deletion, directory, log, now_ms))
        await disk.run(log.write_epochs)


def _rename(deletion: SegmentDeletion, directory: LogDirectory, log: Log, now_ms: int) -> None:
    """Rename the files of segments that a log has let go of, and remove those that are due.

    Of a log with tiered storage the first segment alone does not tell where it starts, so that is written before. If a
    full disk has no room for it, the files are removed at once, and it is written then.
    """
    try:
        if log.config.remote_storage_enable:
            directory.write_log_starts([log])
    except RaykaError:
        directory.rename_deleted(deletion._replace(due_ms=now_ms))
        directory.remove_deleted(now_ms)
        directory.write_log_starts([log])
    else:
        directory.rename_deleted(deletion)
        directory.remove_deleted(now_ms)


class DiskMonitor:
    """Acts on the state of a log directory's disk: the one place that does.

    While it is failing, it is probed, and `recovered` is awaited when it takes appends again. When it goes offline,
    `went_offline` is called.
    """

    def __init__(
        self,
        directory: LogDirectory,
        thread: DiskThread,
        recovered: Callable[[], Awaitable[None]],
        went_offline: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._thread = thread
        self._recovered = recovered
        self._went_offline = went_offline
        self._background = BackgroundTasks("disk")
        self._is_probing = False
        self._loop = asyncio.get_running_loop()
        directory.disk.on_change = self._notify

    def check(self) -> None:
        """Act on errors from before the monitor was there."""
        if self._directory.disk.state is not State.ONLINE:
            self._changed(self._directory.disk.state)

    async def stop(self) -> None:
        """Watch no longer."""
        self._directory.disk.on_change = None
        await self._background.stop()

    def _notify(self, state: State) -> None:
        """Called in any thread."""
        self._loop.call_soon_threadsafe(self._changed, state)

    def _changed(self, state: State) -> None:
        disk = self._directory.disk
        if state is State.ONLINE:
            logger.warning("log directory %s takes appends again", disk.path)
        elif state is State.OFFLINE:
            logger.error("log directory %s is offline: %s", disk.path, disk.error)
            self._went_offline()
        elif not self._is_probing:
            logger.error("log directory %s takes no appends: %s", disk.path, disk.error)
            self._is_probing = True
            self._background.repeat("disk probe", self._probe, interval_s=PROBE_INTERVAL_S)

    async def _probe(self) -> None:
        """Back to normal if the disk is. While it is not, the error is expected and was logged."""
        disk = self._directory.disk
        if disk.state is State.FAILING:
            await self._thread.run(self._try_probe)
        if disk.state is State.ONLINE:
            await self._recovered()
        if disk.state is State.FAILING:  # still, or again during the recovery
            return
        self._is_probing = False
        raise StopLoop

    def _try_probe(self) -> None:
        try:
            self._directory.probe()
        except RaykaError as error:
            logger.debug("%s", error)
