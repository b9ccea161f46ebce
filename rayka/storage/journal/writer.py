"""The program's side of a put journal.

Invariants: a frame is written whole before `WRITTEN` covers it, and nothing is written over that the leader has not
read. A write that fails changes nothing. An interrupt (Ctrl-C) may come between any two steps: `WRITTEN` says whether
the last frame counts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from rayka.storage.journal.layout import (
    CAPACITY,
    DRAINED,
    HEADER_BYTES,
    STATE,
    WATCHED,
    WORD,
    WRITTEN,
    JournalState,
    frames_of,
    record_frame,
    start_of,
)

_WRITTEN, _DRAINED, _WATCHED, _STATE, _ERROR = (
    WRITTEN // WORD,
    DRAINED // WORD,
    WATCHED // WORD,
    STATE // WORD,
    STATE // WORD + 1,
)


class JournalWriter:
    """Writes frames; for one thread at a time.

    `write(data, position)` writes to the file, as `os.pwrite` does; `words` is its first page as int64 numbers, in
    memory that the leader's writes to the file change.
    """

    def __init__(self, write: Callable[[bytes, int], int], words: memoryview) -> None:
        self._write = write
        self._words = words
        self._before = self._after = (0, 0)  # position and number, before and after the frame of the last attempt
        self._sent_otherwise = 0

    def write(self, records: Sequence[bytes]) -> int:
        """Write as many of the records as there is room for; their number. Raises OSError if the first frame fails."""
        place = self._place()
        if len(records) == 1:
            return int(self._append(place, record_frame(place[1], records[0]), 1))
        written = 0
        for count, frame in frames_of(place[1], records):
            try:
                if not self._append(self._place(), frame, count):
                    break
            except OSError:
                if not written:
                    raise
                break  # the leader reads the frames before it
            written += count
        return written

    def _append(self, place: tuple[int, int], frame: bytes, count: int) -> bool:
        size, (before, number) = len(frame), place
        start = start_of(before, size)
        if start % CAPACITY == 0 and self._words[_DRAINED] < before:
            return False
        if self._write(frame, HEADER_BYTES + start % CAPACITY) != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._after = start + size, number + count
        self._words[_WRITTEN] = start + size
        return True

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
        """The journal is closed, and so many of the records that the log does not have go there in another way."""
        self._sent_otherwise += count

    @property
    def has_lost(self) -> bool:
        """Once the journal is closed: whether records are neither in the log nor sent otherwise."""
        return self._words[_DRAINED + 1] + self._sent_otherwise < self.end
