"""Reusable memory for the bytes that a consumer reads.

Fresh memory costs as much as all other work on the bytes of large records: the kernel clears each page, and so does
Python. A buffer is taken again once nobody refers to the records that were read into it: Python tells by refusing to
resize a bytearray of which there is a view.
"""

from __future__ import annotations

_SMALL_BYTES = 65_536
_STEP_BYTES = 262_144
_MOST_BYTES = 16 << 20


class ReadBuffers:
    """Keeps buffers of up to `_MOST_BYTES` in all. Small ones are not worth it."""

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes, whatever they are, that nobody else has."""
        if size < _SMALL_BYTES:
            return memoryview(bytearray(size))
        unused = [buffer for buffer in self._buffers if _is_unused(buffer)]
        fitting = [buffer for buffer in unused if len(buffer) >= size]
        buffer = min(fitting, key=len) if fitting else self._add(-(-size // _STEP_BYTES) * _STEP_BYTES, unused)
        return memoryview(buffer)[:size]

    def _add(self, size: int, unused: list[bytearray]) -> bytearray:
        """One more buffer, in place of unused ones that are smaller if there is no room for it."""
        used = sum(map(len, self._buffers))
        for small in unused:
            if used + size > _MOST_BYTES:
                used -= len(small)
                self._buffers = [buffer for buffer in self._buffers if buffer is not small]
        buffer = bytearray(size)
        if used + size <= _MOST_BYTES:
            self._buffers.append(buffer)
        return buffer


def _is_unused(buffer: bytearray) -> bool:
    """Whether there is no view of it, nor anything made from one."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
