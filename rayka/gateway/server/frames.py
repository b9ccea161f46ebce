"""Cuts the bytes of a connection into request frames; knows nothing of sockets or requests.

Theory of operation. Bytes are received either in the scratch buffer that all connections of a process share, or, once
the length of a frame is known and its rest is still to come, straight into memory of its own. Frames are copied out of
the scratch buffer, since their records will be stamped in place and outlive the read.

    buffer() → the caller receives into it → received(n) → next() until it returns None → keep_rest()
"""

from __future__ import annotations

import mmap
from typing import Final

from rayka.gateway.wire.reader import INT32, Frame, MalformedFrame

# A frame above this is received in pages that the system provides as bytes arrive, a smaller one in a buffer
# that grows with them: a client that announces 100 MB or 2 MB and sends nothing costs hardly anything.
_LAZY_FRAME_BYTES: Final = 2 * 1024 * 1024
# API key, version and correlation id: no request is shorter.
_LEAST_FRAME_BYTES: Final = 8
_LENGTH_BYTES: Final = 4
_FIRST_BUFFER_BYTES: Final = 32 * 1024
_GROWTH: Final = 4  # so that at most a third of a frame is copied while its buffer grows
# After a frame above this the next read is short, so that a frame like it is not received in the scratch
# buffer and copied, but where it will stay.
_LARGE_FRAME_BYTES: Final = 128 * 1024
_SHORT_READ_BYTES: Final = 1024


class FrameReceiver:
    """The receiving side of one connection. `max_frame_bytes` is socket.request.max.bytes."""

    __slots__ = (
        "_end",
        "_large",
        "_large_bytes",
        "_large_end",
        "_position",
        "_read_bytes",
        "_rest",
        "_scratch",
        "max_frame_bytes",
    )

    def __init__(self, scratch: memoryview, max_frame_bytes: int) -> None:
        self._scratch = scratch
        self.max_frame_bytes = max_frame_bytes
        self._rest: memoryview | None = None  # what keep_rest() copied out of the scratch buffer
        self._position = 0
        self._end = 0
        self._large: memoryview | None = None  # a frame that is received in memory of its own
        self._large_bytes = 0  # when it is whole
        self._large_end = 0
        self._read_bytes = len(scratch)

    def buffer(self) -> memoryview:
        """Where the next bytes go: the rest of a large frame, or the scratch buffer behind what was kept."""
        if self._large is not None:
            if self._large_end == len(self._large):
                self._large = self._grow(self._large)
            return self._large[self._large_end : self._large_end + len(self._scratch)]
        if self._rest is not None:
            kept = self._end - self._position
            self._scratch[:kept] = self._rest[self._position : self._end]
            self._rest, self._position, self._end = None, 0, kept
        return self._scratch[self._end : self._end + self._read_bytes]

    def received(self, size: int) -> None:
        """`size` bytes have arrived where `buffer()` said."""
        if self._large is not None:
            self._large_end += size
        else:
            self._end += size
            self._read_bytes = len(self._scratch)

    def next(self) -> Frame | None:
        """Return the next whole frame without its length, None if there is none. Raises MalformedFrame."""
        if self._large is not None:
            return self._next_large(self._large)
        source = self._scratch if self._rest is None else self._rest
        left = self._end - self._position - _LENGTH_BYTES
        if left < 0:
            return None
        (size,) = INT32.unpack_from(source, self._position)
        if not _LEAST_FRAME_BYTES <= size <= self.max_frame_bytes:
            raise MalformedFrame(f"frame of {size} bytes")
        begin = self._position + _LENGTH_BYTES
        if size > left:
            self._begin_large(size, source[begin : self._end])
            return None
        self._position = begin + size
        return bytearray(source[begin : begin + size])

    def _begin_large(self, size: int, received: memoryview) -> None:
        self._large_bytes, self._large_end = size, len(received)
        first = min(size, max(_FIRST_BUFFER_BYTES, _GROWTH * len(received)))
        self._large = memoryview(bytearray(first) if size <= _LAZY_FRAME_BYTES else mmap.mmap(-1, size))
        self._large[: len(received)] = received
        self._rest, self._position, self._end = None, 0, 0

    def _grow(self, large: memoryview) -> memoryview:
        grown = memoryview(bytearray(min(self._large_bytes, _GROWTH * len(large))))
        grown[: len(large)] = large
        return grown

    def _next_large(self, large: memoryview) -> Frame | None:
        if self._large_end < self._large_bytes:
            return None
        self._large, self._large_end = None, 0
        self._read_bytes = _SHORT_READ_BYTES if len(large) > _LARGE_FRAME_BYTES else len(self._scratch)
        frame: Frame = large.obj  # type: ignore[assignment]
        return frame

    def keep_rest(self) -> None:
        """Copy what is left out of the scratch buffer, which the next connection will use."""
        kept = self._end - self._position
        if self._rest is None and kept:
            self._rest = memoryview(bytes(self._scratch[self._position : self._end]))
            self._position, self._end = 0, kept
        elif not kept:
            self._rest, self._position, self._end = None, 0, 0

    @property
    def incomplete_bytes(self) -> int:
        """The memory of a large frame that is not complete: of one received in pages, what has arrived so far."""
        if self._large is None:
            return 0
        return self._large_end if self._large_bytes > _LAZY_FRAME_BYTES else len(self._large)

    @property
    def kept_bytes(self) -> int:
        """The memory of what `keep_rest()` has copied."""
        return len(self._rest) if self._rest is not None else 0

    @property
    def has_bytes(self) -> bool:
        """Whether anything was received that was not returned."""
        return self._large is not None or self._end > self._position

    def clear(self) -> None:
        """Drop everything received that was not returned."""
        self._rest = self._large = None
        self._position = self._end = self._large_end = 0
