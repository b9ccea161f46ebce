"""The segments of a log on disk: append, read by offset, roll, flush, truncate, delete.

Each segment knows up to which offset it was flushed; the recovery point follows from that. Work that waits for
the device is a job: the log makes it, any thread runs it, the log takes its result. Methods raise OSError.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from rayka.config.log import LogConfig
from rayka.storage.directory import partition_metadata
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import LOG_OVERHEAD, BatchHeader, Buffer
from rayka.storage.log.deletion import SegmentDeletion
from rayka.storage.log.flush_job import FlushedRange, FlushJob
from rayka.storage.segments.blocks_ahead import BlocksAhead
from rayka.storage.segments.scan import MAX_RELATIVE_OFFSET
from rayka.storage.segments.segment import Segment
from rayka.storage.segments.segments import Segments
from rayka.storage.segments.spare import SpareFile
from rayka.types import FileSlice

REMEMBERED_PLACES = 64
"""Places at which readers will continue, for as many of them."""

SOON_GONE_MS = 1000
"""How long a closed segment that may be removed at once waits to be flushed."""

LogOffsetMetadata = tuple[Segment, int]
"""A segment and a position in it: where a batch begins, or the end."""


class LocalLog:
    """Segments, never none, and the offset after the last record."""

    def __init__(
        self, files: RealFiles, directory: str, config: LogConfig, segments: Segments, log_end_offset: int,
        jitter: float,
    ) -> None:  # fmt: skip
        self.segments = segments
        self.log_end_offset = log_end_offset
        self.recovery_point = segments.all[0].base_offset
        """Batches below this offset are on the device, and so are the segments that end before it."""
        self._files = files
        self._directory = directory
        self._spare = SpareFile(files, directory)
        self._blocks = BlocksAhead()
        self._places: dict[int, LogOffsetMetadata] = {}
        self.truncations = 0
        """How often records were cut off the end: what was begun before may be about others that are gone."""
        self._has_flushed_directory = False
        self.on_roll: Callable[[], None] = lambda: None
        """Called after a roll: the segment before waits to be flushed."""
        self._jitter = jitter
        self.configure(config)
        self._advance_recovery_point()

    # -- writing --------------------------------------------------------------------------------

    def append(self, records: Buffer, headers: list[BatchHeader], next_offset: int, now_ms: int) -> None:
        """Write batches at the end of the active segment with one system call. After an OSError nothing changed.

        Nothing behind the write touches a file: what indexing needs of them was read before.
        """
        segment = self.segments.active
        position = segment.size
        if position + len(records) > self._blocks.due_size and not self.config.preallocate:
            self._blocks.look(segment, position + len(records), self.segment_size, now_ms)
        segment.write(records)
        last_offset = self.log_end_offset - 1
        for header in headers:
            last_offset += header.last_offset_delta + 1
            size = header.batch_length + LOG_OVERHEAD
            segment.index_batch(position, size, last_offset, header.max_timestamp)
            position += size
        self.log_end_offset = next_offset

    def configure(self, config: LogConfig) -> None:
        """Take up topic configs. A part of `segment.jitter.ms`, `jitter`, less keeps logs from rolling all at once."""
        self.config = config
        self.segment_size = config.segment_size
        longest_ms = config.longest_segment_ms
        self.roll_ms = longest_ms - int(self._jitter * min(config.segment_jitter_ms, longest_ms))

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
        """Begin a segment at the log end offset. An empty active segment stays (KAFKA-6388).

        The next flush writes the indexes of the old one.
        """
        old = self.segments.active
        if old.base_offset == self.log_end_offset:
            return
        old.end_appends()
        self._begin_segment(self.log_end_offset, now_ms)
        self.on_roll()

    def needs_spare(self, now_ms: int) -> bool:
        """Whether half of the active segment's size or time is over, and there is no file for the next one."""
        active = self.segments.active
        is_half_full = active.size * 2 >= self.segment_size or (now_ms - active.created_ms) * 2 >= self.roll_ms
        return is_half_full and active.size > 0 and not self._spare.is_ready

    def make_spare(self) -> None:
        """Make the file for the next segment. Any thread may."""
        self._spare.make()

    def _begin_segment(self, base_offset: int, now_ms: int) -> None:
        segment = Segment(
            self._files,
            self._directory,
            base_offset,
            index_bytes=self.config.segment_index_bytes,
            index_interval=self.config.index_interval_bytes,
        )
        segment.create(now_ms, self.segment_size if self.config.preallocate else 0, self._spare)
        self.segments.add(segment)
        self._blocks.begin_segment()

    def has_idle_blocks(self, now_ms: int) -> bool:
        """Whether the active segment has blocks that it does not need soon."""
        return self._blocks.are_idle(now_ms)

    def give_back_blocks(self, now_ms: int) -> None:
        """Give them back at the end of the next flush."""
        self._blocks.give_back_later(now_ms)

    # -- reading --------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, end_offset: int, end: LogOffsetMetadata, min_one_message: bool
    ) -> FileSlice | None:
        """A slice from the batch that has `offset` to at most `end`, where `end_offset` is."""
        segment, position = self._places.get(offset) or self.place_of(offset, is_checked=True)
        last_segment, last_position = end
        while position >= (stop := last_position if segment is last_segment else segment.size):
            following = self.segments.after(segment)
            if segment is last_segment or following is None:
                return None
            segment, position = following, 0
        size = stop - position
        if size > max_bytes:
            size = self._cut(segment, position, max_bytes, min_one_message)
        elif segment is last_segment:
            self.remember(end_offset, end)
        return FileSlice(segment.path, position, size, segment.inode) if size else None

    def _cut(self, segment: Segment, position: int, max_bytes: int, min_one_message: bool) -> int:
        """The size of a read that `max_bytes` ends: a part of the first batch alone would be of no use to a reader.

        It ends with a whole batch where the index knows one. The next read will continue there.
        """
        first = segment.batch_at(position)
        if first is None:
            return max_bytes
        if first.size_in_bytes > max_bytes:
            return first.size_in_bytes if min_one_message else 0
        last_offset, end = segment.offset_index.lookup_position(position + max_bytes)
        following = segment.batch_at(end) if end > position else None
        if following is None or following.magic != first.magic:
            return max_bytes
        if not first.base_offset < following.base_offset <= following.last_offset <= last_offset:
            return max_bytes
        self.remember(following.base_offset, (segment, end))
        return end - position

    def place_of(self, offset: int, is_checked: bool = False) -> LogOffsetMetadata:
        """Where the batch begins that has `offset`, or the end of the log. Raises as `Segment.find`."""
        segment = self.segments.floor(offset) or self.segments.all[0]
        if offset >= self.log_end_offset:
            return segment, segment.size
        found = segment.find(offset, is_checked, self._end_offset(segment))
        if found is not None:
            return segment, found.position
        following = self.segments.after(segment)
        if following is not None:
            return following, 0
        if is_checked:
            raise segment.corrupt(f"no batch has offset {offset}, and the log ends at {self.log_end_offset}")
        return segment, segment.size

    def end_of(self, offset: int, records: FileSlice) -> int:
        """An offset that all records of a slice, which was read from `offset` on, are below."""
        for segment in self.segments.from_offset(offset):
            if segment.path == records.path:
                above = segment.offset_index.offset_above(records.position + records.size)
                return self._end_offset(segment) if above is None else above
        return self.log_end_offset

    def segment_end(self, offset: int, records: FileSlice) -> int:
        """The offset at which the segment of a slice ends that was read from `offset` on."""
        for segment in self.segments.from_offset(offset):
            if segment.path == records.path:
                return self._end_offset(segment)
        return self.log_end_offset

    def ends_before(self, records: FileSlice, end_offset: int) -> bool:
        """Whether a slice that was read just now is not all up to `end_offset`: a read that gets there remembers it."""
        segment, position = self._places.get(end_offset, (None, 0))
        return segment is None or position != records.position + records.size or segment.path != records.path

    def remember(self, offset: int, place: LogOffsetMetadata) -> None:
        """A reader will continue here."""
        self._places[offset] = place
        if len(self._places) > REMEMBERED_PLACES:
            del self._places[next(iter(self._places))]

    # -- flushing -------------------------------------------------------------------------------

    def _end_offset(self, segment: Segment) -> int:
        following = self.segments.after(segment)
        return self.log_end_offset if following is None else following.base_offset

    def _unflushed(self) -> list[Segment]:
        """Segments with something that is not on the device, from the one that ends at the recovery point on."""
        segments = self.segments.from_offset(max(self.recovery_point - 1, 0))
        return [segment for segment in segments if not segment.is_flushed(self._end_offset(segment))]

    def has_unflushed_segments(self, now_ms: int) -> bool:
        """Whether a segment that gets no more appends is to be put on the device.

        Where segments are removed at once, one that was closed just now is not: it may be gone soon.
        """
        following = [each for segment in self._unflushed() if (each := self.segments.after(segment)) is not None]
        if self.config.file_delete_delay_ms:
            return bool(following)
        return any(not 0 <= now_ms - each.created_ms < SOON_GONE_MS for each in following)

    def begin_flush(self) -> FlushJob:
        """A job for everything that is not on the device yet."""
        active = self.segments.active
        return self._flush_job(
            [FlushedRange(segment, self._end_offset(segment), segment is not active) for segment in self._unflushed()],
            self._spare,
        )

    def _flush_job(self, ranges: list[FlushedRange], spare: SpareFile | None = None) -> FlushJob:
        directories: tuple[str, ...] = ()
        if any(segment.is_new_on_device for segment, _, _ in ranges):
            directories = (self._directory,)
        if ranges and not self._has_flushed_directory:
            metadata = os.path.join(self._directory, partition_metadata.FILE_NAME)
            directories = (metadata, self._directory, os.path.dirname(self._directory))
        appending = any(not with_indexes for _, _, with_indexes in ranges)
        descriptor = self._files.duplicate(self.segments.active.descriptor()) if appending else None
        return FlushJob(self._files, ranges, directories, descriptor, self.truncations, spare)

    def finish_flush(self, job: FlushJob) -> None:
        """Take note of what a job has put on the device."""
        if job.truncations != self.truncations:
            return
        for segment, offset, with_indexes in job.ranges:
            segment.flushed(offset, with_indexes)
            if with_indexes and segment is not self.segments.active:
                segment.freeze()
        self._has_flushed_directory |= len(job.directories) > 1
        self._advance_recovery_point()
        if self.recovery_point == self.log_end_offset:
            self._blocks.flushed(self.segments.active)

    def _advance_recovery_point(self) -> None:
        unflushed = self._unflushed()
        offset = unflushed[0].flushed_offset if unflushed else self.log_end_offset
        self.recovery_point = max(self.recovery_point, offset)

    def validate_state(self) -> None:
        """Segments follow each other, the batches of the last one end at the log end offset, and everything below the
        recovery point was flushed. Raises AssertionError and OSError.
        """
        segments = self.segments.all
        ends = [*(segment.base_offset for segment in segments[1:]), self.log_end_offset]
        for segment, end in zip(segments, ends, strict=True):
            assert segment.base_offset < end or segment is self.segments.active, (segment.path, end)
            assert segment.base_offset <= segment.flushed_offset <= end, (segment.path, segment.flushed_offset, end)
            if end < self.recovery_point:
                assert segment.is_flushed(end), (segment.path, self.recovery_point)
        assert self.recovery_point <= self.log_end_offset, (self.recovery_point, self.log_end_offset)
        next_offset = self.segments.active.next_offset()
        assert next_offset == self.log_end_offset, (self.segments.active.path, next_offset, self.log_end_offset)

    def begin_last_flush(self) -> FlushJob:
        """A job for everything, with the indexes of the active segment, before `close`.

        It writes nothing if nothing was appended since the last close.
        """
        active = self.segments.active
        if not self._unflushed():
            return FlushJob(self._files)
        active.flush_indexes()
        self._files.truncate(active.descriptor(), active.size)
        return self._flush_job(
            [FlushedRange(segment, self._end_offset(segment), with_indexes=True) for segment in self._unflushed()]
        )

    def close(self) -> None:
        """Give back every descriptor, after everything was flushed."""
        self._spare.remove()
        self.release()

    def release(self) -> None:
        """Give every descriptor back, whatever is not written."""
        self._spare.release()
        self.segments.release()

    # -- cutting --------------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Drop every batch that has a record at or above `offset`; begin empty there if nothing is below it.

        The log ends behind the last batch that is left, though offsets up to `offset` may be missing behind that.
        """
        self.truncations += 1
        self._places.clear()
        if offset <= self.segments.all[0].base_offset:
            self._start_again_at(offset, now_ms)
            return
        segment = self.segments.floor(offset) or self.segments.all[0]
        found = segment.find(offset)
        gone = tuple(other for other in self.segments if other.base_offset > segment.base_offset)
        self._forget(gone)
        for other in reversed(gone):
            self._remove_files(other)
        segment.cut(segment.size if found is None else found.position)
        self.log_end_offset = segment.next_offset() or segment.base_offset
        segment.truncated(self.log_end_offset)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)

    def _start_again_at(self, offset: int, now_ms: int) -> None:
        gone = self.segments.all
        self._forget(gone)
        for segment in reversed(gone):
            self._remove_files(segment)
        self._begin_segment(offset, now_ms)
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)

    def delete_segments(self, segments: tuple[Segment, ...], now_ms: int) -> SegmentDeletion:
        """Take segments out of the log. Their files are due to be removed after `file.delete.delay.ms`."""
        self._forget(segments)
        paths = tuple(path for segment in segments for path in segment.paths)
        return SegmentDeletion(paths, now_ms + self.config.file_delete_delay_ms)

    def replace_segments(self, old: tuple[Segment, ...], new: Segment, now_ms: int) -> SegmentDeletion:
        """Put a cleaned segment, which is on the device, in the place of old ones."""
        end_offset = self._end_offset(old[-1])
        new.flushed(end_offset, with_indexes=True)
        self.segments.replace(old, new)
        self._places.clear()
        for segment in old:
            segment.release()
        paths = tuple(path for segment in old for path in segment.paths)
        return SegmentDeletion(paths, now_ms + self.config.file_delete_delay_ms)

    def _forget(self, gone: tuple[Segment, ...]) -> None:
        self.segments.remove(gone)
        self._places.clear()
        for segment in gone:
            segment.release()

    def _remove_files(self, segment: Segment) -> None:
        for path in segment.paths:
            self._files.remove_if_present(path)
