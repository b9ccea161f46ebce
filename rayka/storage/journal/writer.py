"""The program's side of a put journal.

Invariants: a frame is written whole before `WRITTEN` covers it, and nothing is written over that the leader has not
read. A write that fails changes nothing. An interrupt (Ctrl-C) may come between any two steps: `WRITTEN` says whether
the last frame counts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from rayka.storage.format.pieces import MaybePieces
from rayka.storage.journal.layout import (
    CAPACITY,
    DRAINED,
    HEADER_BYTES,
    JUMPED,
    MOST_FRAME_BYTES,
    MOST_UNREAD_RECORDS,
    SIZE,
    STATE,
    WATCHED,
    WORD,
    WRITTEN,
    JournalState,
    frames_of,
    record_frame,
    start_of,
)

_WRITTEN, _JUMPED, _DRAINED, _WATCHED, _STATE, _ERROR, _SIZE = (
    WRITTEN // WORD,
    JUMPED // WORD,
    DRAINED // WORD,
    WATCHED // WORD,
    STATE // WORD,
    STATE // WORD + 1,
    SIZE // WORD,
)
_MOST_PIECES = 500
"""Linux writes at most 1024 with one call."""


class JournalWriter:
    """Writes frames; for one thread at a time.

    `write(pieces, position)` writes to the file, as `os.pwritev` does; `words` is its first page as int64 numbers, in
    memory that the leader's writes to the file change.
    """

    def __init__(self, write: Callable[[Sequence[bytes], int], int], words: memoryview) -> None:
        self._write = write
        self._words = words
        self._capacity = words[_SIZE] or CAPACITY
        self._may_jump = words[_JUMPED] != 0
        self._before = self._after = (0, 0)  # position and number, before and after the frame of the last attempt
        self._sent_otherwise = 0

    def write(self, records: Sequence[MaybePieces]) -> int:
        """Write as many of the records as there is room for; their number. Raises OSError if the first frame fails."""
        place = self._place()
        if len(records) == 1 and isinstance(records[0], bytes) and len(records[0]) <= MOST_FRAME_BYTES:
            frame = record_frame(place[1], records[0])
            start = self._room(place, len(frame), 1)
            return 0 if start is None else self._append(place, start, (frame,), len(frame), 1)
        written = 0
        for each in frames_of(place[1], records):
            place, size, count = self._place(), each.size, len(each.records)
            # It is looked for first: the CRC of a large frame takes a while.
            start = self._room(place, size, count, is_list=len(records) > 1)
            if start is None:
                break
            try:
                written += self._append(place, start, each.pieces(), size, count)
            except OSError:
                if not written:
                    raise
                break  # the leader reads the frames before it
        return written

    def _room(self, place: tuple[int, int], size: int, count: int, *, is_list: bool = False) -> int | None:
        """Where a frame of this size and with so many records goes; None if there is no room for it now."""
        before, number = place
        start, drained = start_of(before, size, self._capacity), self._words[_DRAINED]
        if drained < before and self._is_unread(start, size, drained, is_list):
            return None
        if number + count - self._words[_DRAINED + 1] > MOST_UNREAD_RECORDS:
            return None
        return start

    def _is_unread(self, start: int, size: int, drained: int, is_list: bool) -> bool:
        """Whether the place has, or may have, frames that the log does not have.

        A program that puts lists waits for all of them where it begins again: it would get ahead of those that get its
        items, and then each item takes other memory than the ones before.
        """
        if start % self._capacity == 0 and (is_list or not self._may_jump):
            return True
        return self._may_jump and start + size - self._capacity > drained

    def _append(self, place: tuple[int, int], start: int, frame: Sequence[bytes], size: int, count: int) -> int:
        """Write a frame; the number of its records. Raises OSError."""
        pieces = frame if len(frame) <= _MOST_PIECES else (b"".join(frame),)
        if self._write(pieces, HEADER_BYTES + start % self._capacity) != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._after = start + size, place[1] + count
        if start and start % self._capacity == 0 and self._may_jump:
            self._words[_JUMPED] = place[0]
        self._words[_WRITTEN] = start + size
        return count

    def _place(self) -> tuple[int, int]:
        """The position after the last frame that was written, and the number after its last record."""
        if self._words[_WRITTEN] == self._after[0]:
            self._before = self._after
        return self._before

    @property
    def end(self) -> int:
        """The number after the last record that was written."""
        return self._place()[1]

    def is_drained(self, end: int) -> bool:
        """Whether the log has all records below the number `end`."""
        return self._words[_DRAINED + 1] >= end

    @property
    def is_watched(self) -> bool:
        """Whether the leader looks for frames by itself."""
        return self._words[_WATCHED] != 0

    @property
    def state(self) -> JournalState:
        """The leader's word."""
        return JournalState(self._words[_STATE])

    @property
    def error(self) -> int:
        """The error code with which the leader has closed the journal; 0 if it gave none."""
        return self._words[_ERROR]

    def missing(self, count: int) -> int:
        """How many of the last `count` records that were written the log does not have."""
        return max(0, min(count, self.end - self._words[_DRAINED + 1]))

    def send_otherwise(self, count: int) -> None:
        """The journal is closed, and `count` of the records that the log does not have go there in another way."""
        self._sent_otherwise += count

    @property
    def has_lost(self) -> bool:
        """Once the journal is closed: whether records are neither in the log nor sent otherwise."""
        return self._words[_DRAINED + 1] + self._sent_otherwise < self.end
