"""Reusable memory for the bytes that a consumer reads, and for its tables.

Fresh memory costs as much as all other work on the bytes of large records: the kernel clears each page. A buffer is
taken again once nobody refers to the records or the table in it: Python tells by refusing to resize a mapping of which
there is a view. Mappings are cleared where they are first used, by whoever uses them, but for the first huge page; a
bytearray is at once, and all other threads wait for that.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from bisect import insort
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_BYTES = 65_536
_STEP_BYTES = 262_144
_LARGE_STEP_BYTES = 8 << 20
"""So that a slightly larger table needs no other buffer. What is not used of one takes no memory, but for the rest of
a huge page, which buffers of this size and more may have.
"""
_HUGE_PAGE_BYTES = 2 << 20
_LEAST_CLEARING_S, _MOST_CLEARING_S = 0.00002, 0.001
"""To clear a huge page takes so long. If it is less, the system gave a small page; if it is more, a virtual machine's
host had to give the memory.
"""
_MOST_READ_BYTES = 32 << 20
_MOST_TABLE_BYTES = 120 << 20


class ReadBuffers:
    """Keeps buffers of up to `most_bytes` in all, the smallest first. Small ones are not worth it."""

    def __init__(self, most_bytes: int = _MOST_READ_BYTES) -> None:
        self._most_bytes = most_bytes
        self._buffers: list[mmap.mmap] = []
        self._huge_pages = HugePages()

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes, whatever they are, that nobody else has."""
        kept = None if size < _SMALL_BYTES else self.take_kept(size)
        return memoryview(bytearray(size)) if kept is None else kept

    def take_kept(self, size: int, most: float = inf) -> memoryview | None:
        """As `take`, if the buffer will be taken again; None where there is no room to keep it.

        An earlier buffer is taken only if it has at most `most` bytes.
        """
        fitting = next((each for each in self._buffers if size <= len(each) <= most and _is_unused(each)), None)
        if fitting is None:
            step = _STEP_BYTES if size < _LARGE_STEP_BYTES else _LARGE_STEP_BYTES
            fitting = self._add(-(-size // step) * step)
        return None if fitting is None else memoryview(fitting)[:size]

    def _add(self, size: int) -> mmap.mmap | None:
        """One more buffer, in place of unused ones if there is no room for it; None without memory."""
        unused = [buffer for buffer in self._buffers if _is_unused(buffer)]
        used = sum(map(len, self._buffers))
        if used - sum(map(len, unused)) + size > self._most_bytes:
            return None
        missing = used + size - self._most_bytes
        enough = next(([buffer] for buffer in unused if len(buffer) >= missing), unused)
        for dropped in enough:
            if missing > 0:
                missing -= len(dropped)
                self._buffers = [buffer for buffer in self._buffers if buffer is not dropped]
        if (buffer := _mapped(size)) is not None:
            if size >= _LARGE_STEP_BYTES:
                self._huge_pages.ask_for(buffer)
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
        """A buffer of `size` bytes, whatever they are, that nobody else has. It begins with a page, which is more than
        Arrow wants. What can't be kept is Arrow's.
        """
        import pyarrow as pa

        most = 2 * size + _STEP_BYTES  # who keeps a short column for long must not keep the memory of a long one
        with self._lock:
            memory = None if size < _SMALL_BYTES else self._buffers.take_kept(size, most)
        return pa.allocate_buffer(size) if memory is None else pa.py_buffer(memory)


class HugePages:
    """Transparent huge pages (`MADV_HUGEPAGE`), of 2 MB, as long as they come quickly.

    They take a third of the time of small pages, also when two threads need some at the same time. But where a virtual
    machine gives unused memory back to its host (free page reporting), they may take several times as long.
    """

    def __init__(self) -> None:
        self._are_quick = hasattr(mmap, "MADV_HUGEPAGE")

    def ask_for(self, buffer: mmap.mmap) -> None:
        """Let a new buffer have them, of at least 4 MB. The first one is cleared now; if that is slow, the rest of this
        buffer has small pages, and those that follow have what the system gives unasked.
        """
        if not self._are_quick or not _advise(buffer, mmap.MADV_HUGEPAGE, 2 * _HUGE_PAGE_BYTES):
            return
        byte = ctypes.c_char.from_buffer(buffer, _HUGE_PAGE_BYTES)  # in a whole page, wherever the buffer begins
        began = time.thread_time()  # others may take the GIL meanwhile
        ctypes.memset(ctypes.byref(byte), 0, 1)
        self._are_quick = _LEAST_CLEARING_S < time.thread_time() - began < _MOST_CLEARING_S
        if self._are_quick:
            _advise(buffer, mmap.MADV_HUGEPAGE, len(buffer))
        else:
            _advise(buffer, mmap.MADV_NOHUGEPAGE, len(buffer))


def _advise(buffer: mmap.mmap, advice: int, size: int) -> bool:
    """Whether the system takes this advice for the first bytes of the buffer."""
    try:
        buffer.madvise(advice, 0, size)
    except OSError:
        return False
    return True


def _mapped(size: int) -> mmap.mmap | None:
    """None if the system gives none, or resizes none. Who needs the memory then gets it from Python or Arrow, or learns
    from them that there is no more.
    """
    try:
        buffer = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    return buffer if _is_unused(buffer) else None


def _is_unused(buffer: mmap.mmap) -> bool:
    """Whether there is no view of it, nor anything made from one. False where the system resizes none, or a sandbox."""
    try:
        buffer.resize(len(buffer))
    except (BufferError, OSError, SystemError):
        return False
    return True
