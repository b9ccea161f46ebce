"""Opens a log, and repairs what a crash left, in the order of Kafka's loader.

1. Files in transit: what was being deleted, cleaned or swapped in. Segments of magic 0 and 1 are converted, and those
   split whose offsets are too far apart.
2. The segments, with their indexes.
3. After an unclean stop, from the recovery point on: cut at the first damage, drop the segments after it,
   rebuild the indexes. While the kernel has not gone down since (`same_boot`), every byte that a write took
   is still there, so only the end is examined and the indexes are believed if they make sense. A segment that
   is read as a whole is read once: damage, indexes and producers in one pass. After a flush that failed
   that pass writes everything once more, since no later flush would write what the kernel takes for written.
4. The log start offset, the leader epochs and the producers are brought in line with what is there.

Doing all of it again changes no byte. Source: the log storage engine document, "LogLoader".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from rayka.config.log import LogConfig
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import LOG_OVERHEAD
from rayka.storage.log.leader_epochs import EpochEntry, LeaderEpochs
from rayka.storage.producers.replay import ProducerReplay
from rayka.storage.producers.state import ProducerState
from rayka.storage.segments.old_segments import OldSegments
from rayka.storage.segments.overflow import OverflowedSegments
from rayka.storage.segments.scan import MAX_RELATIVE_OFFSET, intact_batches, iter_batches
from rayka.storage.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)
from rayka.storage.segments.segments import Segments

CHECKED_BYTES = 16 << 20
"""How much of the end of the active segment is checked when the kernel has not gone down."""
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
_TEMPORARY_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")


@dataclass(frozen=True, slots=True)
class LastRun:
    """The log's last stop: its checkpoints, and how its process ended. The defaults are for a new log."""

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    clean_shutdown: bool = False
    same_boot: bool = False
    """Whether the kernel has not gone down since."""
    flush_failed: bool = False
    """Whether it has not, but a flush failed: it takes records for written that are not on the device."""
    was_cleaned: bool = False
    """Whether the log was ever compacted: then offsets may be missing, whatever its policy is now."""


