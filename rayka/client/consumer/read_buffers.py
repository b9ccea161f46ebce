"""Reusable memory for the bytes that a consumer reads, and for its tables.

Fresh memory costs as much as all other work on the bytes of large records: the kernel clears each page. A buffer is
taken again once nobody refers to the records or the table in it: Python tells by refusing to resize a mapping of which
there is a view. Mappings are cleared where they are first used, by whoever uses them; a bytearray is at once, and all
other threads wait for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_BYTES = 65_536
_STEP_BYTES = 262_144
_LARGE_STEP_BYTES = 8 << 20
"""So that a slightly larger table needs no other buffer. What is not used of one takes no memory, but for the rest of
a large page.
"""
_LARGE_PAGE_BYTES = 2 << 20
_CLEARED_S = 0.00002, 0.001
"""To clear such a page takes so long. Less says that there is none, and more that its memory comes from the host."""
_ALIGNMENT = 64
_MOST_READ_BYTES = 32 << 20
_MOST_TABLE_BYTES = 120 << 20


class ReadBuffers:
    """Keeps buffers of up to `most_bytes` in all, the smallest first. Small ones are not worth it."""

    def __init__(self, most_bytes: int = _MOST_READ_BYTES) -> None:
        self._most_bytes = most_bytes
        self._buffers: list[mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes, whatever they are, that nobody else has."""
        kept = None if size < _SMALL_BYTES else self.take_kept(size)
        return memoryview(bytearray(size)) if kept is None else kept

    def take_kept(self, size: int) -> memoryview | None:
        """As `take`, if the buffer will be taken again; None where there is no room to keep it."""
        fitting = next((each for each in self._buffers if len(each) >= size and _is_unused(each)), None)
        if fitting is None:
            step = _STEP_BYTES if size < _LARGE_STEP_BYTES else _LARGE_STEP_BYTES
            fitting = self._add(-(-size // step) * step)
        return None if fitting is None else memoryview(fitting)[:size]

    def _add(self, size: int) -> mmap.mmap | None:
        """One more buffer, in place of unused ones that are smaller if there is no room for it; None without memory."""
        unused = [buffer for buffer in self._buffers if _is_unused(buffer)]
        used = sum(map(len, self._buffers))
        if used - sum(map(len, unused)) + size > self._most_bytes:
            return None
        for small in unused:
            if used + size > self._most_bytes:
                used -= len(small)
                self._buffers = [buffer for buffer in self._buffers if buffer is not small]
        if (buffer := _mapped(size)) is not None:
            insort(self._buffers, buffer, key=len)
        return buffer


class TableBuffers:
    """The memory of a consumer's tables.

    Several threads may decode at the same time.
    """

    def __init__(self) -> None:
        self._buffers = ReadBuffers(_MOST_TABLE_BYTES)
        self._lock = threading.Lock()

    def allocate(self, size: int) -> pa.Buffer:
        """A buffer of `size` bytes, whatever they are, that nobody else has, where Arrow wants one to begin.

        What can't be kept is Arrow's.
        """
        import pyarrow as pa

        with self._lock:
            memory = None if size < _SMALL_BYTES else self._buffers.take_kept(size + _ALIGNMENT)
        if memory is None:
            return pa.allocate_buffer(size)
        start = -pa.py_buffer(memory).address % _ALIGNMENT
        return pa.py_buffer(memory[start : start + size])


def _mapped(size: int) -> mmap.mmap | None:
    """None if the system gives none, or resizes none. Who needs the memory then gets it from Python or Arrow, or learns
    from them that there is no more.
    """
    try:
        buffer = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    if not _is_unused(buffer):
        return None
    if size >= _LARGE_STEP_BYTES:
        with contextlib.suppress(AttributeError, OSError):  # not every system has them
            _ask_for_large_pages(buffer)
    return buffer


def _ask_for_large_pages(buffer: mmap.mmap) -> None:
    """Let it have transparent huge pages (`MADV_HUGEPAGE`), of 2 MB, if the first one comes quickly.

    They take a third of the time of small pages, also when two threads need some at the same time. But where a virtual
    machine gives the memory of unused ones back to its host (free page reporting), they may take several times as long.
    """
    buffer.madvise(mmap.MADV_HUGEPAGE, 0, 2 * _LARGE_PAGE_BYTES)
    byte = ctypes.c_char.from_buffer(buffer, _LARGE_PAGE_BYTES)  # in a whole page, wherever the buffer begins
    began = time.perf_counter()
    ctypes.memset(ctypes.byref(byte), 0, 1)  # other threads run meanwhile
    least_s, most_s = _CLEARED_S
    if least_s < time.perf_counter() - began < most_s:
        buffer.madvise(mmap.MADV_HUGEPAGE)


def _is_unused(buffer: mmap.mmap) -> bool:
    """Whether there is no view of it, nor anything made from one. False where the system resizes none, or a sandbox."""
    try:
        buffer.resize(len(buffer))
    except (BufferError, OSError, SystemError):
        return False
    return True
