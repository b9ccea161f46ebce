"""Flushing a log: when a flush is due, and what it changes."""

from __future__ import annotations

from collections.abc import Callable

from rayka.errors import RaykaError
from rayka.storage.files import storing
from rayka.storage.log.flush_job import FlushJob
from rayka.storage.log.state import LogState


class LogFlush(LogState):
    """The part of `Log` that puts records on the device."""

    @property
    def flush_before_visible(self) -> bool:
        """Whether an append counts only when it is on the device (`flush.messages=1`)."""
        return self.config.flush_messages == 1

    @property
    def flush_due(self) -> bool:
        """Whether `flush.messages` is reached: what was appended may be answered after a flush."""
        return self._local.log_end_offset - self._local.recovery_point >= self.config.flush_messages

    def flush_needed(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` is reached, or a closed segment is not on the device yet."""
        is_unflushed = self._local.log_end_offset > self._local.recovery_point
        time_is_over = is_unflushed and now_ms - self._flushed_ms >= self.config.flush_ms
        return self.flush_due or time_is_over or self._local.has_unflushed_segments(now_ms)

    def when_rolled(self, call: Callable[[], None]) -> None:
        """Call after each roll, in the thread that rolls: a closed segment is not on the device yet."""
        self._local.on_roll = call

    def needs_spare(self, now_ms: int) -> bool:
        """Whether the next roll, which is not far, would have to make a file."""
        return not self.is_released and self._local.needs_spare(now_ms)

    def make_spare(self) -> None:
        """Make that file. Any thread may; without it the roll does."""
        self._local.make_spare()

    def has_idle_blocks(self, now_ms: int) -> bool:
        """Whether the log has blocks of the file system that it does not need soon."""
        return not self.is_released and self._local.has_idle_blocks(now_ms)

    def give_back_blocks(self, now_ms: int) -> None:
        """Give them back at the end of the next flush, which does not wait for the disk."""
        self._local.give_back_blocks(now_ms)

    def begin_flush(self) -> FlushJob:
        """A job that puts everything appended so far on the device; run it, in a thread or not, and finish it.

        Of a log that was released meanwhile nothing is left to flush, and the job does nothing.
        """
        return FlushJob(self._files) if self.is_released else self._begin_flush()

    @storing
    def _begin_flush(self) -> FlushJob:
        job = self._local.begin_flush()
        job.on_error = self._flush_failed
        return job

    def _flush_failed(self, job: FlushJob, error: OSError) -> RaykaError:
        """Any thread may call it: of several flushes at a time the system tells only one that bytes were lost."""
        return self._disk.flush_failed(error) if job.is_syncing else self._disk.failed(error)

    def finish_flush(self, job: FlushJob) -> None:
        """Move the recovery point to where the job got. Raises KAFKA_STORAGE_ERROR if it, or another, failed."""
        if self.is_released:
            return
        if job.error is not None:
            raise self._flush_failed(job, job.error) from job.error
        self._finish_flush(job)

    @storing
    def _finish_flush(self, job: FlushJob) -> None:
        self._local.finish_flush(job)
        self._flushed_ms = self._now_ms

    def flush(self) -> None:
        """Put everything on the device and wait for it. Raises KAFKA_STORAGE_ERROR."""
        job = self.begin_flush()
        job.run()
        self.finish_flush(job)
