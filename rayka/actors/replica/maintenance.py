"""What goes on by the clock in a partition actor: flushes, checkpoints, retention, removal of deleted files."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from rayka.actors.background import BackgroundTasks
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig
from rayka.replica.partition import Replicas
from rayka.storage.directory.log_directory import LogDirectory

_FLUSH_CHECK_S = 1.0
_EXPIRY_CHECK_S = 600.0


class LogUpkeep:
    """Runs each task at the interval that its setting gives."""

    def __init__(
        self, replicas: Replicas, directory: LogDirectory, server: ReplicaServer, config: BrokerConfig
    ) -> None:
        self._replicas = replicas
        self._directory = directory
        self._server = server
        self._intervals: tuple[tuple[float, Callable[[int], None]], ...] = (
            (min(_FLUSH_CHECK_S, config["log.flush.scheduler.interval.ms"] / 1000), self._flush),
            (config["log.flush.offset.checkpoint.interval.ms"] / 1000, self._checkpoint),
            (config["log.retention.check.interval.ms"] / 1000, self._retain),
            (_EXPIRY_CHECK_S, self._expire_producers),
        )
        self._background = BackgroundTasks("log upkeep")

    def start(self) -> None:
        """Begin."""
        for interval_s, task in self._intervals:
            self._background.repeat(task.__name__.strip("_"), _step(task), interval_s=interval_s)

    async def stop(self) -> None:
        """End; a task that runs finishes first, since none of them waits."""
        await self._background.stop()

    def _flush(self, now_ms: int) -> None:
        """Logs whose `flush.ms` is over, and those with rolled segments that are not on the disk yet."""
        self._server.flush(partition for partition in self._replicas if partition.log.flush_needed(now_ms))

    def _checkpoint(self, now_ms: int) -> None:
        self._directory.checkpoint([partition.log for partition in self._replicas])

    def _retain(self, now_ms: int) -> None:
        for partition in self._replicas:
            partition.log.delete_old_segments(now_ms)
        self._directory.remove_deleted(now_ms)

    def _expire_producers(self, now_ms: int) -> None:
        for partition in self._replicas:
            partition.log.remove_expired_producers(now_ms)


def _step(task: Callable[[int], None]) -> Callable[[], Awaitable[None]]:
    async def step() -> None:
        task(time.time_ns() // 1_000_000)

    return step
