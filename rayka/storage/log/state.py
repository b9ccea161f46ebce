"""What all parts of a log work on: its segments, its offsets, and what it knows of producers and leader epochs.

Offsets obey

    log start offset <= last stable offset <= high watermark <= log end offset
"""

from __future__ import annotations

import errno
import uuid

from rayka.config.log import LogConfig
from rayka.errors import RaykaError
from rayka.storage.directory.disk_state import DiskState
from rayka.storage.files import RealFiles, storing
from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.log.local_log import LocalLog, LogOffsetMetadata
from rayka.storage.log.recovery import LoadedLog
from rayka.storage.log.validator import BatchValidator
from rayka.storage.segments.segment import Segment
from rayka.types import NO_OFFSET, TopicPartition


class LogState:
    """The state of a partition's log."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: str,
        config: LogConfig,
        files: RealFiles,
        loaded: LoadedLog,
        *,
        now_ms: int,
        jitter: float = 0.0,
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
        self._disk = disk or DiskState(directory)
        self.is_released = False
        """Whether the log was deleted or goes elsewhere; nothing may be done with it any more."""
        self._replacing: tuple[Segment, ...] = ()
        self._replaced_end = 0
        """Where the segments that are being replaced end."""
        self._segments = loaded.segments
        self._producers = loaded.producers
        self._epochs = loaded.leader_epochs
        self._local = LocalLog(files, directory, config, loaded.segments, loaded.log_end_offset, jitter)
        self._high_watermark_place = self._local.place_of(self.high_watermark)
        self._flushed_ms = self._now_ms = now_ms
        self._validator = BatchValidator(topic_partition, config)
        self._next_snapshot_size = 0
        """The size of the active segment at which the next snapshot of the producers is due."""

    def configure(self, config: LogConfig) -> None:
        """Take up changed topic configs."""
        self.config = config
        self._local.configure(config)
        self._validator = BatchValidator(self.topic_partition, config)

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
    def append_position(self) -> int:
        """Where in its file the next append begins, unless a segment begins with it."""
        return self._segments.active.size

    @property
    def recovery_point(self) -> int:
        """The first offset that may not be on the device."""
        return self._local.recovery_point

    @property
    def last_stable_offset(self) -> int:
        """The first offset of a transaction that is not decided, at most the high watermark (KIP-98)."""
        producers = self._producers
        first_unstable = producers.first_unstable_offset if producers.ongoing or producers.unreplicated else None
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

    # -- files beside the segments ---------------------------------------------------------------

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
        """Put the snapshots of the producers that were taken, at rolls for example, on the device. Any thread may."""
        self._producers.write_snapshots()

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

    def release(self) -> None:
        """Give the descriptors back and write nothing: the log goes elsewhere. Later calls are refused."""
        self.is_released = True
        self._disk = DiskState(self.directory)
        self._disk.failed(FileNotFoundError(errno.ENOENT, "the log was released", self.directory))
        self._local.release()
