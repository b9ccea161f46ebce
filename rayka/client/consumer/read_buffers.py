"""Reusable memory for the bytes that a consumer reads.

Fresh memory costs as much as all other work on the bytes of large records: the kernel clears each page, and so does
Python. A buffer is taken again once nobody refers to the records that were read into it: Python tells by refusing to
resize a bytearray of which there is a view.
"""

from __future__ import annotations

from bisect import insort

_SMALL_BYTES = 65_536
_STEP_BYTES = 262_144
_MOST_BYTES = 16 << 20


class ReadBuffers:
    """Keeps buffers of up to `_MOST_BYTES` in all, the smallest first. Small ones are not worth it."""

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes, whatever they are, that nobody else has."""
        if size < _SMALL_BYTES:
            return memoryview(bytearray(size))
        fitting = next((each for each in self._buffers if len(each) >= size and _is_unused(each)), None)
        return memoryview(self._add(-(-size // _STEP_BYTES) * _STEP_BYTES) if fitting is None else fitting)[:size]

    def _add(self, size: int) -> bytearray:
        """One more buffer, in place of unused ones that are smaller if there is no room for it."""
        used = sum(map(len, self._buffers))
        for small in [buffer for buffer in self._buffers if _is_unused(buffer)]:
            if used + size > _MOST_BYTES:
                used -= len(small)
                self._buffers = [buffer for buffer in self._buffers if buffer is not small]
        buffer = bytearray(size)
        if used + size <= _MOST_BYTES:
            insort(self._buffers, buffer, key=len)
        return buffer


def _is_unused(buffer: bytearray) -> bool:
    """Whether there is no view of it, nor anything made from one."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
