"""Asks the system whether bytes of a file are in the page cache, so that sending them waits for no disk."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

_CACHESTAT: Final = 451
"""The number of the system call, on every architecture; Linux has it from 6.5 on."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Statistics(ctypes.Structure):
    """Counts of pages."""

    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


_syscall = ctypes.PyDLL(None).syscall  # without giving up the interpreter's lock: it takes less than a microsecond


def is_cached(descriptor: int, position: int, size: int) -> bool:
    """Whether all of these bytes are in the page cache; False where the system cannot tell."""
    statistics = _Statistics()  # of this call alone: event loops of several threads ask
    if _syscall(_CACHESTAT, descriptor, ctypes.byref(_Range(position, size)), ctypes.byref(statistics), 0):
        return False
    pages = (position + size - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
    return bool(statistics.cached >= pages)
