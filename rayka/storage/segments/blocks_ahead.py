"""Blocks of the file system that the active segment of a log gets ahead of its appends.

Theory of operation. ext4 gives a file its blocks when it writes the file to the device. Until then it reserves space
for each block of 4 KB that is written, which takes longer than to copy the block. For a block that the file already has
there is nothing to reserve: a write of 1 MB takes 30 % less time. So a log that got `STEP_BYTES` within `FAST_MS` gets
the blocks for as many more bytes with one call. The file is no longer for that: readers and recovery do not notice.

A log has such blocks only while it grows fast, so that many logs together have no more of them than they got bytes in
`IDLE_MS`. The flush after a roll, a clean stop and a truncation give back those that were not needed. For a log that
became slow the upkeep asks for a flush, at whose end they are given back if nothing was appended meanwhile: a cut waits
while the system writes the last page to the device, and only what was flushed is not being written. After a crash a
log keeps its blocks, at most `STEP_BYTES`, until the next roll or clean stop. Where the system has too few, the log
keeps none of them, and appends do without.
"""

from __future__ import annotations

import contextlib

from rayka.storage.segments.segment import Segment

STEP_BYTES = 8 << 20
FAST_MS = 1_000
IDLE_MS = 5_000


class BlocksAhead:
    """Those of one log."""

    def __init__(self) -> None:
        self.due_size = 0
        """An append that makes the active segment larger than this has to call `look` before."""
        self._looked_ms = -1 - FAST_MS
        self._asked_ms = -1 - IDLE_MS
        self._are_there = False
        self._are_unwanted = False

    def begin_segment(self) -> None:
        """The log has another active segment; the one before gives its blocks back when it is flushed."""
        self.due_size = 0
        self._are_there = self._are_unwanted = False

    def look(self, segment: Segment, size: int, segment_size: int, now_ms: int) -> None:
        """Set blocks aside if the log grows fast, before the active segment grows to `size`. Never raises OSError.

        The append uses up those that were set aside before.
        """
        is_fast = 0 <= now_ms - self._looked_ms <= FAST_MS
        self._looked_ms = now_ms
        self.due_size = size + STEP_BYTES
        self._are_there = self._are_unwanted = False
        if is_fast:
            with contextlib.suppress(OSError):  # the disk may be full: if the append finds no room, it will say so
                end = max(size, min(self.due_size, segment_size))
                self._are_there = segment.set_blocks_aside(end - segment.size)

    def are_idle(self, now_ms: int) -> bool:
        """Whether there are blocks which the log, as slow as it is now, does not need."""
        return self._are_there and now_ms - max(self._looked_ms, self._asked_ms) > IDLE_MS

    def give_back_later(self, now_ms: int) -> None:
        """Give all of them back at the end of the next flush."""
        self._asked_ms = now_ms
        self._are_unwanted = True

    def flushed(self, segment: Segment) -> None:
        """All batches of the active segment are on the device. Raises OSError."""
        if self._are_unwanted:
            self._are_there = self._are_unwanted = False
            segment.cut_to_batches()
