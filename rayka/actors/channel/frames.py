"""Frames of the local channel: what two processes of one node say to each other.

A frame is a 16-byte header, a control part in msgpack, and a payload of raw record bytes:

    length u32 | correlation id u32 | operation u16 | unused u16 | control length u32 | control | payload

`length` counts what follows it. An answer carries the operation and the correlation id of its request.
Integers are little-endian, since both ends run on the same machine.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Any

import msgpack

HEADER = struct.Struct("<IIHxxI")
HEADER_SIZE = HEADER.size
MAX_FRAME_BYTES = 1 << 30
_INITIAL_BUFFER_BYTES = 256 * 1024

pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack


def unpack(data: bytes | memoryview) -> Any:
    """The value of a control part; arrays come back as tuples, which the named tuples are built from."""
    return msgpack.unpackb(data, use_list=False, strict_map_key=False)


class Operation(enum.IntEnum):
    """What a frame asks for."""

    APPEND = 1
    FETCH = 2
    CANCEL_FETCH = 3
    CALL = 4


def encode(operation: int, correlation_id: int, control: Any, payload_size: int = 0) -> bytes:
    """Header and control part of a frame; `payload_size` bytes of payload are to follow it."""
    packed = pack(control)
    length = HEADER_SIZE - 4 + len(packed) + payload_size
    return HEADER.pack(length, correlation_id, operation, len(packed)) + packed


class FrameBuffer:
    """Received bytes of one connection, cut into frames without copying them.

    `writable()` is where the next bytes go; `frames()` calls back for each whole frame. The payload that
    the callback gets is a view into the buffer and is good only until the callback returns.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(_INITIAL_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    def writable(self) -> memoryview:
        """The free part of the buffer, never empty."""
        return self._view[self._end :]

    def received(self, count: int, on_frame: Callable[[int, int, Any, memoryview], None]) -> None:
        """Take `count` new bytes and call `on_frame(operation, correlation_id, control, payload)` for whole frames.

        Raises `ValueError` for a frame that no peer of ours would send.
        """
        self._end += count
        while (available := self._end - self._start) >= HEADER_SIZE:
            length, correlation_id, operation, control_length = HEADER.unpack_from(self._buffer, self._start)
            if length > MAX_FRAME_BYTES or control_length > length - (HEADER_SIZE - 4):
                raise ValueError(f"frame of {length} bytes with a control part of {control_length} bytes")
            if available < length + 4:
                self._make_room(length + 4)
                return
            control_start = self._start + HEADER_SIZE
            payload_start = control_start + control_length
            control = unpack(self._view[control_start:payload_start])
            frame_end = self._start + 4 + length
            on_frame(operation, correlation_id, control, self._view[payload_start:frame_end])
            self._start = frame_end
        self._make_room(HEADER_SIZE)

    def _make_room(self, frame_size: int) -> None:
        """Make the frame that begins at `start` fit, moving it to the front of a buffer that is large enough."""
        if self._start == self._end:
            self._start = self._end = 0
        if self._start + frame_size <= len(self._buffer) and self._end < len(self._buffer):
            return
        pending = self._view[self._start : self._end]
        if frame_size > len(self._buffer):
            grown = bytearray(max(frame_size, 2 * len(self._buffer)))
            grown[: len(pending)] = pending
            self._buffer, self._view = grown, memoryview(grown)
        else:
            self._view[: len(pending)] = pending
        self._start, self._end = 0, len(pending)
