"""Writes the responses of one connection as its client takes them.

Theory of operation. Responses wait in a queue of parts: bytes, and slices of segment files. A piece of at most
`PIECE_BYTES` is gathered from the queue's beginning into a buffer that all connections share, and handed to the
transport, which sends what the socket takes and keeps the rest. While it keeps anything, the writer is blocked and
gathers nothing more, so a client that reads nothing holds one piece in memory, however much it asked for. What the
page cache does not have is read in a thread, one piece at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from rayka.gateway.server.limits import logger
from rayka.gateway.server.segment_files import SegmentFile, SegmentGone

if TYPE_CHECKING:
    from rayka.gateway.server.context import Context

PIECE_BYTES: Final = 256 * 1024
# After so many bytes other connections get their turn.
_TURN_BYTES: Final = 4 * PIECE_BYTES
_DISK_READ_BYTES: Final = 2 * PIECE_BYTES


class SegmentPart(NamedTuple):
    """A part of a response that is read from an open segment when it is sent."""

    file: SegmentFile
    position: int
    size: int


Part = bytes | bytearray | memoryview | SegmentPart


class ResponseWriter:
    """The sending side of one connection.

    `drained` is called when the client has taken everything after the writer was blocked, `abort` when the rest of a
    response cannot be read.
    """

    def __init__(
        self,
        context: Context,
        transport: asyncio.Transport,
        drained: Callable[[], None],
        abort: Callable[[], None],
    ) -> None:
        self._context = context
        self._transport = transport
        self._drained = drained
        self._abort = abort
        self._queue: deque[Part] = deque()
        self._is_paused = False
        self._next_turn: asyncio.Handle | None = None
        self._disk_read: asyncio.Future[bytes] | None = None
        self._kept_bytes = 0
        transport.set_write_buffer_limits(high=0)

    @property
    def is_blocked(self) -> bool:
        """Whether the client has not taken everything yet."""
        return self._is_paused or bool(self._queue)

    @property
    def held_bytes(self) -> int:
        """How much waits in memory for a client that is slow to read."""
        return self._kept_bytes

    def pause(self) -> None:
        """The transport keeps bytes that the client has not taken."""
        self._is_paused = True
        in_queue = sum(len(part) for part in self._queue if not isinstance(part, SegmentPart))
        self._keep(self._transport.get_write_buffer_size() + in_queue)

    def resume(self) -> None:
        """The client has taken everything that the transport had."""
        self._is_paused = False
        self._keep(0)
        self._continue()

    def _continue(self) -> None:
        if not self._transport.is_closing():
            self.flush()
            if not self.is_blocked:
                self._drained()

    def close(self) -> None:
        """Drop what was not sent."""
        self._queue.clear()
        self._is_paused = True
        self._keep(0)

    def _keep(self, size: int) -> None:
        more, self._kept_bytes = size - self._kept_bytes, size
        if more > 0:
            self._context.request_bytes.acquire(more)
        elif more < 0:
            self._context.request_bytes.release(-more)

    def write(self, parts: list[Part]) -> None:
        """Send parts in order, now as many as the client takes."""
        self._queue.extend(parts)
        self.flush()

    def flush(self) -> None:
        """Send until the client takes no more or other connections must have their turn."""
        sent = 0
        while self._queue and not self._is_paused and self._disk_read is None and self._next_turn is None:
            try:
                sent += self._send_piece()
            except OSError as error:
                self._cannot_read(error)
                return
            if sent >= _TURN_BYTES and self._queue:
                self._next_turn = self._context.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._next_turn = None
        self._continue()

    def _send_piece(self) -> int:
        """Send one piece; 0 if it must come from the disk."""
        first = self._queue[0]
        if not isinstance(first, SegmentPart) and (len(self._queue) == 1 or len(first) >= PIECE_BYTES):
            self._queue.popleft()
            self._transport.write(first)
            return len(first)
        piece = self._context.piece
        size = self._gather(memoryview(piece))
        if not size:
            self._read_from_disk()
            return 0
        self._transport.write(memoryview(piece)[:size])
        if self._transport.get_write_buffer_size():
            self._context.piece = bytearray(PIECE_BYTES)  # the transport goes on using the old one
        return size

    def _gather(self, piece: memoryview) -> int:
        """Move parts, or the beginning of one, from the queue into the piece."""
        filled = 0
        while self._queue and filled < len(piece):
            part = self._queue.popleft()
            taken = self._copy(part, piece[filled:])
            filled += taken
            rest = _without_beginning(part, taken)
            if rest is not None:
                self._queue.appendleft(rest)
                break
        return filled

    def _copy(self, part: Part, target: memoryview) -> int:
        if isinstance(part, SegmentPart):
            return part.file.read_cached(target[: part.size], part.position)
        size = min(len(part), len(target))
        target[:size] = part[:size]
        return size

    def _read_from_disk(self) -> None:
        part = self._queue[0]
        assert isinstance(part, SegmentPart)
        size = min(part.size, _DISK_READ_BYTES)
        self._disk_read = self._context.loop.run_in_executor(None, part.file.read, size, part.position)
        self._disk_read.add_done_callback(self._disk_has_read)

    def _disk_has_read(self, done: asyncio.Future[bytes]) -> None:
        self._disk_read = None
        part = self._queue.popleft() if self._queue else None
        if self._transport.is_closing() or not isinstance(part, SegmentPart):
            return
        try:
            data = done.result()
        except (OSError, SegmentGone) as error:
            self._cannot_read(error)
            return
        rest = _without_beginning(part, len(data))
        if rest is not None:
            self._queue.appendleft(rest)
        self._queue.appendleft(data)
        self._continue()

    def _cannot_read(self, error: Exception) -> None:
        """End the connection: nothing may follow a response that is cut."""
        logger.error("cannot send the rest of a response: %s", error)
        self.close()
        self._abort()


def _without_beginning(part: Part, size: int) -> Part | None:
    """What is left of a part after its first `size` bytes, None if nothing is."""
    if isinstance(part, SegmentPart):
        return part._replace(position=part.position + size, size=part.size - size) if size < part.size else None
    return memoryview(part)[size:] if size < len(part) else None
