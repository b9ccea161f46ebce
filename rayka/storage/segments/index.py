"""The sparse indexes of a segment: offset to position, and timestamp to offset.

Kafka preallocates each index and maps it. A sparse mapping ends the process with SIGBUS when the disk
is full, so here the index of the active segment lives in memory and goes to its file in small writes;
what a crash takes is rebuilt from the log. An index that gets no more entries is searched in its file,
so closed segments hold neither memory nor descriptors. The bytes are Kafka's.

Offsets are stored relative to the segment's base offset, in four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, NamedTuple

from rayka.storage.files import RealFiles
from rayka.storage.format.batch import Buffer
from rayka.types import NO_TIMESTAMP

WRITE_BYTES = 4096
"""Entries gather in memory up to this many bytes before they are written."""
_NOTHING = -1
"""In the place of the number of bytes written: the file, if there is one, holds something else."""
WARM_BYTES = 8192
"""Look-ups near the end search only this much of the index, which stays in the CPU's caches."""


class OffsetPosition(NamedTuple):
    """The batch whose last offset is `offset` begins at byte `position` of the segment."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """The largest timestamp up to the batch that ends with `offset` is `timestamp` (milliseconds)."""

    timestamp: int
    offset: int


class AbstractIndex:
    """A file of entries of equal size, sorted by their first field."""

    ENTRY: ClassVar[struct.Struct]
    KEPT_FREE: ClassVar[int] = 0
    """Slots that only closing the segment fills."""

    def __init__(self, files: RealFiles, path: str, base_offset: int, max_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._files = files
        self._memory: bytearray | None = None
        self._written = 0
        self._full_bytes = (max_bytes // self.ENTRY.size - self.KEPT_FREE) * self.ENTRY.size

    def reset(self) -> None:
        """Begin empty, whatever the file holds; it is replaced at the next `write`."""
        self._memory = bytearray()
        self._written = _NOTHING

    def load(self, suffix: str = "") -> bytearray:
        """The entries in memory, where they can be appended to. `suffix` is what the name of the file still ends in."""
        if self._memory is None:
            data = self._files.read_file(self.path + suffix)
            self._memory = bytearray(data[: len(data) - len(data) % self.ENTRY.size])
            self._written = len(self._memory)
        return self._memory

    @property
    def entries(self) -> int:
        """Number of entries."""
        size = len(self._memory) if self._memory is not None else self._files.size(self.path)
        return size // self.ENTRY.size

    @property
    def is_full(self) -> bool:
        """Whether the next entry would exceed `segment.index.bytes`, or take a slot that is kept free."""
        size = len(self._memory) if self._memory is not None else self._files.size(self.path)
        return size >= self._full_bytes

    def write(self) -> None:
        """Bring the file up to what is in memory."""
        memory = self._memory
        if memory is not None and self._written != len(memory):
            start = max(self._written, 0)
            self._files.write_at(self.path, memory[start:], start)
            self._written = len(memory)

    def freeze(self) -> None:
        """Write the last entries and give the memory back: no more will come for now."""
        self.write()
        self._memory = None

    def entry(self, slot: int) -> tuple[int, int]:
        """The two fields of an entry, as they are stored; negative slots count from the end."""
        slot = slot if slot >= 0 else self.entries + slot
        if self._memory is not None:
            return self._unpack(self._memory, slot * self.ENTRY.size)
        descriptor = self._files.open(self.path, read_only=True)
        try:
            return self._unpack(self._files.read(descriptor, self.ENTRY.size, slot * self.ENTRY.size), 0)
        finally:
            self._files.close(descriptor)

    def _unpack(self, data: Buffer, position: int) -> tuple[int, int]:
        fields: tuple[int, int] = self.ENTRY.unpack_from(data, position)
        return fields

    def floor(self, target: int, field: int = 0) -> tuple[int, int] | None:
        """The last entry whose field is at most `target`, as it is stored."""
        slot = self._slot(target, field)
        return self.entry(slot) if slot >= 0 else None

    def _slot(self, target: int, field: int) -> int:
        """The slot of the last entry whose field is at most `target`, -1 if all are above."""
        memory, size, unpack = self._memory, self.ENTRY.size, self._unpack
        if memory is not None:
            return self._search(lambda slot: unpack(memory, slot * size), len(memory) // size, target, field)
        read, descriptor = self._files.read, self._files.open(self.path, read_only=True)
        try:
            entries = self.entries
            return self._search(lambda slot: unpack(read(descriptor, size, slot * size), 0), entries, target, field)
        finally:
            self._files.close(descriptor)

    def _search(self, entry: Callable[[int], tuple[int, int]], entries: int, target: int, field: int) -> int:
        low, high = -1, entries - 1
        warm = high - WARM_BYTES // self.ENTRY.size
        if warm > 0:
            if entry(warm)[field] <= target:
                low = warm
            else:
                high = warm - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if entry(middle)[field] <= target:
                low = middle
            else:
                high = middle - 1
        return low

    def _append(self, first: int, second: int) -> None:
        memory = self.load()
        memory += self.ENTRY.pack(first, second)

    @property
    def is_write_due(self) -> bool:
        """Whether enough entries have gathered in memory to be written."""
        return self._memory is not None and len(self._memory) - self._written >= WRITE_BYTES

    def _keep_below(self, relative_offset: int, field: int) -> None:
        memory, size, unpack = self.load(), self.ENTRY.size, self._unpack
        last = self._search(lambda slot: unpack(memory, slot * size), len(memory) // size, relative_offset - 1, field)
        del memory[(last + 1) * size :]
        if self._written > len(memory):
            self._written = _NOTHING

    def is_sane(self) -> bool:
        """Whether the file holds whole entries that rise in both fields."""
        try:
            data = self._files.read_file(self.path) if self._memory is None else self._memory
        except FileNotFoundError:
            return False
        if len(data) % self.ENTRY.size:
            return False
        return all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(self.ENTRY.iter_unpack(data)))


class OffsetIndex(AbstractIndex):
    """Last offset of a batch -> position of the batch. Entries of 8 bytes."""

    ENTRY = struct.Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        """Add an entry; offsets and positions rise."""
        self._append(offset - self.base_offset, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry at or below `offset`, or the start of the segment."""
        return self._position_of(self.floor(offset - self.base_offset))

    def lookup_position(self, position: int) -> OffsetPosition:
        """The last entry at or below `position`, or the start of the segment."""
        return self._position_of(self.floor(position, field=1))

    def _position_of(self, entry: tuple[int, int] | None) -> OffsetPosition:
        if entry is None or entry[0] < 0 or entry[1] < 0:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(entry[0] + self.base_offset, entry[1])

    def offset_above(self, position: int) -> int | None:
        """The offset of the first entry at or above `position`; None if all are below."""
        entry = self.first_at(position)
        return None if entry is None else entry.offset

    def first_at(self, position: int) -> OffsetPosition | None:
        """The first entry at or above `position`; None if all are below."""
        slot = self._slot(position - 1, field=1) + 1
        return self._position_of(self.entry(slot)) if slot < self.entries else None

    def last_entry(self) -> OffsetPosition:
        """The last entry, or the start of the segment."""
        return self.lookup_position(0x7FFF_FFFF)

    def truncate_to(self, offset: int) -> None:
        """Drop every entry at or above `offset`."""
        self._keep_below(offset - self.base_offset, field=0)


