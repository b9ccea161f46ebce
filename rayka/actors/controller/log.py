"""The metadata log on the controller's disk: one batch of records for each command that changed something.

The files are those of any partition (`__cluster_metadata-0`), with one Kafka record for each batch, whose
value is the batch in msgpack; its offset is the version of the image before it. Records before a snapshot are
deleted; two snapshots are kept, and the log reaches back to the older one.

Damage and torn appends. An append returns after its batch was synced, and the next batch is written only after
that. So a crash can tear only the last batch, which was not acknowledged yet: it is truncated, as in any log.
Everything else that does not read is damage. These signs tell damage from a torn append:

1. it lies below the offset in `synced-offset`, which says up to where the log was synced. The file is written after
   each sync, and not synced itself: a crash of the machine may leave an older mark, never one that is too new;
2. an intact batch follows it;
3. it lies in a segment that another segment follows;
4. the log does not reach from an intact snapshot, or from offset 0, to the newest snapshot and beyond.

A damaged log raises MetadataLogDamaged before anything is changed on disk: a shorter history would be an older
image, in which topics are missing. An operator decides what to do: bring back a copy, for example.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from crc32c import crc32c

from rayka.actors.controller.history import MetadataLogDamaged, verified_end
from rayka.actors.controller.snapshots import Snapshots
from rayka.config import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.codec import decode_all, encode_all
from rayka.metadata.controller import KEPT_REMOVALS, RemovedTopic, removed_topics
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import MetadataRecord
from rayka.metadata.snapshot import snapshot_records
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.log.log import Log
from rayka.storage.segments.reader import SegmentReader
from rayka.types import TopicPartition

__all__ = ["ChangeTooLarge", "MetadataLog", "MetadataLogDamaged"]

logger = logging.getLogger(__name__)

TOPIC_PARTITION = TopicPartition("__cluster_metadata", 0)
TOPIC_ID = uuid.UUID(int=1)
SYNCED_OFFSET_FILE = "synced-offset"
_CONFIG = LogConfig(retention_ms=-1, retention_bytes=-1, max_message_bytes=2**30, segment_bytes=64 * 1024 * 1024)
_READ_BYTES = 4 * 1024 * 1024
_MARK_BYTES = 12


class ChangeTooLarge(RaykaError):
    """The records of one command are more than a segment takes. Nothing of them was written."""

    def __init__(self, size: int) -> None:
        most = _CONFIG.segment_size
        message = f"the change takes {size:,} bytes of metadata, and one change may take {most:,} bytes: divide it"
        super().__init__(ErrorCode.POLICY_VIOLATION, message)


class MetadataLog:
    """Opens and locks the directory `path`. Appends are on the disk when `append` returns.

    What it reads is on the disk too: followers are about to get it, and a power cut must not take it back.

    Raises BlockingIOError while another process holds the directory, KAFKA_STORAGE_ERROR, and MetadataLogDamaged.
    """

    def __init__(self, path: str, bytes_between_snapshots: int, files: RealFiles | None = None) -> None:
        self._files = files or RealFiles()
        self._path = path
        self._bytes_between_snapshots = bytes_between_snapshots
        self.removed: deque[RemovedTopic] = deque(maxlen=KEPT_REMOVALS)
        """The topics that the records which `load` read have removed last."""
        self._directory = LogDirectory.open(path, self._files, now_ms=_now_ms())
        try:
            self._open_log(os.path.join(path, str(TOPIC_PARTITION)))
        except BaseException:
            self._directory.release()
            raise

    def _open_log(self, directory: str) -> None:
        self._snapshots = Snapshots(self._files, directory)
        self._base = self._snapshots.newest()
        begin, end = verified_end(self._files, directory, self._synced_offset())
        self._check_reach(directory, begin, end)
        self._log = self._open_whole(0 if self._base is None else self._base[0])
        try:
            self._sync_opened(end)
        except BaseException:
            self._log.release()
            raise
        self._since_snapshot = self._log.size

    def _open_whole(self, version: int) -> Log:
        """Open the log with everything that follows the snapshot of `version`.

        Small files beside it say which topic it belongs to and where it starts, without a CRC. Opening a log believes
        them: one digit that is wrong would move the log aside, or remove all of it.
        """
        self._directory.lower_log_start(TOPIC_PARTITION, version)
        topic_id = self._directory.partitions.get(TOPIC_PARTITION) or TOPIC_ID
        return self._directory.open_log(TOPIC_PARTITION, topic_id, _CONFIG, now_ms=_now_ms())

    def _sync_opened(self, end: int) -> None:
        """Sync what a process that was killed may have left unsynced in the log: it counts now."""
        if self._log.log_end_offset != end:
            raise MetadataLogDamaged(f"{self._path} was read up to offset {end}, then {self._log.log_end_offset}")
        self._log.update_high_watermark(end)
        self._directory.opened()
        self._log.flush()
        self._mark_synced(end)

    def _check_reach(self, directory: str, begin: int, end: int) -> None:
        """Without a gap from the snapshot that loading begins with to the newest that was ever written."""
        version = 0 if self._base is None else self._base[0]
        if begin > version:
            raise MetadataLogDamaged(
                f"{directory} begins at offset {begin}, but without an intact snapshot its history begins at {version}"
            )
        if end < self._snapshots.newest_version:
            raise MetadataLogDamaged(
                f"{directory} ends at offset {end}, below its snapshot of version {self._snapshots.newest_version}"
            )

    def load(self) -> MetadataImage:
        """The image that the newest intact snapshot and the log after it give. Raises MetadataLogDamaged."""
        image = MetadataImage()
        try:
            if self._base is not None:
                image = replace(image.apply_all(decode_all(self._base[1])), version=self._base[0])
            image = self._replay(image)
        except (RaykaError, ValueError) as error:
            raise MetadataLogDamaged(
                f"{self._path} can't be replayed after version {image.version}: {error}"
            ) from error
        if image.version != self._log.log_end_offset:
            raise MetadataLogDamaged(f"{self._path} gives version {image.version} of {self._log.log_end_offset}")
        return image

    def _replay(self, image: MetadataImage) -> MetadataImage:
        reader = SegmentReader()
        while (read := self._log.read(image.version, _READ_BYTES, self._log.log_end_offset)) is not None:
            for record in read_records(reader.read(read)):
                if record.offset >= image.version:
                    batch = decode_all(record.value or b"")
                    image = image.apply_all(batch)
                    self.removed += removed_topics(image.version, batch)
        return image

    def append(self, records: Sequence[MetadataRecord], image: MetadataImage) -> None:
        """Make a batch durable; `image` is the one before it. Raises ChangeTooLarge and KAFKA_STORAGE_ERROR."""
        now_ms = _now_ms()
        batch = build_batch([Record(image.version, now_ms, None, encode_all(records))])
        if len(batch) > _CONFIG.segment_size:
            raise ChangeTooLarge(len(batch))
        self._directory.probe()
        self._log.append_as_leader(memoryview(batch), 0, now_ms, origin_is_client=False)
        job = self._log.begin_flush()
        job.run()
        self._log.finish_flush(job)
        self._log.update_high_watermark(self._log.log_end_offset)
        self._mark_synced(self._log.log_end_offset)
        self._since_snapshot += len(batch)

    def snapshot_if_due(self, image: MetadataImage) -> None:
        """Write a snapshot when the log has grown enough, and cut the log before the older one.

        After a failure the next attempt comes when the log has grown so much again: each writes the whole image.
        """
        if self._since_snapshot < self._bytes_between_snapshots:
            return
        self._since_snapshot = 0
        try:
            oldest = self._snapshots.write(image.version, encode_all(snapshot_records(image)), _now_ms())
        except OSError as error:
            logger.error("cannot write a metadata snapshot; the metadata log is not truncated: %s", error)
            return
        if oldest is not None:
            self._delete_before(oldest)

    def _delete_before(self, offset: int) -> None:
        """Nothing reads the log meanwhile, so the files of deleted segments are removed at once."""
        self._log.delete_records(offset)
        removal = self._log.delete_old_segments(_now_ms())
        self._directory.write_log_starts([self._log])
        if removal is not None:
            try:
                removal.run(self._files)
            except OSError as error:
                logger.warning("deleted metadata segments stay until the next start: %s", error)

    def close(self) -> None:
        """Close cleanly."""
        self._directory.close([self._log], now_ms=_now_ms())

    def release(self) -> None:
        """Give up the directory as a crash does."""
        self._log.release()
        self._directory.release()

    def _mark_synced(self, offset: int) -> None:
        """A failure to write the mark costs a sign of damage, not the append, which is on the disk."""
        data = offset.to_bytes(8)
        try:
            self._files.write_at(os.path.join(self._path, SYNCED_OFFSET_FILE), data + crc32c(data).to_bytes(4), 0)
        except OSError as error:
            logger.warning("cannot record the synced offset in %s: %s", self._path, error)

    def _synced_offset(self) -> int:
        """The offset up to which the log is known to have been synced; 0 if no mark tells."""
        with contextlib.suppress(FileNotFoundError):
            data = self._files.read_file(os.path.join(self._path, SYNCED_OFFSET_FILE))
            if len(data) == _MARK_BYTES and crc32c(data[:8]) == int.from_bytes(data[8:]):
                return int.from_bytes(data[:8])
            logger.error("ignoring the synced offset in %s: its file is damaged", self._path)
        return 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
