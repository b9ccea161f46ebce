"""The log of one partition: what it means, over the segments that hold it.

One thread writes. `append_as_leader` checks everything before it writes anything; one system call puts the
batches at the end of the active segment. Offsets obey

    log start offset <= last stable offset <= high watermark <= log end offset

A reader gets a slice of a segment file. The place of the high watermark is kept with it, and the places
where readers at the end will come back are remembered, so a read at the tail looks nothing up.
Source: the log storage engine document.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator, Mapping
from itertools import chain, groupby, islice

from rayka.config.log import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.directory import partition_metadata
from rayka.storage.directory.disk_state import DiskState
from rayka.storage.files import RealFiles, storing
from rayka.storage.log import retention
from rayka.storage.log.appender import Appender, AppendInfo
from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.log.local_log import FlushJob, LocalLog, LogOffsetMetadata, Removal, SegmentDeletion
from rayka.storage.log.recovery import LastRun, LoadedLog, LogLoader
from rayka.storage.log.replacement import CleanedSegment, Replacement
from rayka.storage.log.search import offset_for_timestamp, offset_of_max_timestamp, offsets_of_segments
from rayka.storage.log.segment import Segment
from rayka.storage.log.transaction_index import AbortedTxn
from rayka.storage.producers.entry import ProducerEntry
from rayka.storage.producers.replay import ProducerReplay
from rayka.storage.producers.state import DEFAULT_EXPIRATION_MS, ProducerState
from rayka.storage.producers.verification import Verification
from rayka.types import NO_OFFSET, AbortedTransaction, FileSlice, OffsetAnswer, OffsetSpec, TopicPartition


class Log:
    """A partition's log. Methods raise RaykaError; KAFKA_STORAGE_ERROR stands for every OSError."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: str,
        config: LogConfig,
        files: RealFiles,
        loaded: LoadedLog,
        *,
        now_ms: int,
        jitter_ms: int = 0,
        topic_id: uuid.UUID | None = None,
        disk: DiskState | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.topic_id = topic_id
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self.local_log_start_offset = max(loaded.log_start_offset, loaded.segments.all[0].base_offset)
        """The first offset that is here; between the log start offset and this one records are in the remote store."""
        self.copied_offset = NO_OFFSET
        """The last offset that is known to be in the remote store (KIP-405), -1 if none is."""
        self.high_watermark = self.local_log_start_offset
        self._files = files
        self._jitter_ms = jitter_ms
        self._disk = disk or DiskState(directory)
        self.is_released = False
        """Whether the log was deleted or goes elsewhere; nothing may be done with it any more."""
        self._replacing: tuple[Segment, ...] = ()
        self._replaced_end = 0
        """Where the segments that are being replaced end."""
        self._segments = loaded.segments
        self._producers = loaded.producers
        self._epochs = loaded.leader_epochs
        self._local = LocalLog(
            files,
            directory,
            config,
            loaded.segments,
            loaded.log_end_offset,
            jitter_ms,
        )
        self._high_watermark_place = self._local.place_of(self.high_watermark)
        self._flushed_ms = self._now_ms = now_ms
        self._appender = Appender(topic_partition, config, self._local, self._producers, self._epochs)

    @classmethod
    def open(
        cls,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        files: RealFiles,
        *,
        now_ms: int,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        clean_shutdown: bool = False,
        same_boot: bool = False,
        was_cleaned: bool = False,
        topic_id: uuid.UUID | None = None,
        jitter_ms: int = 0,
        producer_id_expiration_ms: int = DEFAULT_EXPIRATION_MS,
        disk: DiskState | None = None,
    ) -> Log:
        """Open the log in `directory`, or make an empty one there; after an unclean stop, recover it.

        `same_boot` says that the kernel has not gone down since, `was_cleaned` that compaction may have left gaps. With
        `flush.messages=1` records that may not be on the device are flushed, so that those which were visible before a
        restart are visible after it. Raises INCONSISTENT_TOPIC_ID, UNSUPPORTED_FOR_MESSAGE_FORMAT (messages of magic 0
        or 1) and KAFKA_STORAGE_ERROR.
        """
        last_run = LastRun(recovery_point, log_start_offset, clean_shutdown, same_boot, was_cleaned)
        disk = disk or DiskState(directory)
        loader = LogLoader(files, directory, config, last_run, now_ms)
        try:
            files.make_directory(directory)
            topic_id = partition_metadata.settle(files, directory, topic_id)
            loaded = loader.load(ProducerState(files, directory, producer_id_expiration_ms))
            log = cls(
                topic_partition, directory, config, files, loaded,
                now_ms=now_ms, jitter_ms=jitter_ms, topic_id=topic_id, disk=disk,
            )  # fmt: skip
            log._begin(high_watermark)
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
        self.validate_state()

    def configure(self, config: LogConfig) -> None:
        """Take up changed topic configs."""
        self.config = config
        self._local.configure(config, self._jitter_ms)
        self._appender.configure(config)

    # -- failures -------------------------------------------------------------------------------

    def check_online(self) -> None:
        """Raises KAFKA_STORAGE_ERROR when the log directory is offline."""
        self._disk.check_readable()

    def failed(self, error: OSError) -> RaykaError:
        """Let the state of the disk follow from an error."""
        return self._disk.failed(error)

    # -- offsets --------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._local.log_end_offset

    @property
    def recovery_point(self) -> int:
        """The first offset that may not be on the device."""
        return self._local.recovery_point

    @property
    def last_stable_offset(self) -> int:
        """The first offset of a transaction that is not decided, at most the high watermark (KIP-98)."""
        first_unstable = self._producers.first_unstable_offset
        if first_unstable is None:
            return self.high_watermark
        return max(min(first_unstable, self.high_watermark), self.log_start_offset)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments; the last one is active."""
        return self._segments.all

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.size

    def update_high_watermark(self, offset: int) -> None:
        """Move the high watermark up to `offset`, at most to the log end; it never goes back."""
        log_end_offset = self._local.log_end_offset
        if offset >= log_end_offset:
            active = self._segments.active
            self.high_watermark, self._high_watermark_place = log_end_offset, (active, active.size)
        elif offset > self.high_watermark:
            self._high_watermark_place = self._find_place(offset)
            self.high_watermark = offset
        else:
            return
        self._producers.high_watermark_at(self.high_watermark)

    @storing
    def _find_place(self, offset: int) -> LogOffsetMetadata:
        return self._local.place_of(offset)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch in which `offset` was written, -1 if unknown."""
        return self._epochs.epoch_of(offset)

    @property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """Every leader epoch that the log knows, with its start offset."""
        return tuple(self._epochs.entries)

    def epoch_end_offset(self, epoch: int) -> EpochEntry:
        """The largest epoch not above `epoch` and its exclusive end offset, (-1, -1) if unknown (KIP-101)."""
        return self._epochs.end_offset(epoch, self.log_end_offset)

    # -- appending ------------------------------------------------------------------------------

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

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        *,
        origin_is_client: bool = True,
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append batches, which get the next offsets. All of them or, with an error, none.

        `records` is stamped in place. A batch that an idempotent producer sent before is not appended again.
        Raises CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE,
        UNSUPPORTED_COMPRESSION_TYPE, UNSUPPORTED_FOR_MESSAGE_FORMAT, OUT_OF_ORDER_SEQUENCE_NUMBER,
        INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR.
        """
        if not self._disk.takes_appends:
            self._disk.check_appendable()
        self._now_ms = now_ms
        try:
            return self._appender.append(
                records,
                leader_epoch,
                now_ms,
                self.log_start_offset,
                origin_is_client,
                verification,
                transaction_version,
            )
        except OSError as error:
            raise self.failed(error) from error

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget producers that wrote nothing for `producer.id.expiration.ms`."""
        self._producers.remove_expired(now_ms)

    # -- reading --------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upper_bound_offset: int, min_one_message: bool = True
    ) -> FileSlice | None:
        """The bytes from the batch that has `offset` on, below `upper_bound_offset`; None if there are none.

        At most `max_bytes`, cut wherever that falls, but the whole first batch if `min_one_message`. A slice
        lies in one segment. Raises OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, and
        OFFSET_MOVED_TO_TIERED_STORAGE below the local log start offset.
        """
        if self._disk.error is not None:
            self._disk.check_readable()
        if not self.local_log_start_offset <= offset < upper_bound_offset:
            self._check_range(offset)
            if offset == self.high_watermark:
                self._local.remember(offset, self._high_watermark_place)
            return None
        try:
            at_high_watermark = upper_bound_offset == self.high_watermark
            end = self._high_watermark_place if at_high_watermark else self._local.place_of(upper_bound_offset)
            return self._local.read(offset, max_bytes, upper_bound_offset, end, min_one_message)
        except OSError as error:
            raise self.failed(error) from error

    def _check_range(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self._local.log_end_offset:
            raise RaykaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is out of range for {self.topic_partition}, which has offsets from"
                f" {self.log_start_offset} to {self.log_end_offset}",
            )
        if offset < self.local_log_start_offset:
            raise RaykaError(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                f"Offset {offset} of {self.topic_partition} is in the remote store alone",
            )

    @storing
    def offset_for_timestamp(self, timestamp: int) -> OffsetAnswer | None:
        """The first record at or after `timestamp` (milliseconds), None if all are before."""
        return offset_for_timestamp(self._segments, timestamp, self.local_log_start_offset)

    @storing
    def offsets_of_segments(self, timestamp: int, max_offsets: int) -> tuple[int, ...]:
        """In descending order, where segments begin that were last written to by `timestamp`: the answer to
        ListOffsets 0. `OffsetSpec.LATEST` asks for the high watermark and all segments below it."""
        end = (self.high_watermark,) if timestamp == OffsetSpec.LATEST else ()
        found = chain(end, offsets_of_segments(self._segments, timestamp, self.log_start_offset))
        distinct = (offset for offset, _ in groupby(min(offset, self.high_watermark) for offset in found))
        return tuple(islice(distinct, max_offsets))

    @storing
    def max_timestamp(self) -> OffsetAnswer | None:
        """The record with the largest timestamp, None if no record has one (KIP-734)."""
        return offset_of_max_timestamp(self._segments, self.local_log_start_offset)

    @storing
    def aborted_transactions(self, fetch_offset: int, records: FileSlice | None) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that a reader of `records` may meet, by first offset (KIP-98)."""
        if records is None:
            return ()
        found = []
        upper_bound = -1
        for aborted in self._aborted_from(fetch_offset):
            if upper_bound < 0:
                upper_bound = min(self._local.end_of(fetch_offset, records), self.last_stable_offset)
            if aborted.first_offset < upper_bound:
                found.append(AbortedTransaction(aborted.producer_id, aborted.first_offset))
            if aborted.last_stable_offset >= upper_bound:
                break  # every later one begins above that
        return tuple(sorted(found, key=lambda aborted: aborted.first_offset))

    @storing
    def aborted_before(self, end_offset: int) -> tuple[AbortedTxn, ...]:
        """Of the transactions that were aborted in the local segments, those that began before `end_offset`."""
        found = []
        for aborted in self._aborted_from(self.local_log_start_offset):
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                break
        return tuple(found)

    def _aborted_from(self, offset: int) -> Iterator[AbortedTxn]:
        for segment in self._segments.from_offset(offset):
            yield from segment.transaction_index.ending_from(offset)

    # -- retention ------------------------------------------------------------------------------

    @storing
    def delete_records(self, offset: int) -> int:
        """Move the log start offset up to `offset`, at most to the high watermark; the new log start offset.

        Raises OFFSET_OUT_OF_RANGE above the high watermark. Segments below are deleted with the next retention.
        """
        if offset > self.high_watermark:
            raise RaykaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is above the high watermark {self.high_watermark} of {self.topic_partition}",
            )
        self._advance_log_start_offset(offset)
        return self.log_start_offset

    def _advance_log_start_offset(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self._epochs.truncate_from_start(offset)
            self.log_start_offset = offset
            self.local_log_start_offset = max(self.local_log_start_offset, offset)

    @storing
    def take_up_remote(self, log_start_offset: int, copied_offset: int) -> None:
        """Take note of what is in the remote store: the first offset that can be read there, and the last one."""
        self._advance_log_start_offset(log_start_offset)
        self.copied_offset = copied_offset

    @storing
    def deletable_segments(self, now_ms: int) -> tuple[Segment, ...]:
        """The segments that retention or the log start offset allows to be deleted. Any thread may call it."""
        return retention.deletable(
            self._segments.all,
            self.config,
            now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            log_end_offset=self.log_end_offset,
            copied_offset=self.copied_offset,
        )

    @storing
    def end_segments(self, segments: tuple[Segment, ...], now_ms: int) -> tuple[Segment, ...]:
        """Make ready to delete segments that `deletable_segments` gave: roll if the active one is among them.

        Returns those that may be deleted once `write_snapshots` has written the producers' state at their end.
        """
        if self._segments.active in segments:
            segments = self.deletable_segments(now_ms)
            if len(segments) == len(self._segments):
                self._appender.roll(now_ms)
        return segments

    @storing
    def delete_segments(self, segments: tuple[Segment, ...], now_ms: int) -> SegmentDeletion | None:
        """Delete segments that `end_segments` gave. Their files are left to the deletion, for any thread to run.

        Segments stay while the state of the producers after them is in no file: a crash would lose the sequences that
        only these segments tell, and retries would be written twice. None if nothing is deleted.
        """
        segments = self._without_unwritten_producers(self._without_replaced(segments))
        if not segments:
            return None
        following = self._segments.all[len(segments)]
        if self.config.is_copied:
            self.local_log_start_offset = max(self.local_log_start_offset, following.base_offset)
        else:
            self._advance_log_start_offset(following.base_offset)
        deletion = self._local.delete_segments(segments, now_ms)
        snapshots = self._producers.forget_snapshots(segment.base_offset for segment in segments)
        if self._high_watermark_place[0] in segments:
            self._high_watermark_place = self._local.place_of(self.high_watermark)
        return deletion._replace(paths=deletion.paths + snapshots)

    def _without_replaced(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """Those before the segments that are being replaced."""
        is_replaced = (segments.index(segment) for segment in self._replacing if segment in segments)
        return segments[: min(is_replaced, default=len(segments))]

    def _without_unwritten_producers(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        everything = self._segments.all
        count = len(segments) if segments == everything[: len(segments)] else 0
        while count and (count == len(everything) or self._producers.is_unwritten(everything[count].base_offset)):
            count -= 1
        return segments[:count]

    @storing
    def delete_old_segments(self, now_ms: int) -> Removal | None:
        """Delete the segments that retention and the log start offset allow to be deleted, and rename their files.

        The removal is due after `file.delete.delay.ms`.
        """
        segments = self.end_segments(self.deletable_segments(now_ms), now_ms)
        if segments:
            self.write_snapshots()
        deletion = self.delete_segments(segments, now_ms)
        self.write_epochs()
        return None if deletion is None else deletion.rename(self._files)

    @storing
    def assign_epoch(self, leader_epoch: int) -> None:
        """Note that `leader_epoch` begins at the log end, so that its first append need not. Any thread may call it."""
        if leader_epoch > self._epochs.latest:
            self._epochs.assign(leader_epoch, self.log_end_offset)

    @storing
    def write_epochs(self) -> None:
        """Bring the epoch checkpoint up to the log start offset. Any thread may call it."""
        self._epochs.write()

    def snapshot_path(self, offset: int) -> str:
        """The file with the producers' state below `offset`, empty if none was written."""
        is_there = offset in self._producers.snapshots and not self._producers.is_unwritten(offset)
        return self._producers.snapshot_path(offset) if is_there else ""

    @property
    def has_unwritten_snapshots(self) -> bool:
        """Whether `write_snapshots` has something to do."""
        return self._producers.has_unwritten_snapshots

    @storing
    def write_snapshots(self) -> None:
        """Write the snapshots of the producers that were taken, at rolls for example. Any thread may call it."""
        self._producers.write_snapshots()

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
        self._producers.keep_snapshots([kept for kept in self._producers.snapshots if kept <= offset])
        self._local.truncate_to(offset, self._now_ms)
        end_offset = self._local.log_end_offset
        self._epochs.truncate_from_end(end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.local_log_start_offset = min(self.local_log_start_offset, end_offset)
        ProducerReplay(self._producers, self._segments, end_offset, self._now_ms).finish(self._segments)
        if self.high_watermark >= end_offset:
            self.high_watermark = end_offset
            self._high_watermark_place = self._local.place_of(end_offset)
        self._appender.plan_snapshot()

    @storing
    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log end, unless the active one is empty."""
        self._appender.roll(now_ms)

    # -- compaction -----------------------------------------------------------------------------

    @property
    def truncations(self) -> int:
        """How often records were cut off the end. A cleaned segment of before that is not put in place."""
        return self._local.truncations

    @property
    def active_producers(self) -> dict[int, tuple[int, int]]:
        """Of each producer the last offset of its data, -1 if no batch of it is remembered, and its epoch."""
        return {
            producer_id: (entry.last_offset, entry.producer_epoch)
            for producer_id, entry in self._producers.entries.items()
        }

    def begin_replacement(self, cleaned: CleanedSegment) -> Replacement | None:
        """What puts a cleaned segment in place (`storage.log.replacement`); retention leaves its segments alone then.

        None if some of the segments that it was made from are gone.
        """
        first = self._segments.floor(cleaned.base_offset)
        at = 0 if first is None else self._segments.all.index(first)
        old = self._segments.all[at : at + len(cleaned.base_offsets)]
        if self._replacing or tuple(segment.base_offset for segment in old) != cleaned.base_offsets:
            return None
        if self._segments.active in old:
            return None
        self._replacing = old
        self._replaced_end = self._segments.all[at + len(old)].base_offset
        return Replacement(self._files, self.directory, self.config, cleaned.base_offset, old)

    @storing
    def replace_segments(self, replacement: Replacement, now_ms: int) -> SegmentDeletion:
        """Let readers see the new segment; the old files are still to be deleted."""
        deletion = self._local.replace_segments(replacement.old, replacement.segment, now_ms)
        gone = (segment.base_offset for segment in replacement.old[1:])
        if self._high_watermark_place[0] in replacement.old:
            self._high_watermark_place = self._local.place_of(self.high_watermark)
        return deletion._replace(paths=deletion.paths + self._producers.forget_snapshots(gone))

    def end_replacement(self, replacement: Replacement) -> None:
        """The files have their names, or the replacement was given up."""
        self._replacing, self._replaced_end = (), 0
        if replacement.segment in self._segments:
            replacement.segment.freeze()
        else:
            replacement.segment.close()

    # -- flushing -------------------------------------------------------------------------------

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
        return self.flush_due or time_is_over or self._local.has_unflushed_segments

    def begin_flush(self) -> FlushJob:
        """A job that puts everything appended so far on the device; run it, in a thread or not, and finish it.

        Of a log that was released meanwhile nothing is left to flush, and the job does nothing.
        """
        return FlushJob(self._files) if self.is_released else self._begin_flush()

    @storing
    def _begin_flush(self) -> FlushJob:
        return self._local.begin_flush()

    def finish_flush(self, job: FlushJob) -> None:
        """Move the recovery point to where the job got. Raises KAFKA_STORAGE_ERROR if it failed."""
        if not self.is_released:
            self._finish_flush(job)

    @storing
    def _finish_flush(self, job: FlushJob) -> None:
        if job.error is not None:
            failed = self._disk.flush_failed if job.is_syncing else self._disk.failed
            raise failed(job.error) from job.error
        self._local.finish_flush(job)
        self._flushed_ms = self._now_ms

    def flush(self) -> None:
        """Put everything on the device and wait for it. Raises KAFKA_STORAGE_ERROR."""
        job = self.begin_flush()
        job.run()
        self.finish_flush(job)

    # -- invariants -----------------------------------------------------------------------------

    @storing
    def validate_state(self) -> None:
        """Check what must hold between any two calls; reads a few KB. Raises AssertionError, KAFKA_STORAGE_ERROR."""
        start, end = self.log_start_offset, self.log_end_offset
        assert start <= self.last_stable_offset <= self.high_watermark <= end, (start, self.high_watermark, end)
        local_start = self.local_log_start_offset
        assert start <= local_start <= end, (start, local_start, end)
        assert self._segments.all[0].base_offset <= local_start, (self._segments.all[0].base_offset, local_start)
        self._local.validate_state()
        self._epochs.validate_state(end)
        self._producers.validate_state(end)

    @storing
    def close(self, now_ms: int) -> None:
        """Leave everything complete and on the device, as a clean shutdown wants it."""
        self._now_ms = now_ms
        self._appender.snapshot_producers()
        self._producers.write_snapshots(sync=True)
        self._local.close()

    def release(self) -> None:
        """Give the descriptors back and write nothing: the log goes elsewhere. Later calls are refused."""
        self.is_released = True
        self._disk = DiskState(self.directory)
        self._disk.failed(FileNotFoundError(errno.ENOENT, "the log was released", self.directory))
        self._local.release()