class TimeIndex(AbstractIndex):
    """Largest timestamp so far -> last offset of the batch that had it. Entries of 12 bytes (KIP-33)."""

    ENTRY = struct.Struct(">qi")
    KEPT_FREE = 1

    def __init__(self, files: RealFiles, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(files, path, base_offset, max_bytes)
        self._last: TimestampOffset | None = None

    def append_if_later(self, timestamp: int, offset: int) -> None:
        """Add an entry unless the last one already says as much."""
        if timestamp > self.last_entry().timestamp:
            self._append(timestamp, offset - self.base_offset)
            self._last = TimestampOffset(timestamp, offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry at or below `timestamp`, or (-1, base offset)."""
        found = self.floor(timestamp)
        if found is None:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampOffset(found[0], found[1] + self.base_offset)

    def last_entry(self) -> TimestampOffset:
        """The last entry, or (-1, base offset)."""
        if self._last is None:
            self._last = self._read_last()
        return self._last

    def _read_last(self) -> TimestampOffset:
        if not self.entries:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        timestamp, relative = self.entry(-1)
        return TimestampOffset(timestamp, relative + self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop every entry at or above `offset`."""
        self._keep_below(offset - self.base_offset, field=1)
        self._last = None

    def reset(self) -> None:
        super().reset()
        self._last = None