NEW_LOG: Final = LastRun()


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A repaired log. `segments` is never empty; each segment knows how much of it was flushed."""

    segments: Segments
    log_start_offset: int
    log_end_offset: int
    leader_epochs: LeaderEpochs
    producers: ProducerState


class LogLoader:
    """Opens one log directory, once."""

    def __init__(self, files: RealFiles, directory: str, config: LogConfig, last_run: LastRun, now_ms: int) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self._last_run = last_run
        self._now_ms = now_ms
        self._segments = Segments()
        self._leader_epochs = LeaderEpochs(files, directory)
        self._is_clean = last_run.clean_shutdown
        self._may_have_gaps = last_run.was_cleaned or "compact" in config.cleanup_policy
        self._rebuilt: set[Segment] = set()
        self._cut: set[Segment] = set()
        self._rebuilt_from: int | None = None
        self._has_removed = False
        """Whether segments were removed in whose place others come: they must not come back."""
        self._replay: ProducerReplay | None = None

    def load(self, producers: ProducerState) -> LoadedLog:
        """Repair and read the directory.

        Raises OSError. Raises UNSUPPORTED_FOR_MESSAGE_FORMAT for messages of magic 0 or 1 after record batches, and as
        `OldSegments.convert` for old segments.
        """
        names = self._settle_files_in_transit(set(self._files.list(self._directory)))
        names -= OldSegments(self._files, self._directory).convert(names)
        self._split_overflowed(names)
        producers.snapshots = sorted(_offset(name) for name in names if _is_of(name, SNAPSHOT_SUFFIX))
        self._open_segments(names)
        if not self._is_clean:
            self._recover(producers)
        start_offset, end_offset = self._settle_offsets()
        self._settle_epochs(start_offset, end_offset)
        self._load_producers(producers, end_offset)
        if self._has_removed:
            self._files.sync_path(self._directory)
        self._note_flushed(end_offset)
        self._segments.active.activate()
        return LoadedLog(self._segments, start_offset, end_offset, self._leader_epochs, producers)

    def release(self) -> None:
        """Close all descriptors: the log is not opened now, but perhaps later."""
        self._segments.release()

    # -- 1. files in transit --------------------------------------------------------------------

    def _settle_files_in_transit(self, names: set[str]) -> set[str]:
        """Swaps are removed first: after a crash only the cleaned files beside them tell that they are unfinished."""
        cleaned = [_offset(name) for name in names if name.endswith(CLEANED_SUFFIX)]
        for name in sorted(names, key=lambda name: (not name.endswith(SWAP_SUFFIX), name)):
            if name.endswith(_TEMPORARY_SUFFIXES) or self._is_unfinished_swap(name, cleaned):
                self._remove(name)
                names.discard(name)
        self._complete_swaps(names)
        return names

    def _is_unfinished_swap(self, name: str, cleaned: list[int]) -> bool:
        """A swap beside cleaned files at or below it comes from a split that did not end (KAFKA-6264)."""
        return name.endswith(SWAP_SUFFIX) and bool(cleaned) and _offset(name) >= min(cleaned)

    def _complete_swaps(self, names: set[str]) -> None:
        swaps = sorted(name for name in names if name.endswith(SWAP_SUFFIX))
        logs = [name for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
        if logs:
            self._remove_superseded(names, _offset(logs[0]), self._swapped_end(logs[-1]))
        for name in swaps:
            final = name.removesuffix(SWAP_SUFFIX)
            self._files.rename(self._path(name), self._path(final))
            names.discard(name)
            names.add(final)
            self._has_removed = True

    def _swapped_end(self, name: str) -> int:
        end = _offset(name)
        path = self._path(name)
        descriptor = self._files.open(path, read_only=True)
        try:
            size = self._files.size(path)
            for batch in iter_batches(partial(self._files.read_fully, descriptor), 0, size):
                end = batch.header.next_offset
        finally:
            self._files.close(descriptor)
        return end

    def _remove_superseded(self, names: set[str], start: int, end: int) -> None:
        """The files of the segments from `start` on. An empty segment takes the place of the one there too."""
        for name in sorted(names):
            if name.endswith((LOG_SUFFIX, *_INDEX_SUFFIXES)) and start <= _offset(name) < max(end, start + 1):
                self._remove(name)
                names.discard(name)

    def _split_overflowed(self, names: set[str]) -> None:
        base_offsets = sorted(_offset(name) for name in names if _is_of(name, LOG_SUFFIX))
        for parts in OverflowedSegments(self._files, self._directory).split(base_offsets):
            names |= parts
            self._complete_swaps(names)

    # -- 2. segments ----------------------------------------------------------------------------

    def _open_segments(self, names: set[str]) -> None:
        base_offsets = sorted(_offset(name) for name in names if _is_of(name, LOG_SUFFIX))
        known = set(base_offsets)
        for name in names:
            if name.endswith(_INDEX_SUFFIXES) and _offset(name) not in known:
                self._remove(name)
        for base_offset in base_offsets:
            segment = self._segment(base_offset)
            segment.open()
            self._segments.add(segment)
        for segment in self._segments:
            indexes = (segment.offset_index.path, segment.time_index.path)
            if not all(os.path.basename(path) in names for path in indexes):
                self._recover_segment(segment, 0)

    def _segment(self, base_offset: int) -> Segment:
        return Segment(
            self._files,
            self._directory,
            base_offset,
            index_bytes=self._config.segment_index_bytes,
            index_interval=self._config.index_interval_bytes,
        )

    # -- 3. damage ------------------------------------------------------------------------------

    def _recover(self, producers: ProducerState) -> None:
        """A segment that ends at the recovery point was active when it was flushed: its indexes were not."""
        self._may_have_gaps = self._may_have_gaps or self._was_split()
        for segment in self._segments.from_offset(max(self._last_run.recovery_point - 1, 0)):
            start = self._believed_position(segment)
            replay = None if start else self._begin_replay(producers, segment)
            if replay is not None:
                segment.transaction_index.reset()
            self._recover_segment(segment, start, replay)
            if (segment in self._cut or self._ends_early(segment)) and not self._is_deleted(segment):
                self._drop_segments_after(segment)
                return

    def _was_split(self) -> bool:
        """Whether a segment begins with the batch that was too far away for the one before it.

        That tells of compaction as no flag in memory can: it is still so after a crash behind the split.
        """
        for segment, following in pairwise(self._segments):
            is_far = following.base_offset - segment.base_offset > MAX_RELATIVE_OFFSET // 2
            header = following.batch_at(0) if is_far else None
            if header is not None and header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                return True
        return False

    def _begin_replay(self, producers: ProducerState, segment: Segment) -> ProducerReplay:
        """The producers as they were at the start of a segment that is about to be read.

        Later snapshots are taken again: they may tell of records that are lost.
        """
        if self._replay is None:
            limit = segment.base_offset if self._rebuilt_from is None else min(segment.base_offset, self._rebuilt_from)
            self._replay = ProducerReplay(producers, self._segments, limit, self._now_ms)
            producers.keep_snapshots([offset for offset in producers.snapshots if offset <= limit])
        self._replay.begin(self._segments, segment)
        return self._replay

    def _ends_early(self, segment: Segment) -> bool:
        """Whether the batches that lead to the next segment are missing; only compaction takes batches away."""
        following = self._segments.after(segment)
        if following is None or self._may_have_gaps:
            return False
        return segment.next_offset() != following.base_offset

    def _is_deleted(self, segment: Segment) -> bool:
        """Whether all records up to the next segment were deleted: nobody misses those that are missing."""
        following = self._segments.after(segment)
        return following is not None and following.base_offset <= self._last_run.log_start_offset

    def _recover_segment(self, segment: Segment, start: int, replay: ProducerReplay | None = None) -> None:
        """Cut off damage from a batch on and bring the indexes in line."""
        modified_ms = segment.modified_ms()
        end = self._reindex_intact(segment, start, replay)
        if end < segment.size:
            self._cut.add(segment)
            self._files.truncate(segment.descriptor(), end)
            segment.size = end
            segment.transaction_index.truncate_to(segment.next_offset() or segment.base_offset)
        if start and end == start:  # the index entry that led here may be wrong
            segment.reindex(0)
        else:
            segment.write_indexes()
        if segment is not self._segments.active:
            segment.become_inactive()
        if not start and self._rebuilt_from is None:
            self._rebuilt_from = segment.base_offset
        segment.close()
        if self._last_run.flush_failed:
            self._files.set_modified_ms(segment.path, modified_ms)
        self._rebuilt.add(segment)

    def _reindex_intact(self, segment: Segment, start: int, replay: ProducerReplay | None) -> int:
        """Index the batches from `start` to the first damage again, and `replay` them; returns where the last ends."""
        header = segment.batch_at(start)
        batches = intact_batches(
            segment.read,
            start,
            segment.size,
            base_offset=segment.base_offset,
            next_offset=header.base_offset if start and header is not None else segment.base_offset,
            may_have_gaps=self._may_have_gaps or segment is not self._segments.active,
        )
        if self._last_run.flush_failed:
            batches = segment.write_again(batches)
        segment.begin_reindex(start)
        end = start
        for batch in batches:
            header = batch.header
            size = header.batch_length + LOG_OVERHEAD
            segment.index_batch(end, size, header.base_offset + header.last_offset_delta, header.max_timestamp)
            if replay is not None:
                replay.take(batch)
            end += size
        return end

    def _believed_position(self, segment: Segment) -> int:
        """From where on to look: near the end if all writes reached the kernel and the indexes make sense, else 0."""
        if not (self._last_run.same_boot and segment.offset_index.is_sane() and segment.time_index.is_sane()):
            return 0
        limit = segment.size - 1
        if segment is self._segments.active:
            limit = max(0, segment.size - CHECKED_BYTES)
        entry = segment.offset_index.lookup_position(limit)
        header = segment.batch_at(entry.position) if entry.position else None
        agrees = header is not None and header.last_offset == entry.offset and header.base_offset >= segment.base_offset
        return entry.position if agrees else 0

    def _drop_segments_after(self, damaged: Segment) -> None:
        gone = tuple(segment for segment in self._segments if segment.base_offset > damaged.base_offset)
        for segment in reversed(gone):
            for path in segment.paths:
                self._files.remove_if_present(path)
        self._segments.remove(gone)
        self._has_removed = self._has_removed or bool(gone)

    # -- 4. offsets, epochs, producers ----------------------------------------------------------

    def _settle_offsets(self) -> tuple[int, int]:
        if not self._segments.all:
            self._start_at(self._last_run.log_start_offset)
        start_offset = self._last_run.log_start_offset
        if not self._config.remote_storage_enable:  # else what is below the first segment is in the remote store
            start_offset = max(start_offset, self._segments.all[0].base_offset)
        end_offset = self._end_offset()
        if start_offset > end_offset:
            for segment in self._segments:
                for path in segment.paths:
                    self._files.remove_if_present(path)
            self._segments.release()
            self._segments = Segments()
            self._has_removed = True
            self._replay = None
            self._start_at(start_offset)
            end_offset = start_offset
        return start_offset, end_offset

    def _start_at(self, offset: int) -> None:
        segment = self._segment(offset)
        segment.create(self._now_ms, self._config.segment_size if self._config.preallocate else 0)
        self._segments.add(segment)

    def _end_offset(self) -> int:
        """The log end offset; a clean log whose end is not a batch's end was not left clean."""
        end_offset = self._segments.active.next_offset()
        if end_offset is None:
            self._replay = None
            self._recover_segment(self._segments.active, 0)
            end_offset = self._segments.active.next_offset()
        return self._segments.active.base_offset if end_offset is None else end_offset

    def _settle_epochs(self, start_offset: int, end_offset: int) -> None:
        epochs = self._leader_epochs
        if not epochs.load():
            epochs.replace(self._epochs_in_batches())
        epochs.truncate_from_end(end_offset)
        epochs.truncate_from_start(start_offset)
        epochs.write()

    def _epochs_in_batches(self) -> list[EpochEntry]:
        """The epochs as the batches have them. One that is followed by a lower one is damage: no CRC covers it."""
        entries: list[EpochEntry] = []
        for segment in self._segments:
            for batch in iter_batches(segment.read, 0, segment.size):
                epoch = batch.header.partition_leader_epoch
                while entries and entries[-1].epoch > epoch >= 0:
                    entries.pop()
                if epoch >= 0 and (not entries or entries[-1].epoch < epoch):
                    entries.append(EpochEntry(epoch, batch.header.base_offset))
        return entries

    def _load_producers(self, producers: ProducerState, end_offset: int) -> None:
        limit = end_offset if self._rebuilt_from is None else min(end_offset, self._rebuilt_from)
        base_offsets = {segment.base_offset for segment in self._segments}
        latest = max((offset for offset in producers.snapshots if offset <= end_offset), default=end_offset)
        producers.keep_snapshots(base_offsets | {latest})
        producers.write_snapshots()
        if self._is_clean and self._rebuilt_from is None and not producers.snapshots:
            return
        replay = self._replay or ProducerReplay(producers, self._segments, limit, self._now_ms)
        replay.finish(self._segments)
        producers.write_snapshots()

    def _note_flushed(self, end_offset: int) -> None:
        """The recovery point tells what is on the device, but for the files that were just repaired."""
        recovery_point = end_offset if self._is_clean else self._last_run.recovery_point
        for segment in self._segments:
            following = self._segments.after(segment)
            end = end_offset if following is None else following.base_offset
            was_complete = self._is_clean or end < recovery_point
            segment.flushed(max(segment.base_offset, min(recovery_point, end)), was_complete)
            segment.has_flushed_indexes = was_complete and segment not in self._rebuilt

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _remove(self, name: str) -> None:
        self._files.remove_if_present(self._path(name))


def _is_of(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and name.removesuffix(suffix).isdecimal()


def _offset(name: str) -> int:
    """The base offset that a file name begins with; -1 for another kind of name."""
    digits = name.split(".", 1)[0]
    return int(digits) if digits.isdecimal() else -1
