"""The segments of a log on disk: writing at the end, reading by offset, rolling, flushing, cutting.

What the bytes mean to producers, leaders and readers is the business of `log`. Methods raise OSError.
"""

from __future__ import annotations

from rayka.config.log import LogConfig
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import LOG_OVERHEAD, BatchHeader, Buffer
from rayka.storage.log.flush import FlushJob
from rayka.storage.log.removal import Removal
from rayka.storage.log.segment import DELETED_SUFFIX, MAX_RELATIVE_OFFSET, Segment
from rayka.storage.log.segments import Segments
from rayka.types import FileSlice

REMEMBERED_PLACES = 64
"""Places at which readers will go on, for as many of them."""

LogOffsetMetadata = tuple[Segment, int]
"""A segment and a position in it: where a batch begins, or the end."""


class LocalLog:
    """Segments, never none, and the offset after the last record."""

    def __init__(
        self, files: RealFiles, directory: str, config: LogConfig, segments: Segments, log_end_offset: int,
        recovery_point: int, jitter_ms: int, is_synced: bool,
    ) -> None:  # fmt: skip
        self.segments = segments
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self._files = files
        self._directory = directory
        self._places: dict[int, LogOffsetMetadata] = {}
        self._rolled: tuple[Segment, ...] = ()
        self._truncations = 0
        self._is_synced = is_synced
        self.configure(config, jitter_ms)

    # -- writing --------------------------------------------------------------------------------

    def append(self, records: Buffer, headers: list[BatchHeader], next_offset: int) -> None:
        """Write batches at the end of the active segment with one system call. After an OSError nothing changed."""
        segment = self.segments.active
        position = segment.size
        self._is_synced = False
        segment.write(records)
        last_offset = self.log_end_offset - 1
        for header in headers:
            last_offset += header.last_offset_delta + 1
            size = header.batch_length + LOG_OVERHEAD
            segment.index_batch(position, size, last_offset, header.max_timestamp)
            position += size
        self.log_end_offset = next_offset

    def configure(self, config: LogConfig, jitter_ms: int) -> None:
        """Take up topic configs; `jitter_ms` less `segment.ms` keeps logs from rolling all at once."""
        self.config = config
        self.segment_size = config.segment_size
        self.roll_ms = config.segment_ms - min(jitter_ms, config.segment_jitter_ms)

    def must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether `size` more bytes belong into a new segment: by size, record time (KIP-33), offsets or indexes."""
        segment = self.segments.active
        if not segment.size:
            return segment.has_full_index or size > self.segment_size
        first = segment.rolling_timestamp
        return (
            segment.size + size > self.segment_size
            or (max_timestamp - first if first >= 0 else now_ms - segment.created_ms) > self.roll_ms
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            or segment.has_full_index
        )

    def roll(self, now_ms: int) -> None:
        """Begin a segment at the log end offset. An empty active segment stays (KAFKA-6388)."""
        old = self.segments.active
        if old.base_offset == self.log_end_offset:
            return
        old.become_inactive()
        self._begin_segment(self.log_end_offset, now_ms)
        self._rolled += (old,)

    def _begin_segment(self, base_offset: int, now_ms: int) -> None:
        segment = Segment(
            self._files,
            self._directory,
            base_offset,
            index_bytes=self.config.segment_index_bytes,
            index_interval=self.config.index_interval_bytes,
        )
        segment.create(now_ms, self.segment_size if self.config.preallocate else 0)
        self.segments.add(segment)

    # -- reading --------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, end_offset: int, end: LogOffsetMetadata, min_one_message: bool
    ) -> FileSlice | None:
        """A slice from the batch that has `offset` to at most `end`, where `end_offset` is."""
        segment, position = self._places.get(offset) or self.place_of(offset)
        last_segment, last_position = end
        while position >= (stop := last_position if segment is last_segment else segment.size):
            following = self.segments.after(segment)
            if segment is last_segment or following is None:
                return None
            segment, position = following, 0
        size = stop - position
        if size > max_bytes:
            size = _cut(segment, position, max_bytes, min_one_message)
        elif segment is last_segment:
            self.remember(end_offset, end)
        return FileSlice(segment.path, position, size) if size else None

    def place_of(self, offset: int) -> LogOffsetMetadata:
        """Where the batch begins that has `offset`, or the end of the log."""
        segment = self.segments.floor(offset) or self.segments.all[0]
        found = segment.find(offset) if offset < self.log_end_offset else None
        if found is None and (following := self.segments.after(segment)) is not None:
            return following, 0
        return segment, segment.size if found is None else found.position

    def remember(self, offset: int, place: LogOffsetMetadata) -> None:
        """A reader will go on here."""
        self._places[offset] = place
        if len(self._places) > REMEMBERED_PLACES:
            del self._places[next(iter(self._places))]

    # -- flushing -------------------------------------------------------------------------------

    @property
    def has_rolled(self) -> bool:
        """Whether there are closed segments that were not flushed."""
        return bool(self._rolled)

    def begin_flush(self) -> FlushJob:
        """A job for everything that is not on the device yet."""
        descriptors = []
        is_new_file = bool(self._rolled) or self.recovery_point <= self.segments.active.base_offset
        try:
            for segment in self._rolled:
                descriptors += segment.open_all()
            descriptors.append(self._files.duplicate(self.segments.active.descriptor()))
            if is_new_file:
                descriptors.append(self._files.open(self._directory, read_only=True))
        except OSError:
            for descriptor in descriptors:
                self._files.close(descriptor)
            raise
        return FlushJob(self._files, descriptors, self.log_end_offset, self._truncations)

    def finish_flush(self, job: FlushJob) -> None:
        """Take note that a job has run."""
        if job.truncations != self._truncations:
            return
        self.recovery_point = max(self.recovery_point, job.offset)
        for segment in self._rolled:
            if segment.base_offset < job.offset:
                segment.close()
        self._rolled = tuple(segment for segment in self._rolled if segment.base_offset >= job.offset)

    def close(self) -> None:
        """Indexes complete, everything on the device, every descriptor given back.

        A log that was closed before and not written to since is on the device already.
        """
        active = self.segments.active
        if self._is_synced:
            self.release()
            return
        active.flush_indexes()
        self._files.truncate(active.descriptor(), active.size)
        self._rolled += (active,)
        job = self.begin_flush()
        job.run()
        if job.error is not None:
            raise job.error
        self.finish_flush(job)
        self.release()

    def release(self) -> None:
        """Give every descriptor back, whatever is not written."""
        for segment in self.segments:
            segment.close()

    # -- cutting --------------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Drop every batch that has a record at or above `offset`; begin empty there if nothing is below it."""
        self._truncations += 1
        self._is_synced = False
        self._places.clear()
        if offset <= self.segments.all[0].base_offset:
            self._start_again_at(offset, now_ms)
            return
        segment, position = self.place_of(offset)
        gone = tuple(other for other in self.segments if other.base_offset > segment.base_offset)
        self._forget(gone)
        for other in reversed(gone):
            self._remove_files(other)
        found = segment.batch_at(position)
        self.log_end_offset = segment.base_offset if found is None else found.base_offset
        segment.cut(position)
        self._rolled = tuple(other for other in self._rolled if other is not segment)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)

    def _start_again_at(self, offset: int, now_ms: int) -> None:
        gone = self.segments.all
        self._forget(gone)
        for segment in reversed(gone):
            self._remove_files(segment)
        self._begin_segment(offset, now_ms)
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)

    def give_up(self, gone: tuple[Segment, ...], now_ms: int) -> Removal:
        """Rename the files of segments for a removal that is due after `file.delete.delay.ms`."""
        self._forget(gone)
        renamed = []
        for segment in gone:
            for path in segment.paths:
                if self._files.exists(path):
                    self._files.rename(path, path + DELETED_SUFFIX)
                    renamed.append(path + DELETED_SUFFIX)
        return Removal(tuple(renamed), now_ms + self.config.file_delete_delay_ms)

    def _forget(self, gone: tuple[Segment, ...]) -> None:
        self.segments.remove(gone)
        self._places.clear()
        self._rolled = tuple(segment for segment in self._rolled if segment not in gone)
        for segment in gone:
            segment.close()

    def _remove_files(self, segment: Segment) -> None:
        for path in segment.paths:
            self._files.remove_if_present(path)


def _cut(segment: Segment, position: int, max_bytes: int, min_one_message: bool) -> int:
    """The size of a read that `max_bytes` ends: a part of the first batch alone would be of no use to a reader."""
    header = segment.batch_at(position)
    if header is None or header.size_in_bytes <= max_bytes:
        return max_bytes
    return header.size_in_bytes if min_one_message else 0
