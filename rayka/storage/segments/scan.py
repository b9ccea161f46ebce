"""Walking over the batches of a segment from a position on, in large reads.

`intact_batches` ends at the first damage. Two kinds are known: bytes missing and bytes that are nonsense. The CRC does
not cover the base offset, so a wrong one shows only by its neighbours: offsets rise, and where one batch
jumps up and the next goes back to where the first should have been, the first one is the damaged one.
Leader epochs are not covered either; they are read from their checkpoint, not from the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import (
    ATTRIBUTES_OFFSET,
    HEADER,
    LOG_OVERHEAD,
    MAGIC,
    MIN_BATCH_LENGTH,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)
from rayka.storage.format.legacy.message import begins_at

CHUNK_BYTES = 4 << 20
MAX_RELATIVE_OFFSET = 0x7FFF_FFFF

Read = Callable[[int, int], bytes]
"""(size, position) -> bytes, fewer only at the end."""


class ScannedBatch(NamedTuple):
    """A batch: its `position` in the segment, and its bytes, from `start` of `data` on."""

    position: int
    header: BatchHeader
    data: memoryview
    start: int

    @property
    def end(self) -> int:
        """Position of the byte after the batch."""
        return self.position + self.header.batch_length + LOG_OVERHEAD

    def is_intact(self) -> bool:
        """Whether the magic is ours and the CRC right."""
        header, start = self.header, self.start
        covered = self.data[start + ATTRIBUTES_OFFSET : start + header.batch_length + LOG_OVERHEAD]
        return crc32c(covered) == header.crc and header.magic == MAGIC


def iter_batches(read: Read, position: int, end: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[ScannedBatch]:
    """Each batch from `position` on, until one is incomplete or has an impossible length. CRCs are not checked."""
    new = tuple.__new__
    data = memoryview(b"")
    start = 0
    while position + RECORD_BATCH_OVERHEAD <= end:
        if start + RECORD_BATCH_OVERHEAD > len(data):
            data, start = memoryview(read(chunk_bytes, position)), 0
            if len(data) < RECORD_BATCH_OVERHEAD:
                return
        fields = HEADER.unpack_from(data, start)
        size = fields[1] + LOG_OVERHEAD
        if fields[1] < MIN_BATCH_LENGTH or position + size > end:
            return
        if start + size > len(data):
            data, start = memoryview(read(max(size, chunk_bytes), position)), 0
            if len(data) < size:
                return
        yield new(ScannedBatch, (position, new(BatchHeader, fields), data, start))
        position += size
        start += size


def intact_batches(
    read: Read, position: int, end: int, *, base_offset: int, next_offset: int, may_have_gaps: bool
) -> Iterator[ScannedBatch]:
    """Each batch before the first damage, CRCs checked; the damage, if any, begins where the last of them ends.

    Reads from `position`, where a batch begins whose base offset is `next_offset` or, after compaction, above
    it. Raises UNSUPPORTED_FOR_MESSAGE_FORMAT at an intact message of magic 0 or 1: that is not damage, and
    nothing may be cut off.
    """
    jumped: ScannedBatch | None = None
    jumped_over = next_offset
    for batch in iter_batches(read, position, end):
        header = batch.header
        if not batch.is_intact():
            break
        base = header.base_offset
        if base < next_offset:
            if jumped is not None and base < jumped_over:
                yield jumped
            return
        if header.last_offset_delta < 0 or base + header.last_offset_delta - base_offset > MAX_RELATIVE_OFFSET:
            break
        if jumped is not None:
            yield jumped
            jumped = None
        if base > next_offset:
            jumped, jumped_over = batch, next_offset
        else:
            yield batch
        next_offset = base + header.last_offset_delta + 1
        position = batch.end
    _refuse_old_format(read, position, end)
    if jumped is not None and may_have_gaps:
        yield jumped


def _refuse_old_format(read: Read, position: int, end: int) -> None:
    if begins_at(position, end, read):
        message = f"The log has a message of magic 0 or 1 at position {position}, after record batches"
        raise RaykaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, message)
