"""Large items that stay in the log until a program takes them.

A program on the leader's node reads them from the page cache straight into the objects that they become, with one copy.
The segment stays open until the items of a fetch are taken, so another file that gets its name is never read for it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from crc32c import crc32c

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import ATTRIBUTES_OFFSET, BatchHeader, read_header
from rayka.storage.format.single_record import PREFIX_BYTES, SUFFIX, value_place
from rayka.storage.segments.reader import open_segment
from rayka.types import FileSlice

SMALLEST_BYTES: Final = 128 << 10
"""Smaller batches are read together, with what follows them."""
_BUFFER_BYTES: Final = 8192
_KEEP_GIL: Final = 0
"""The CRC of an item takes less time than to get the GIL back from a busy thread."""
_KEPT_BYTES: Final = 16 << 20
"""The most that a fetch brings. A process keeps up to twice as much freed memory."""


@functools.cache
def _keep_freed_memory() -> None:
    """Let the process keep the memory of items that it has freed, for the next ones.

    glibc gives freed memory back to the system beyond twice the largest block that was ever freed, and each new page
    costs more than to fill it. A program that gets lists of items frees many of them at once.
    """
    bytes(_KEPT_BYTES)


class UnreadableItem(RaykaError):
    """An item could not be read from the log, which is not the item's fault."""


class _OpenSegment:
    """A descriptor that is closed with the last item that needs it."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class StoredValue:
    """The bytes of one item, in the log."""

    __slots__ = ("_crc", "_position", "_segment", "_size", "crc_before")

    def __init__(self, segment: _OpenSegment, position: int, size: int, crc_before: int, crc: int) -> None:
        """`crc` is that of the batch, `crc_before` that of what is before the value."""
        self.crc_before = crc_before
        self._crc = crc
        self._segment = segment
        self._position = position
        self._size = size

    def __len__(self) -> int:
        return self._size

    def read(self) -> bytes:
        """The bytes. Raises `UnreadableItem`."""
        data = bytearray(self._size)
        position = 0
        with memoryview(data) as view:
            while position < self._size:
                position += self.read_into(view[position:], position)
            self.check(_crc(view, self.crc_before))
        return bytes(data)

    def check(self, crc: int) -> None:
        """Raises `UnreadableItem` unless this is the CRC up to the end of the value."""
        if _crc(SUFFIX, crc) != self._crc:
            raise UnreadableItem(ErrorCode.CORRUPT_MESSAGE, f"{self._segment.path}: an item is damaged")

    def unpickle(self) -> Any:
        """What was pickled. Raises `UnreadableItem`, and what unpickling raises."""
        _keep_freed_memory()
        file = _ValueFile(self)
        try:
            item = pickle.load(io.BufferedReader(file, _BUFFER_BYTES))
        except Exception:
            self.read()  # damage is not the item's fault
            raise
        file.finish()
        return item

    def read_into(self, buffer: memoryview, start: int) -> int:
        """Fill a part of the buffer with the bytes from `start` on; how many. Raises `UnreadableItem`."""
        size = min(len(buffer), self._size - start)
        try:
            count = os.preadv(self._segment.descriptor, [buffer[:size]], self._position + start)
        except OSError as error:
            raise UnreadableItem(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._segment.path}: {error}") from error
        if size and not count:
            raise UnreadableItem(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._segment.path} is shorter than it was")
        return count


Value: TypeAlias = bytes | StoredValue


class _ValueFile(io.RawIOBase):
    """A stored value as a file, which unpickling reads into the objects that it makes."""

    def __init__(self, value: StoredValue) -> None:
        self._value = value
        self._position = 0
        self._crc = value.crc_before

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer).cast("B") as view:
            count = self._value.read_into(view, self._position)
            self._crc = _crc(view[:count], self._crc)
        self._position += count
        return count

    def finish(self) -> None:
        """Raises `UnreadableItem` if the value is damaged."""
        while self._position < len(self._value):
            self.readinto(bytearray(_BUFFER_BYTES))
        self._value.check(self._crc)


def _crc(data: bytes | memoryview, before: int) -> int:
    return crc32c(data, before, gil_release_mode=_KEEP_GIL)


def stored_values(records: FileSlice) -> tuple[list[tuple[int, StoredValue]], FileSlice]:
    """The large items, each in a batch of its own, at the start of a slice; and the rest of the slice.

    With the offset of each. Raises KAFKA_STORAGE_ERROR.
    """
    values: list[tuple[int, StoredValue]] = []
    if records.size < SMALLEST_BYTES:
        return values, records
    with open_segment(records) as descriptor:
        segment: _OpenSegment | None = None
        for header, place, crc_before in _large(records, descriptor):
            segment = segment or _OpenSegment(os.dup(descriptor), records.path)
            begin, size = records.position, header.size_in_bytes
            values.append(
                (header.base_offset, StoredValue(segment, begin + place[0], place[1], crc_before, header.crc))
            )
            records = records._replace(position=begin + size, size=records.size - size)
    return values, records


def _large(records: FileSlice, descriptor: int) -> Iterator[tuple[BatchHeader, tuple[int, int], int]]:
    """Of each large value: the header of its batch, position and size in it, and the CRC of what is before it."""
    position, end = records.position, records.position + records.size
    while end - position >= SMALLEST_BYTES:
        start = os.pread(descriptor, PREFIX_BYTES, position)
        if len(start) < PREFIX_BYTES:
            return
        header = read_header(start)
        size = header.size_in_bytes
        place = value_place(start, header) if SMALLEST_BYTES <= size <= end - position else None
        if place is None:
            return
        position += size
        yield header, place, _crc(start[ATTRIBUTES_OFFSET : place[0]], 0)
