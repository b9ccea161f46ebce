"""The frames that two processes of one node exchange over the local channel.

A frame is a 16-byte header, a control part in msgpack, and a payload of raw record bytes:

    length u32 | correlation id u32 | operation u16 | failed u16 | control length u32 | control | payload

`length` counts what follows it. An answer carries the operation and the correlation id of its request; with `failed` 1
its control part is an error. Integers are little-endian, since both ends run on the same machine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

HEADER: Final = struct.Struct("<IIHHI")
HEADER_SIZE: Final = HEADER.size
MAX_FRAME_BYTES: Final = 1 << 30
_INITIAL_BUFFER_BYTES = 256 * 1024
_KEPT_BUFFER_BYTES = 8 * 1024 * 1024

OnFrame: TypeAlias = Callable[[int, int, bool, memoryview, memoryview], None]
"""Takes operation, correlation id, whether it failed, control and payload of a frame."""


def encode(operation: int, correlation_id: int, control: bytes, payload_size: int = 0, failed: bool = False) -> bytes:
    """Header and control part of a frame; `payload_size` bytes of payload are to follow it."""
    length = HEADER_SIZE - 4 + len(control) + payload_size
    return HEADER.pack(length, correlation_id, operation, failed, len(control)) + control


class FrameBuffer:
    """Received bytes of one connection, cut into frames without copying them.

    `writable()` is where the next bytes go; `received()` calls back for each whole frame. Control and payload are
    views into the buffer, valid until the callback returns. A buffer that has grown above 8 MB is
    replaced by a small one when its frames are done.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(_INITIAL_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    def writable(self) -> memoryview:
        """The free part of the buffer, never empty."""
        return self._view[self._end :]

    def received(self, count: int, on_frame: OnFrame) -> None:
        """Take `count` new bytes and call `on_frame` for whole frames.

        Raises ValueError for lengths that contradict each other: where the next frame begins is not known then.
        """
        self._end += count
        while (available := self._end - self._start) >= HEADER_SIZE:
            length, correlation_id, operation, failed, control_length = HEADER.unpack_from(self._buffer, self._start)
            if length > MAX_FRAME_BYTES or control_length > length - (HEADER_SIZE - 4):
                raise ValueError(f"frame of {length} bytes with a control part of {control_length} bytes")
            if available < length + 4:
                self._make_room(length + 4)
                return
            control_start = self._start + HEADER_SIZE
            payload_start = control_start + control_length
            control = self._view[control_start:payload_start]
            frame_end = self._start + 4 + length
            on_frame(operation, correlation_id, bool(failed), control, self._view[payload_start:frame_end])
            self._start = frame_end
        self._make_room(HEADER_SIZE)

    def _make_room(self, frame_size: int) -> None:
        """Make the frame that begins at `start` fit, moving it to the front of a buffer that is large enough."""
        if self._start == self._end:
            self._start = self._end = 0
        largest = max(frame_size, self._end - self._start)
        if len(self._buffer) > _KEPT_BUFFER_BYTES and largest < _INITIAL_BUFFER_BYTES:
            self._replace(_INITIAL_BUFFER_BYTES)
        if self._start + frame_size <= len(self._buffer) and self._end < len(self._buffer):
            return
        if frame_size > len(self._buffer):
            self._replace(max(frame_size, 2 * len(self._buffer)))
        else:
            pending = self._view[self._start : self._end]
            self._view[: len(pending)] = pending
            self._start, self._end = 0, len(pending)

    def _replace(self, size: int) -> None:
        """Continue in a buffer of `size` bytes, which what is pending fits into."""
        pending = self._view[self._start : self._end]
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._view[: len(pending)] = pending
        self._start, self._end = 0, len(pending)
