"""The records in the frames of a put journal, as columns; needs numpy."""

from __future__ import annotations

from typing import Final, NamedTuple, cast

import numpy as np

from rayka.storage.columns.compiled import CompiledFunction
from rayka.storage.columns.encode import Fields
from rayka.storage.journal.layout import MOST_FRAME_RECORDS, SEQUENCE_MASK
from rayka.storage.journal.scan import scan_frames

MOST_RECORDS: Final = 4 * MOST_FRAME_RECORDS
_SMALLEST_RECORD: Final = 4
_scan_briefly = cast(CompiledFunction, scan_frames).run_briefly


class JournalRecords(NamedTuple):
    """Records that the log does not have yet: their values, the number of the first, and the position after them."""

    values: Fields
    first_number: int
    end: int

    @property
    def record_count(self) -> int:
        """The number of records."""
        return len(self.values.positions)

    @property
    def base_sequence(self) -> int:
        """The sequence number of the first one."""
        return self.first_number & SEQUENCE_MASK

    def slice(self, start: int, end: int | None = None) -> JournalRecords:
        """The records from the one at `start` up to `end`, or to the last one."""
        data, positions, lengths = self.values
        values = Fields(data, positions[start:end], lengths[start:end])
        return JournalRecords(values, self.first_number + start, self.end)


def records_in(data: bytes, first_number: int, position: int) -> JournalRecords | None:
    """The records of the frames at `position`, from the one with this number on; None if there is no such frame."""
    frames = np.frombuffer(data, np.uint8)
    room = min(MOST_RECORDS, len(data) // _SMALLEST_RECORD + 1)
    positions, lengths = np.empty(room, np.int64), np.empty(room, np.int64)
    size, count = _scan_briefly(frames, first_number, positions, lengths)
    if not count:
        return None
    return JournalRecords(Fields(frames, positions[:count], lengths[:count]), first_number, position + size)
