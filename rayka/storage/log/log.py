"""The log of one partition: its offsets, producers and epochs, over the segments that hold it.

One thread writes. `append_as_leader` checks everything before it writes anything; one system call puts the
batches at the end of the active segment. The other parts of the log have files of their own:

    open, after a crash too   `recovery.py`      what opening a log finds and repairs
    append                    `appends.py`       checks, offsets, timestamps, rolling; `validator.py` looks at batches
    read                      `reads.py`         by offset, by timestamp, aborted transactions
    delete                    `retention.py`     by time, by size, DeleteRecords
    compact                   `replacement.py`   a segment of `storage/cleaner` takes the place of old ones
    flush                     `flushing.py`      `flush.messages`, `flush.ms`, the recovery point
    offsets                   `state.py`         log start, high watermark, last stable offset, leader epochs

Source: the log storage engine document.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from rayka.config.log import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.directory import partition_metadata
from rayka.storage.directory.disk_state import DiskState
from rayka.storage.files import RealFiles, storing
from rayka.storage.log.flushing import LogFlush
from rayka.storage.log.reads import LogReads
from rayka.storage.log.recovery import NEW_LOG, LastRun, LogLoader
from rayka.storage.log.replacement import LogReplacement
from rayka.storage.log.retention import LogRetention
from rayka.storage.producers.entry import ProducerEntry
from rayka.storage.producers.replay import ProducerReplay
from rayka.storage.producers.state import DEFAULT_EXPIRATION_MS, ProducerState
from rayka.storage.producers.verification import Verification
from rayka.types import TopicPartition


class Log(LogReads, LogRetention, LogReplacement, LogFlush):
    """A partition's log. Methods raise RaykaError; KAFKA_STORAGE_ERROR stands for every OSError."""

    @classmethod
    def open(
        cls,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        files: RealFiles,
        *,
        now_ms: int,
        last_run: LastRun = NEW_LOG,
        topic_id: uuid.UUID | None = None,
        jitter: float = 0.0,
        producer_id_expiration_ms: int = DEFAULT_EXPIRATION_MS,
        disk: DiskState | None = None,
    ) -> Log:
        """Open the log in `directory`, or make an empty one there; after an unclean stop, recover it.

        With `flush.messages=1` records that may not be on the device are flushed, so that those which were visible
        before a restart are visible after it. Raises INCONSISTENT_TOPIC_ID, UNSUPPORTED_FOR_MESSAGE_FORMAT (messages of
        magic 0 or 1) and KAFKA_STORAGE_ERROR.
        """
        disk = disk or DiskState(directory)
        loader = LogLoader(files, directory, config, last_run, now_ms)
        try:
            files.make_directory(directory)
            topic_id = partition_metadata.settle(files, directory, topic_id)
            loaded = loader.load(ProducerState(files, directory, producer_id_expiration_ms))
            log = cls(
                topic_partition, directory, config, files, loaded,
                now_ms=now_ms, jitter=jitter, topic_id=topic_id, disk=disk,
            )  # fmt: skip
            log._begin(last_run.high_watermark)
        except OSError as error:
            loader.release()
            raise disk.failed(error) from error
        except BaseException:
            loader.release()
            raise
        return log

    def _begin(self, high_watermark: int) -> None:
        if self.flush_before_visible and self.log_end_offset > self.recovery_point:
            self.flush()
        self.update_high_watermark(min(high_watermark, self.log_end_offset))
        self._plan_snapshot()
        self.validate_state()

    def begin_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int, now_ms: int
    ) -> Verification | None:
        """What an append needs that may begin a transaction; None if the producer's transaction is open here."""
        return self._producers.begin_verification(producer_id, producer_epoch, base_sequence, now_ms)

    def end_verification(self, producer_id: int, verification: Verification) -> None:
        """The producer has no such transaction: forget that it was asked about."""
        self._producers.end_verification(producer_id, verification)

    @property
    def producers(self) -> Mapping[int, ProducerEntry]:
        """What the log remembers of each producer, by id."""
        return self._producers.entries

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget producers that wrote nothing for `producer.id.expiration.ms`."""
        self._producers.remove_expired(now_ms)

    @storing
    def assign_epoch(self, leader_epoch: int) -> None:
        """Note that `leader_epoch` begins at the log end, so that its first append need not. Any thread may call it."""
        if leader_epoch > self._epochs.latest:
            self._epochs.assign(leader_epoch, self.log_end_offset)

    @storing
    def truncate_to(self, offset: int) -> None:
        """Drop every batch with a record at or above `offset` (a follower does, when its leader never had them)."""
        if offset >= self._local.log_end_offset:
            return
        if offset < self._replaced_end:
            raise RaykaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.topic_partition} is being compacted up to offset {self._replaced_end}",
            )
        self._local.truncate_to(offset, self._now_ms)
        end_offset = self._local.log_end_offset
        self._producers.keep_snapshots([kept for kept in self._producers.snapshots if kept <= end_offset])
        self._epochs.truncate_from_end(end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.local_log_start_offset = min(self.local_log_start_offset, end_offset)
        self.copied_offset = min(self.copied_offset, end_offset - 1)
        ProducerReplay(self._producers, self._segments, end_offset, self._now_ms).finish(self._segments)
        if self.high_watermark >= end_offset:
            self.high_watermark = end_offset
            self._high_watermark_place = self._local.place_of(end_offset)
        self._plan_snapshot()

    @property
    def truncations(self) -> int:
        """How often records were cut off the end. A cleaned segment of before that is not put in place."""
        return self._local.truncations

    @storing
    def close(self, now_ms: int) -> None:
        """Leave everything complete and on the device, as a clean shutdown wants it."""
        self._now_ms = now_ms
        self._snapshot_producers()
        self._producers.write_snapshots()
        job = self._local.begin_last_flush()
        job.run()
        self.finish_flush(job)
        self._local.close()
