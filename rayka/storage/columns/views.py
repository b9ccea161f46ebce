"""Values that stay where they are: a column of Arrow's binary views into mapped files and into fetched bytes.

Values of plain batches (`plain.py`) are not copied, so that a column of large values costs little beside the CRC of its
batches. Others are: those that were compressed, or have headers that are wanted too. The array keeps what it looks
into, as a whole: memory, and mapped files, also deleted ones.

What is mapped changes if somebody changes the file in place, and reading it ends the process where the file has become
shorter, or where the disk has to be read again and fails. The CRC was right when the array was made.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from rayka.config.definition import INT_MAX
from rayka.storage.columns.build import Allocate, GrowingArray
from rayka.storage.columns.chunks import ChunkRecords
from rayka.storage.columns.decode import MOST_INLINE_BYTES, Longs, gather_views
from rayka.storage.columns.plain import (
    BUFFER,
    BUFFER_POSITION,
    DESCRIPTOR,
    FILE_ADDRESS,
    NOT_MAPPED,
    POSITION_IN_FILE,
    SIZE,
    last_beside,
)
from rayka.storage.format.batch import Buffer

_NOTHING = pa.py_buffer(b"")
_MOST_BLOCK_BYTES = 8 << 20
_SPARE = 1.05
_VIEW_NUMBERS = 2
NO_VIEWS = np.empty((0, _VIEW_NUMBERS), np.int64)
_FAILED = ctypes.c_void_p(-1).value
_library = ctypes.CDLL(None, use_errno=True)
_map = _library.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_unmap = _library.munmap
_unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class MappedBytes:
    """A part of a file in memory, until the last reference to this object is gone. The file may be closed before.

    Python's own mapping would keep a descriptor open.
    """

    def __init__(self, descriptor: int, position: int, size: int) -> None:
        """Map so many bytes, and those before `position` in its page. Raises OSError."""
        self.address: int | None = None
        self._unmap = _unmap
        self.position = position // mmap.PAGESIZE * mmap.PAGESIZE
        self.size = position + size - self.position
        self.address = _map(None, self.size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, self.position)
        if self.address == _FAILED:
            self.address = None
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def __del__(self) -> None:
        if self.address is not None:
            self._unmap(self.address, self.size)

    @property
    def file_address(self) -> int:
        """Where the file would begin, if all of it were mapped."""
        assert self.address is not None
        return self.address - self.position

    def buffer(self) -> pa.Buffer:
        """What is mapped; the buffer keeps it so."""
        return pa.foreign_buffer(self.address, self.size, base=self)


class ValueViewsColumn:
    """The values, as binary_view."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self.views = GrowingArray(np.int64, allocate, _VIEW_NUMBERS)
        self.is_valid = GrowingArray(np.uint8, allocate)
        self._buffers: list[pa.Buffer] = []
        self._kept = set[int]()
        self._block, self._block_number, self._block_size = np.empty(0, np.uint8), 0, 0
        self._copied_bytes = 0

    @property
    def size(self) -> int:
        """See `Column`. Of the memory that views look into only what was copied counts."""
        return self.views.nbytes + self._copied_bytes

    def begin_bytes(self, data: Buffer) -> int:
        """Let views look into `data`; the number of its buffer. `end_bytes` comes next."""
        return self._add(pa.py_buffer(memoryview(data).toreadonly()))

    def end_bytes(self, is_viewed: bool) -> None:
        """If there are views into these bytes nobody may change them any more. Otherwise they are forgotten."""
        last = len(self._buffers) - 1
        if is_viewed:
            self.keep([last])
        else:
            self._buffers[last] = _NOTHING

    def add_mapped(self, mapped: MappedBytes) -> int:
        """Let views look into a file; the number of its buffer. Unless `keep` gets that, it is let go at the end."""
        return self._add(mapped.buffer())

    def keep(self, numbers: Iterable[int]) -> None:
        """There are views into these buffers."""
        self._kept.update(numbers)

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        lengths, progress = records.values.lengths, records.progress
        size = int(lengths[lengths > MOST_INLINE_BYTES].sum(dtype=np.int64))
        if size > len(self._block) - self._block_size:
            self._begin_block(size, progress)
        start = self._block_size
        self._block_size += size
        self._copied_bytes += size
        views, is_valid = (each.extend(len(lengths), progress) for each in (self.views, self.is_valid))
        gather_views(records.data, *records.values, self._block[start:], self._block_number, start, views, is_valid)

    def finish(self) -> pa.Array:
        """See `Column`."""
        is_valid = self.is_valid.finish()
        nulls = len(is_valid) - int(np.count_nonzero(is_valid))
        validity = pa.py_buffer(np.packbits(is_valid, bitorder="little")) if nulls else None
        kept = [buffer if number in self._kept else _NOTHING for number, buffer in enumerate(self._buffers)]
        return pa.Array.from_buffers(pa.binary_view(), len(is_valid), [validity, self.views.buffer(), *kept], nulls)

    def _begin_block(self, size: int, progress: float) -> None:
        """Memory for these bytes, and some of those that are expected."""
        expected = (self._copied_bytes + size) / progress - self._copied_bytes
        buffer = self._allocate(max(size, min(int(expected * _SPARE), _MOST_BLOCK_BYTES)))
        self._block_number, self._block_size = self._add(buffer), 0
        self.keep([self._block_number])
        self._block = np.frombuffer(buffer, np.uint8)

    def _add(self, buffer: pa.Buffer) -> int:
        self._buffers.append(buffer)
        return len(self._buffers) - 1


def map_pieces(pieces: Longs, column: ValueViewsColumn) -> None:
    """Map those pieces of files (`plain.py`) that are not mapped yet, and let the column look into them. Those that are
    side by side in a file are mapped at once.
    """
    first = 0
    while first < len(pieces):
        last = last_beside(pieces, first)
        if not pieces[first, FILE_ADDRESS]:
            _map_run(pieces[first : last + 1], column)
        first = last + 1


def _map_run(run: Longs, column: ValueViewsColumn) -> None:
    descriptor, position = int(run[0, DESCRIPTOR]), int(run[0, POSITION_IN_FILE])
    size = int(run[-1, POSITION_IN_FILE] + run[-1, SIZE]) - position
    run[:, FILE_ADDRESS] = NOT_MAPPED
    if not can_be_viewed(size + mmap.PAGESIZE):
        return
    with contextlib.suppress(OSError):  # they are read instead
        mapped = MappedBytes(descriptor, position, size)
        run[:, BUFFER], run[:, BUFFER_POSITION] = column.add_mapped(mapped), mapped.position
        run[:, FILE_ADDRESS] = mapped.file_address


def can_be_viewed(size: int) -> bool:
    """Whether views can look into so many bytes: where they begin is an int32."""
    return size <= INT_MAX
