"""Replaces segments by the cleaned segment made from them, so that a crash leaves either the old or the new ones.

1. `prepare` renames the new files from `.cleaned` to `.swap`. From the moment when none ends in `.cleaned`, opening the
   log completes the replacement; before that, it discards the new files.
2. `Log.replace_segments` makes readers see the new segment. It is read through its open descriptor and indexes in
   memory, since its files have not got their names yet.
3. The old files are renamed to `.deleted` (`SegmentDeletion.rename`), and `finish` gives the new ones their names.
4. `Log.end_replacement` gives memory and descriptor back.

Steps 1 and 3 wait for the file system; any thread may run them. Source: the log storage engine document, "LogLoader".
"""

from __future__ import annotations

from dataclasses import dataclass

from rayka.config.log import LogConfig
from rayka.storage.files import RealFiles, storing
from rayka.storage.log.deletion import SegmentDeletion
from rayka.storage.log.state import LogState
from rayka.storage.segments.segment import CLEANED_SUFFIX, SWAP_SUFFIX, Segment


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A new segment, in files that end in `.cleaned` and are on the device; it replaces those at `base_offsets`."""

    base_offset: int
    base_offsets: tuple[int, ...]
    size: int


class Replacement:
    """`segment` takes the place of `old`, which are neighbours and get no appends. Methods raise OSError."""

    def __init__(
        self, files: RealFiles, directory: str, config: LogConfig, base_offset: int, old: tuple[Segment, ...]
    ) -> None:
        self.old = old
        self.segment = Segment(
            files,
            directory,
            base_offset,
            index_bytes=config.segment_index_bytes,
            index_interval=config.index_interval_bytes,
        )
        self._files = files
        self._directory = directory

    def prepare(self) -> None:
        """Step 1: the new files are complete from here on. If that fails, none of them is left."""
        try:
            for path in self.segment.paths:
                if self._files.exists(path + CLEANED_SUFFIX):
                    self._files.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
            self._files.sync_path(self._directory)
            self.segment.open_renamed(SWAP_SUFFIX)
        except OSError:
            self._discard()
            raise

    def _discard(self) -> None:
        """Remove the new files. The log goes last: without it an index would be mistaken for that of the old log."""
        self.segment.close()
        for suffix in (SWAP_SUFFIX, CLEANED_SUFFIX):
            for path in reversed(self.segment.paths):
                self._files.remove_if_present(path + suffix)

    def finish(self) -> None:
        """Step 3, once the old files were renamed."""
        for path in self.segment.paths:
            if self._files.exists(path + SWAP_SUFFIX):
                self._files.rename(path + SWAP_SUFFIX, path)
        self._files.sync_path(self._directory)


class LogReplacement(LogState):
    """The part of `Log` that compaction needs."""

    @property
    def active_producers(self) -> dict[int, tuple[int, int]]:
        """For each producer the last offset of its data, -1 if no batch of it is remembered, and its epoch."""
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
        self._replacing = (replacement.segment,)
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
