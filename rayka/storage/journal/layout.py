"""The file of a put journal: one program writes records into it, and the partition's leader appends them to its log.

Theory of operation. A program that puts many small records one by one pays for a request and an answer for each. With
a journal it pays for one write(2): the leader makes an empty file in the partition's directory, and the program writes
frames of records into it. The leader appends them in the order of the file, many in one batch, as an idempotent
producer whose sequence numbers are the numbers of the records. So the log says after a crash which of them it has.

A program that puts large records gets a large journal. Its gain is that a record is copied once to get into the
journal, without a request, and from there to the log through memory that is used again for each.

What is written survives the death of the program and of the leader, as what is in the log does: it is in the page cache
of the same file system. A power cut may take both; so topics that flush before they acknowledge have no journals.

- The file has a header of one page, and then `CAPACITY` bytes of frames, or as many as its header says. Positions count
  all bytes ever written; where they lie in the file is that modulo the capacity.
- A frame lies in one piece. Where the next one has no room before the end, the position goes on to the next multiple of
  the capacity. The program writes where it went on from to `JUMPED` before `WRITTEN` covers the frame. It jumps no
  second time before the leader has followed it, so one word is enough.
- The program writes over nothing that is not in the log: a frame waits until the leader has read all up to a capacity
  before its end, or everything. So the leader has frames to read while the program waits for room.
- The leader reads up to `WRITTEN`. A frame there that fails its CRC, or has another number than the next one, is
  damaged, say by a power cut: the leader closes the journal and keeps its file.
- `WRITTEN` and `JUMPED` are the program's. All other words are the leader's.
- The program writes a frame, then `WRITTEN`, and then reads `STATE` and `WATCHED`. The leader writes these, and then
  looks for frames once more. So no frame is left behind: either the leader sees it, or the program sees the new word.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from rayka.storage.format.pieces import MaybePieces, joined

SUFFIX: Final = ".journal"
MAGIC: Final = b"rayka journal 1\n"
HEADER_BYTES: Final = 4096
CAPACITY: Final = 4 << 20
LARGE_CAPACITY: Final = 16 << 20
MOST_RECORD_BYTES: Final = 64 << 10
MOST_LARGE_RECORD_BYTES: Final = 4 << 20
"""The largest record of a large journal. Larger ones gain nothing by a journal."""
MOST_FRAME_BYTES: Final = 256 << 10
"""The most bytes of a frame of several records. A record of more bytes is large: it has a frame of its own, which the
leader reads by itself."""
MOST_FRAME_RECORDS: Final = 4096
MOST_UNREAD_RECORDS: Final = 1 << 16
"""A program waits before it writes more that the log does not have: a leader may have to append all in one go."""
SEQUENCE_MASK: Final = 0x7FFF_FFFF
"""Sequence numbers go on at 0 after the largest int32, as those of every producer."""

IDENTITY: Final = struct.Struct("<16sq16s")
"""Magic, producer id, topic id."""
WORD: Final = 8
WRITTEN: Final = 64
"""The position after the last frame."""
DRAINED: Final = 128
"""The position up to which the log has everything; the next word is the number of the next record."""
WATCHED: Final = 192
"""1 while the leader looks for frames by itself."""
STATE: Final = 256
"""A `JournalState`; then the error code that closed the journal, and the state with all bits inverted."""

SIZE: Final = 320
"""The capacity; 0 stands for `CAPACITY`."""

JUMPED: Final = 384
"""The position after the last frame before a multiple of the capacity; `NO_JUMP` before the first one. 0 in a journal
of an earlier version, whose program goes on there only when the leader has read everything."""
NO_JUMP: Final = -1

FRAME: Final = struct.Struct("<IIqI")
"""CRC-32C of what follows it, size of the records, number of the first record, count of the records."""
CRC_BYTES: Final = 4
_LENGTH = struct.Struct("<I")


class JournalState(enum.IntEnum):
    """`CLOSED`: what is behind `DRAINED` will not be in the log."""

    OPEN = 0
    CLOSING = 1
    CLOSED = 2


def record_frame(first: int, record: bytes) -> bytes:
    """The frame of one record, number `first`."""
    rest = FRAME.pack(0, len(record), first, 1)[CRC_BYTES:] + record
    return _LENGTH.pack(crc32c(rest)) + rest


class Frame(NamedTuple):
    """Records that go into one frame, the first with the number `first`."""

    first: int
    records: Sequence[MaybePieces]

    @property
    def size(self) -> int:
        """The bytes that it takes in the file. Several records have their lengths before them."""
        count = len(self.records)
        return FRAME.size + (_LENGTH.size * count if count > 1 else 0) + sum(map(len, self.records))

    def pieces(self) -> Sequence[bytes]:
        """The frame, whose CRC is computed now."""
        return _frame(self.first, self.records)


def frames_of(first: int, records: Sequence[MaybePieces]) -> Iterator[Frame]:
    """The frames of several records, the first of which has the number `first`."""
    start, size = 0, 0
    for end, record in enumerate(records):
        needed = len(record) + _LENGTH.size
        if end > start and (size + needed > MOST_FRAME_BYTES or end - start == MOST_FRAME_RECORDS):
            yield Frame(first + start, records[start:end])
            start, size = end, 0
        size += needed
    if start < len(records):
        yield Frame(first + start, records[start:])


def _frame(first: int, records: Sequence[MaybePieces]) -> Sequence[bytes]:
    if len(records) == 1:
        return (
            _large_frame(first, records[0])
            if len(records[0]) > MOST_FRAME_BYTES
            else (record_frame(first, *joined(records)),)
        )
    lengths = struct.pack(f"<{len(records)}I", *map(len, records))
    body = b"".join([lengths, *joined(records)])
    rest = FRAME.pack(0, len(body), first, len(records))[CRC_BYTES:] + body
    return (_LENGTH.pack(crc32c(rest)) + rest,)


def _large_frame(first: int, record: MaybePieces) -> Sequence[bytes]:
    """The frame of one record, which is not copied."""
    pieces = (record,) if isinstance(record, bytes) else record.buffers
    rest = FRAME.pack(0, len(record), first, 1)[CRC_BYTES:]
    crc = crc32c(rest)
    for piece in pieces:
        crc = crc32c(piece, crc)
    return (_LENGTH.pack(crc) + rest, *pieces)


def start_of(position: int, size: int, capacity: int = CAPACITY) -> int:
    """Where a frame of this size goes whose predecessor ends at `position`."""
    room = capacity - position % capacity
    return position if size <= room else position + room
