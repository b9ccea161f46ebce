"""Large records of a put journal, each in a frame and a record batch of its own.

A record is read from the journal to where it is in its batch, and written to the log from there. Its bytes are checked
once, by the append: the CRC of the batch follows from that of the frame.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.format.single_record import SUFFIX, ValueCrc, record_prefix, seal_single
from rayka.storage.journal.layout import (
    CRC_BYTES,
    FRAME,
    MOST_FRAME_BYTES,
    MOST_LARGE_RECORD_BYTES,
    SEQUENCE_MASK,
)
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

_PRODUCER_EPOCH: Final = 0


class LargeRecord(NamedTuple):
    """A record that the log does not have yet, behind room for the header of its batch; and the position after it.

    `batch` is valid until the next large record is read. `crc` is what the frame says.
    """

    batch: memoryview
    value_size: int
    crc: ValueCrc
    first_number: int
    end: int

    @property
    def record_count(self) -> int:
        """One."""
        return 1

    def sealed(self, producer_id: int | None, now_ms: int) -> memoryview:
        """The record's batch, with a wrong CRC if the frame is damaged. Without a producer id it has no sequence
        number.
        """
        producer = (
            (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
            if producer_id is None
            else (producer_id, _PRODUCER_EPOCH, self.first_number & SEQUENCE_MASK)
        )
        seal_single(self.batch, self.value_size, self.crc, now_ms, *producer)
        return self.batch


class Files(Protocol):
    """What is used of `rayka.storage.files`. All methods raise OSError."""

    def read(self, descriptor: int, size: int, position: int, /) -> bytes: ...

    def read_into(self, descriptor: int, buffer: memoryview, position: int) -> int: ...


class RecordRoom:
    """The memory into which one journal after the other reads its large records."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray())

    def read(
        self, files: Files, descriptor: int, place: int, room: int, number: int, position: int
    ) -> LargeRecord | None:
        """The record with this number whose frame is at `place` of the file and takes at most `room` bytes.

        `position` is that of the frame in the journal. None if there is another frame, or one with a damaged header.
        Raises OSError.
        """
        header = files.read(descriptor, FRAME.size, place)
        if len(header) < FRAME.size:
            return None
        crc, size, first_number, count = FRAME.unpack(header)
        if count != 1 or first_number != number or not MOST_FRAME_BYTES < size <= MOST_LARGE_RECORD_BYTES:
            return None
        if FRAME.size + size > room:
            return None
        batch, value = self._take(size)
        if not _filled(files, descriptor, value, place + FRAME.size):
            return None
        return LargeRecord(batch, size, ValueCrc(crc, crc32c(header[CRC_BYTES:])), number, position + FRAME.size + size)

    def _take(self, size: int) -> tuple[memoryview, memoryview]:
        """Memory for a batch with a record of this size, and the part of it for the value."""
        prefix = record_prefix(size)
        start = RECORD_BATCH_OVERHEAD + len(prefix)
        end = start + size
        if len(self._memory) < end + len(SUFFIX):
            self._memory = memoryview(bytearray(end + len(SUFFIX)))
        batch = self._memory[: end + len(SUFFIX)]
        batch[RECORD_BATCH_OVERHEAD:start] = prefix
        batch[end:] = SUFFIX
        return batch, batch[start:end]


def _filled(files: Files, descriptor: int, value: memoryview, position: int) -> bool:
    done = 0
    while done < len(value):
        count = files.read_into(descriptor, value[done:], position + done)
        if not count:
            return False
        done += count
    return True
