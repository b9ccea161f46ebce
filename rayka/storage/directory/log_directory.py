"""A log directory: the logs of one process, their checkpoints, and the markers of the last stop.

One process holds the directory, with the lock on `.lock`. After a clean stop the marker `.kafka_cleanshutdown` says
that no log needs recovery. After any other stop the `BootRecord` tells whether the machine has rebooted; if not,
everything that was written is still there. `disk_state` decides what an OSError does to the directory and its logs. A
directory is used by one thread at a time; at the same time another thread may append to its logs and read them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable

from rayka.config.log import LogConfig
from rayka.errors import RaykaError
from rayka.storage.directory import checkpoints, partition_metadata
from rayka.storage.directory.boot_record import BootRecord
from rayka.storage.directory.disk_state import NO_SPACE, DiskState, State
from rayka.storage.directory.meta_properties import MetaProperties
from rayka.storage.directory.names import DELETE_SUFFIX, STRAY_SUFFIX, parse_directory_name, renamed, stray_name
from rayka.storage.files import RealFiles, storage_error, storing
from rayka.storage.log.deletion import Removal, SegmentDeletion
from rayka.storage.log.log import Log
from rayka.storage.log.recovery import LastRun
from rayka.storage.log.replacement import Replacement
from rayka.storage.producers.state import DEFAULT_EXPIRATION_MS
from rayka.storage.segments.segment import CLEANED_SUFFIX
from rayka.types import FileSlice, TopicPartition

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINTS_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARKS_FILE = "replication-offset-checkpoint"
CLEANED_OFFSETS_FILE = "cleaner-offset-checkpoint"
DELETIONS_FILE = "deletions-version"
OFFSET_FILES = RECOVERY_POINTS_FILE, LOG_START_OFFSETS_FILE, HIGH_WATERMARKS_FILE, CLEANED_OFFSETS_FILE
_CLEAN_SHUTDOWN = b'{"version":0,"brokerEpoch":-1}'
PROBE_FILE = ".probe"
PROBE_BYTES = 1 << 20
"""How much free space there must be before appends are accepted again."""


class LogDirectory:
    """An open and locked log directory. Methods raise KAFKA_STORAGE_ERROR for an OSError, and when the disk is offline.

    `partitions` are those found at the start, with their topic ids; `strays` are the directories that are not
    partitions, which stay untouched. `deletions_version` is that of the newest metadata whose deletions of topics were
    carried out here, -1 if there were none.
    """

    def __init__(self, path: str, files: RealFiles, lock: int, properties: MetaProperties | None, now_ms: int) -> None:
        self.path = path
        self.disk = DiskState(path, on_failed_flush=lambda: self._boot.flush_failed())
        self.properties = properties
        self.partitions: dict[TopicPartition, uuid.UUID | None] = {}
        self.strays: list[str] = []
        self._files = files
        self._lock = lock
        self._now_ms = now_ms
        self._logs: dict[TopicPartition, Log] = {}
        self._removals: list[Removal] = []
        self._gone: set[TopicPartition] = set()
        """Partitions that are not here any more, and may still be in the checkpoints."""
        self._is_writing = False
        self._was_clean = self._is_marked_clean = files.exists(self._file(CLEAN_SHUTDOWN_FILE))
        self._boot = BootRecord(files, path)
        known = checkpoints.read_number(files, self._file(DELETIONS_FILE))
        self.deletions_version = -1 if known is None else known
        self._offsets = {name: checkpoints.read_offsets(files, self._file(name)) for name in OFFSET_FILES}
        offsets = self._offsets.values()
        self._recovery_points, self._log_start_offsets, self._high_watermarks, self._cleaned_offsets = offsets
        self._find_partitions()
        if checkpoints.is_damaged(files, self._file(CLEANED_OFFSETS_FILE)):
            self._cleaned_offsets.update(dict.fromkeys(self.partitions, 0) | self._cleaned_offsets)
        for topic_partition in set().union(*self._offsets.values()) - self.partitions.keys():
            self._forget(topic_partition)

    @classmethod
    def open(
        cls, path: str, files: RealFiles, *, now_ms: int, properties: MetaProperties | None = None
    ) -> LogDirectory:
        """Lock and read the directory; create it if it does not exist.

        `properties` are checked against `meta.properties`, or written there. Raises BlockingIOError while another
        process holds the directory, INCONSISTENT_CLUSTER_ID, KAFKA_STORAGE_ERROR.
        """
        path = os.path.abspath(path)
        try:
            files.make_lasting_directory(path)
            lock = files.lock(os.path.join(path, LOCK_FILE))
            try:
                properties = MetaProperties.settle(files, path, properties)
                return cls(path, files, lock, properties, now_ms)
            except BaseException:
                files.close(lock)
                raise
        except BlockingIOError:
            raise
        except OSError as error:
            raise storage_error(f"Cannot open the log directory {path}", error) from error

    @property
    def files(self) -> RealFiles:
        """The file layer of the directory and its logs."""
        return self._files

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _find_partitions(self) -> None:
        for name in sorted(self._files.list(self.path)):
            if not self._files.is_directory(self._file(name)):
                continue
            topic_partition = parse_directory_name(name)
            if name.endswith(DELETE_SUFFIX):
                self._removals.append(Removal((self._file(name),), self._now_ms))
            elif topic_partition is None:
                self.strays.append(name)
            else:
                self.partitions[topic_partition] = partition_metadata.read(self._files, self._file(name))

    # -- failures -------------------------------------------------------------------------------

    def check_online(self) -> None:
        """Raises KAFKA_STORAGE_ERROR when the directory is offline."""
        self.disk.check_readable()

    def failed(self, error: OSError) -> RaykaError:
        """Update the state of the disk after an error."""
        return self.disk.failed(error)

    @storing
    def probe(self) -> None:
        """Write, flush and read a file, and repeat `opened` if it failed; then appends are accepted again.

        Does nothing unless the disk is failing. Raises KAFKA_STORAGE_ERROR while it still is.
        """
        if self.disk.state is not State.FAILING:
            return
        path = self._file(PROBE_FILE)
        try:
            self._files.write_file(path, bytes(PROBE_BYTES), sync=True)
            if self._files.read_file(path) != bytes(PROBE_BYTES):
                raise OSError(errno.EIO, "the probe reads differently from what was written", path)
        finally:
            for name in (path, path + ".tmp"):
                self._files.remove_if_present(name)
        if not self._is_writing:
            self._begin_writing()
        self.disk.probe_succeeded()

    @storing
    def check_records(self, records: FileSlice) -> int:
        """Read records whose read failed elsewhere, so that an error of the disk counts; returns their size.

        Returns 0 for records of another directory, or of a segment that no longer exists.
        """
        if os.path.dirname(os.path.dirname(records.path)) != self.path or not self._files.exists(records.path):
            return 0
        descriptor = self._files.open(records.path, read_only=True)
        try:
            end = records.position + records.size
            return sum(
                len(self._files.read_fully(descriptor, min(PROBE_BYTES, end - position), position))
                for position in range(records.position, end, PROBE_BYTES)
            )
        finally:
            self._files.close(descriptor)

    # -- logs -----------------------------------------------------------------------------------

    @storing
    def open_log(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID | None, config: LogConfig, *, now_ms: int,
        jitter: float = 0.0, producer_id_expiration_ms: int = DEFAULT_EXPIRATION_MS,
    ) -> Log:  # fmt: skip
        """Open the log of a partition, recovering it if necessary, or create a new one.

        Files of another topic id under the same name are set aside as stray: their topic was deleted.
        """
        self._now_ms = now_ms
        known_id = self.partitions.get(topic_partition)
        if topic_id is not None and known_id not in (None, topic_id):
            self._set_aside(topic_partition, known_id)
        if topic_partition in self._gone:
            self.checkpoint(())
        self._unmark_clean()
        self._bring_back(topic_partition, topic_id)
        log = Log.open(
            self._file(str(topic_partition)),
            topic_partition,
            config,
            self._files,
            now_ms=now_ms,
            last_run=self._last_run(topic_partition),
            topic_id=topic_id,
            jitter=jitter,
            producer_id_expiration_ms=producer_id_expiration_ms,
            disk=self.disk,
        )
        self._logs[topic_partition] = log
        self.partitions[topic_partition] = log.topic_id
        self._lower_checkpoints(log)
        return log

    def _lower_checkpoints(self, log: Log) -> None:
        """What comes in the place of records that are lost is neither on the device nor cleaned."""
        if self._recovery_points.get(log.topic_partition, 0) > log.log_end_offset:
            self._recovery_points[log.topic_partition] = log.recovery_point
            self._write_offsets(RECOVERY_POINTS_FILE)
        if self._cleaned_offsets.get(log.topic_partition, 0) > log.log_end_offset:
            self.write_cleaned_offset(log, log.log_end_offset)

    def _last_run(self, topic_partition: TopicPartition) -> LastRun:
        is_trusted = str(topic_partition) not in self._boot.unrecovered
        return LastRun(
            self._recovery_points.get(topic_partition, 0),
            self._log_start_offsets.get(topic_partition, 0),
            self._high_watermarks.get(topic_partition, 0),
            clean_shutdown=self._was_clean and is_trusted,
            same_boot=self._boot.is_same_boot and is_trusted,
            flush_failed=self._boot.is_flush_failed,
            was_cleaned=topic_partition in self._cleaned_offsets,
        )

    def lower_log_start(self, topic_partition: TopicPartition, offset: int) -> None:
        """Let a log that is not open yet start no later than at `offset`, whatever its checkpoint says."""
        if self._log_start_offsets.get(topic_partition, 0) > offset:
            self._log_start_offsets[topic_partition] = offset

    def has(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether the files of this partition are here, under their name or set aside."""
        if topic_partition in self.partitions:
            return self.partitions[topic_partition] in (None, topic_id)
        return stray_name(topic_partition, topic_id) in self.strays

    @storing
    def set_aside(self, topic_partition: TopicPartition) -> str:
        """Close the partition's log if it is open, and rename its directory; returns the new path.

        The files of a topic that the metadata does not know are kept: the metadata may be what is wrong.
        """
        if (log := self._logs.get(topic_partition)) is not None:
            log.release()
        return self._set_aside(topic_partition, self.partitions.get(topic_partition))

    def _set_aside(self, topic_partition: TopicPartition, topic_id: uuid.UUID | None) -> str:
        name = stray_name(topic_partition, topic_id)
        number = 0
        while name in self.strays:
            number += 1
            name = renamed(topic_partition, f"{number}", STRAY_SUFFIX)
        self._keep_log_start(topic_partition)
        self._files.rename(self._file(str(topic_partition)), self._file(name))
        self.strays.append(name)
        self._forget(topic_partition)
        return self._file(name)

    def _keep_log_start(self, topic_partition: TopicPartition) -> None:
        """Write the log start offset beside the segments, so that deleted records do not come back with them.

        On a full disk they may, and where the directory is another user's: it has to go aside nevertheless.
        """
        log = self._logs.get(topic_partition)
        offset = self._log_start_offsets.get(topic_partition, 0) if log is None else log.log_start_offset
        path = self._file(os.path.join(str(topic_partition), LOG_START_OFFSETS_FILE))
        try:
            checkpoints.write_offsets(self._files, path, {topic_partition: offset})
        except OSError as error:
            if error.errno not in NO_SPACE and not isinstance(error, PermissionError):
                raise
            with contextlib.suppress(PermissionError):
                self._files.remove_if_present(path)

    def _bring_back(self, topic_partition: TopicPartition, topic_id: uuid.UUID | None) -> None:
        """Take back files that were set aside, if the metadata knows their topic again. Their last stop is unknown."""
        name = stray_name(topic_partition, topic_id)
        if topic_id is not None and topic_partition not in self.partitions and name in self.strays:
            try:
                self._take_back(name, topic_partition)
            except OSError:
                self._forget(topic_partition)  # another topic may get the name before this one is tried again
                raise
            self.strays.remove(name)
            self.partitions[topic_partition] = topic_id
            self._boot.unrecovered.add(str(topic_partition))

    def _take_back(self, name: str, topic_partition: TopicPartition) -> None:
        self._cleaned_offsets[topic_partition] = 0  # it may have been compacted: then offsets are missing
        self._write_offsets(CLEANED_OFFSETS_FILE)
        kept = checkpoints.read_offsets(self._files, self._file(os.path.join(name, LOG_START_OFFSETS_FILE)))
        self._log_start_offsets[topic_partition] = kept.get(topic_partition, 0)
        self._write_offsets(LOG_START_OFFSETS_FILE)
        self._files.rename(self._file(name), self._file(str(topic_partition)))

    @property
    def stray_partitions(self) -> list[str]:
        """The paths of partitions that were set aside."""
        return [self._file(name) for name in self.strays if name.endswith(STRAY_SUFFIX)]

    @storing
    def sync(self) -> None:
        """Wait until the names in the directory are on the device."""
        self._files.sync_path(self.path)

    def _forget(self, topic_partition: TopicPartition) -> None:
        """Drop a partition. `checkpoint` must follow before another log gets its name, and with it these offsets."""
        self._gone.add(topic_partition)
        self._logs.pop(topic_partition, None)
        self.partitions.pop(topic_partition, None)
        for offsets in self._offsets.values():
            offsets.pop(topic_partition, None)

    @storing
    def opened(self) -> None:
        """The logs are recovered and writing begins: from now on a stop is clean only after `close`."""
        self._begin_writing()

    def _begin_writing(self) -> None:
        self._boot.write(self.partitions, self._logs, was_clean=self._was_clean)
        self._unmark_clean()
        self._is_writing = True

    def _unmark_clean(self) -> None:
        """An open log may get records while others are still opened: after a crash it is recovered (KAFKA-10471)."""
        if self._is_marked_clean:
            self._files.remove_if_present(self._file(CLEAN_SHUTDOWN_FILE))
            self._files.sync_path(self.path)
            self._is_marked_clean = False

    @storing
    def delete_log(self, log: Log, unique: str) -> None:
        """Rename the log's directory to `<topic>-<partition>.<unique>-delete`; it is removed after the delay."""
        log.release()
        self._delete(log.topic_partition, unique, log.config.file_delete_delay_ms)

    @storing
    def delete_unopened(self, topic_partition: TopicPartition, topic_id: uuid.UUID, unique: str) -> None:
        """Delete the files of a partition of this topic, if there are any; its log could not be opened."""
        if self.partitions.get(topic_partition) == topic_id:
            self._delete(topic_partition, unique, 0)

    @storing
    def note_deletions(self, version: int) -> None:
        """Deletions of topics are carried out up to `version` of the metadata: what is here later was put back."""
        checkpoints.write_number(self._files, self._file(DELETIONS_FILE), version)
        self.deletions_version = version

    def _delete(self, topic_partition: TopicPartition, unique: str, delay_ms: int) -> None:
        path = self._file(renamed(topic_partition, unique, DELETE_SUFFIX))
        self._files.rename(self._file(str(topic_partition)), path)
        self._forget(topic_partition)
        self._removals.append(Removal((path,), self._now_ms + delay_ms))
        self._boot.forget(topic_partition)

    @storing
    def rename_deleted(self, deletion: SegmentDeletion) -> None:
        """Rename the files of deleted segments; `remove_deleted` removes them when they are due."""
        self._removals.append(deletion.rename(self._files))

    @storing
    def remove_deleted(self, now_ms: int) -> None:
        """Remove the files of deleted logs and segments that are due."""
        self._now_ms = now_ms
        for removal in [removal for removal in self._removals if removal.due_ms <= now_ms]:
            removal.run(self._files)
            self._removals.remove(removal)

    # -- checkpoints ----------------------------------------------------------------------------

    @storing
    def checkpoint(self, logs: Iterable[Log]) -> None:
        """Write the offsets of these logs into the checkpoints; those of others stay as they are."""
        for log in self._open(logs):
            self._recovery_points[log.topic_partition] = log.recovery_point
            self._log_start_offsets[log.topic_partition] = log.log_start_offset
            self._high_watermarks[log.topic_partition] = log.high_watermark
        for name in OFFSET_FILES:
            self._write_offsets(name)
        self._gone.clear()

    @storing
    def write_log_starts(self, logs: Iterable[Log]) -> None:
        """Make the log start offsets of these logs outlast a crash, after records were deleted."""
        for log in self._open(logs):
            log.write_epochs()
            self._log_start_offsets[log.topic_partition] = log.log_start_offset
        self._write_offsets(LOG_START_OFFSETS_FILE)

    # -- compaction -----------------------------------------------------------------------------

    def cleaned_offset(self, topic_partition: TopicPartition) -> int | None:
        """The offset below which a log was compacted; None if it never was."""
        return self._cleaned_offsets.get(topic_partition)

    @storing
    def write_cleaned_offset(self, log: Log, offset: int) -> None:
        """Record that a log is compacted below `offset`; the log start offset means that compaction is about to begin.

        After an error nothing is recorded, so no compaction begins that recovery would not know of.
        """
        if self._open([log]):
            offsets = self._cleaned_offsets | {log.topic_partition: offset}
            checkpoints.write_offsets(self._files, self._file(CLEANED_OFFSETS_FILE), offsets)
            self._cleaned_offsets[log.topic_partition] = offset

    @storing
    def prepare_replacement(self, log: Log, replacement: Replacement) -> bool:
        """Prepare to put a cleaned segment in place; False if the log no longer exists."""
        if not self._open([log]):
            return False
        replacement.prepare()
        return True

    @storing
    def finish_replacement(self, log: Log, replacement: Replacement, deletion: SegmentDeletion) -> None:
        """Give the files of a cleaned segment their names; those of the old segments are removed later."""
        if self._open([log]):
            try:
                self._removals.append(deletion.rename(self._files))
                replacement.finish()
            except OSError as error:  # some files may have their names and others not: only opening the log settles it
                raise self.disk.flush_failed(error) from error

    @storing
    def discard_cleaned(self, log: Log) -> None:
        """Remove the cleaned segments that no replacement has used; nothing writes to them any more.

        Otherwise a replacement above them would count as unfinished after a crash.
        """
        if self._open([log]):
            for name in self._files.list(log.directory):
                if name.endswith(CLEANED_SUFFIX):
                    self._files.remove_if_present(os.path.join(log.directory, name))

    def _open(self, logs: Iterable[Log]) -> list[Log]:
        """The logs that still exist: a topic created again must not get the offsets of a deleted one."""
        return [log for log in logs if self._logs.get(log.topic_partition) is log]

    def _write_offsets(self, name: str) -> None:
        checkpoints.write_offsets(self._files, self._file(name), self._offsets[name])

    @storing
    def close(self, logs: Iterable[Log], *, now_ms: int) -> None:
        """Close the logs, write the marker of a clean stop, and release the lock."""
        logs = list(logs)
        for log in logs:
            log.close(now_ms)
        self.checkpoint(logs)
        in_doubt = self._logs if self._was_clean else self.partitions
        self._boot.write_at_clean_stop(in_doubt, [log.topic_partition for log in self._open(logs)])
        self._files.write_file(self._file(CLEAN_SHUTDOWN_FILE), _CLEAN_SHUTDOWN, sync=True)
        self._files.close(self._lock)

    def release(self) -> None:
        """Give up the lock without the marker of a clean stop, as a process that dies does."""
        with contextlib.suppress(OSError):
            self._files.close(self._lock)

    @storing
    def space(self) -> tuple[int, int]:
        """The size of the file system, and its free space, in bytes."""
        return self._files.space(self.path)
