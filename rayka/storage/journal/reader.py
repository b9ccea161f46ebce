"""The leader's side of a put journal.

Invariants: records are read in the order of their numbers, each once. `drained` moves on only when the log has them.
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Final, Protocol

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.journal.large import LargeRecord, RecordRoom
from rayka.storage.journal.layout import (
    CAPACITY,
    DRAINED,
    HEADER_BYTES,
    IDENTITY,
    JUMPED,
    LARGE_CAPACITY,
    MAGIC,
    MOST_FRAME_BYTES,
    NO_JUMP,
    SEQUENCE_MASK,
    SIZE,
    STATE,
    WATCHED,
    WORD,
    WRITTEN,
    JournalState,
    start_of,
)

if TYPE_CHECKING:
    from rayka.storage.journal.records import JournalRecords

MOST_BYTES: Final = 512 << 10
"""How much is read at once. A frame without a large record is smaller, so a whole one is always in it."""
_CAPACITIES: Final = (CAPACITY, LARGE_CAPACITY)
_WORD = struct.Struct("<q")
_TWO_WORDS = struct.Struct("<qq")
_THREE_WORDS = struct.Struct("<qqq")


class JournalFiles(Protocol):
    """What is used of `rayka.storage.files`. All methods raise OSError."""

    def read(self, descriptor: int, size: int, position: int, /) -> bytes: ...

    def write(self, descriptor: int, data: bytes, position: int, /) -> int: ...

    def read_into(self, descriptor: int, buffer: memoryview, position: int) -> int: ...

    def read_fully(self, descriptor: int, size: int, position: int) -> bytes: ...

    def truncate(self, descriptor: int, size: int) -> None: ...


class Journal:
    """One journal, as the leader has it open."""

    def __init__(
        self,
        files: JournalFiles,
        descriptor: int,
        producer_id: int,
        topic_id: uuid.UUID,
        capacity: int = CAPACITY,
        room: RecordRoom | None = None,
    ) -> None:
        """All journals of a process may have the same room for large records."""
        self.capacity = capacity
        self._room = RecordRoom() if room is None else room
        self.descriptor = descriptor
        self.producer_id = producer_id
        self.topic_id = topic_id
        self.is_behind = False
        """Whether a power cut took records from the log, so that the next one does not follow in its sequence."""
        self.was_closed = False
        """Whether its leader had closed it without an error: the program has sent what is behind `drained`."""
        from rayka.storage.journal.records import records_in  # needs numpy, which a leader without journals does not

        self._records_in = records_in
        self._files = files
        self._drained = 0
        self._number = 0  # of the record at `_drained`
        self._next_number = 0

    @classmethod
    def create(
        cls,
        files: JournalFiles,
        descriptor: int,
        producer_id: int,
        topic_id: uuid.UUID,
        capacity: int = CAPACITY,
        room: RecordRoom | None = None,
    ) -> Journal:
        """Make an empty file a journal. Raises OSError."""
        files.truncate(descriptor, HEADER_BYTES + capacity)
        files.write(descriptor, _WORD.pack(capacity), SIZE)
        files.write(descriptor, _WORD.pack(NO_JUMP), JUMPED)
        files.write(descriptor, IDENTITY.pack(MAGIC, producer_id, topic_id.bytes), 0)
        return cls(files, descriptor, producer_id, topic_id, capacity, room)

    @classmethod
    def open(cls, files: JournalFiles, descriptor: int, room: RecordRoom | None = None) -> Journal | None:
        """A journal that an earlier process had open; None if the file is none. Raises OSError."""
        header = files.read(descriptor, HEADER_BYTES, 0)
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
            return None
        _, producer_id, topic_id = IDENTITY.unpack_from(header)
        capacity = _WORD.unpack_from(header, SIZE)[0] or CAPACITY
        if capacity not in _CAPACITIES:
            return None
        journal = cls(files, descriptor, producer_id, uuid.UUID(bytes=topic_id), capacity, room)
        journal._drained, journal._number = _TWO_WORDS.unpack_from(header, DRAINED)
        journal._next_number = journal._number
        journal.was_closed = _THREE_WORDS.unpack_from(header, STATE) == (JournalState.CLOSED, 0, ~JournalState.CLOSED)
        return journal

    def follow_log(self, last_sequence: int | None) -> None:
        """Go on after the last record that the log has of this producer; None if it knows nothing of it.

        The leader may have died between the append and the word that says so; then the log is ahead of the file.
        """
        if last_sequence is None:
            return
        ahead = (last_sequence + 1 - self._number) & SEQUENCE_MASK
        self.is_behind = ahead > self.capacity
        self._next_number = self._number + (0 if self.is_behind else ahead)

    def has_more(self) -> bool:
        """Whether there are frames that were not read, or damage. Raises OSError."""
        return self.written() != self._drained

    def is_read(self, position: int) -> bool:
        """Whether the log has everything up to this position."""
        return self._drained >= position

    def read(self) -> JournalRecords | LargeRecord | None:
        """The next records; None if there are none. Raises OSError, and CORRUPT_MESSAGE for a damaged frame.

        A large record is valid until the next read.
        """
        while (written := self.written()) != self._drained:
            frames = self._next_frames(written)
            if frames is None:
                if self.written() != written:
                    continue  # a word may be read half-written
                reason = f"a put journal has a damaged frame at position {self._drained} of {written}"
                raise RaykaError(ErrorCode.CORRUPT_MESSAGE, reason)
            known = self._next_number - self._number
            if known < frames.record_count:
                return frames if known <= 0 or isinstance(frames, LargeRecord) else frames.slice(known)
            self._mark(frames.end, self._number + frames.record_count)
        return None

    def _next_frames(self, written: int) -> JournalRecords | LargeRecord | None:
        """Behind the last frame before a multiple of the capacity, the program may have been interrupted.

        Then it has left a frame there with the number of the next one. Where no such place is known, everything before
        the multiple is read.
        """
        start = start_of(self._drained, self.capacity, self.capacity)
        if written <= start:
            return self._frames_at(self._drained, written)
        jumped = self._word(JUMPED)  # behind `WRITTEN`, so it is that of this multiple
        if self._drained < jumped <= start:
            return self._frames_at(self._drained, jumped)
        return self._frames_at(start, written)

    def _frames_at(self, position: int, written: int) -> JournalRecords | LargeRecord | None:
        place = position % self.capacity
        size = min(self.capacity - place, written - position)
        if size > MOST_FRAME_BYTES:  # The CRC of a large frame comes later, so a word read half-written must show here.
            size = min(size, self.written() - position)
        if size <= 0:
            return None
        if size > MOST_FRAME_BYTES:
            large = self._room.read(self._files, self.descriptor, HEADER_BYTES + place, size, self._number, position)
            if large is not None:
                return large
        data = self._files.read_fully(self.descriptor, min(size, MOST_BYTES), HEADER_BYTES + place)
        return self._records_in(data, self._number, position)

    def appended(self, count: int) -> None:
        """The log has `count` more of the records that `read` returned."""
        self._next_number += count

    def drained(self, records: JournalRecords | LargeRecord) -> None:
        """The log has these. Raises OSError."""
        self._next_number = records.first_number + records.record_count
        self._mark(records.end, self._next_number)

    def _mark(self, position: int, number: int) -> None:
        self._drained, self._number = position, number
        self._files.write(self.descriptor, _TWO_WORDS.pack(position, number), DRAINED)

    def watch(self, is_watched: bool) -> None:
        """Say whether the program need not ask for its records to be read. Raises OSError."""
        self._files.write(self.descriptor, _WORD.pack(is_watched), WATCHED)

    def set_state(self, state: JournalState, error: int = 0) -> None:
        """Tell the program. Raises OSError."""
        self._files.write(self.descriptor, _THREE_WORDS.pack(state, error, ~state), STATE)

    def written(self) -> int:
        """The position after the last frame. Raises OSError."""
        return self._word(WRITTEN)

    def _word(self, place: int) -> int:
        data = self._files.read(self.descriptor, WORD, place)
        return int(_WORD.unpack(data)[0]) if len(data) == WORD else 0
