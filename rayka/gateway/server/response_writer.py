"""Writes the responses of one connection as its client takes them.

Theory of operation. Responses wait in a queue of parts: bytes, and slices of segment files. A piece of at most
`PIECE_BYTES` is gathered from the queue's beginning into a buffer that all connections share, and handed to the
transport, which sends what the socket takes and keeps the rest. While it keeps anything, the writer is blocked and
gathers nothing more, so a client that reads nothing holds one piece in memory, however much it asked for. What the
page cache does not have is read in a thread, one piece at a time.

Large slices that the page cache has go from the file to the socket by `sendfile`, past the transport, while that
keeps nothing. When the socket is full, the writer waits until the loop says that it has room again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from rayka.gateway.server.limits import CountedBytes
from rayka.gateway.server.segment_files import SegmentFile, SegmentGone
from rayka.types import FileSlice

if TYPE_CHECKING:
    from rayka.gateway.server.context import Context

logger = logging.getLogger("rayka.gateway")

PIECE_BYTES: Final = 256 * 1024
# The most bytes that are sent before other connections get their turn.
_TURN_BYTES: Final = 4 * PIECE_BYTES
_DISK_READ_BYTES: Final = 2 * PIECE_BYTES
# Smaller slices cost less in one piece with what is before and after them.
_SENDFILE_BYTES: Final = PIECE_BYTES // 8
# A piece up to this size is not worth another buffer for the next one.
_SMALL_BYTES: Final = PIECE_BYTES // 16


class SegmentPart(NamedTuple):
    """A part of a response that is read from an open segment when it is sent."""

    file: SegmentFile
    position: int
    size: int


Part = bytes | bytearray | memoryview | SegmentPart


class ResponseWriter:
    """The sending side of one connection.

    `drained` is called when the client has taken everything after the writer was blocked, `progressed` whenever it has
    taken a part, `abort` when the rest of a response cannot be read.
    """

    def __init__(
        self,
        context: Context,
        transport: asyncio.Transport,
        drained: Callable[[], None],
        progressed: Callable[[], None],
        abort: Callable[[], None],
    ) -> None:
        self._context = context
        self._transport = transport
        self._drained = drained
        self._progressed = progressed
        self._abort = abort
        self._queue: deque[Part] = deque()
        self._is_paused = False
        self._next_turn: asyncio.Handle | None = None
        self._disk_read: asyncio.Future[bytes] | None = None
        self._held = CountedBytes(context.request_bytes)
        self._endpoint = plain_descriptor(transport)
        self._is_full = False
        self._awaited = -1  # a second descriptor of a socket that was full: the loop keeps the first for the transport
        # One byte that the transport keeps is one that the client has not taken. TLS counts from the limit on.
        transport.set_write_buffer_limits(high=0 if self._endpoint >= 0 else 1)

    @property
    def is_blocked(self) -> bool:
        """Whether the client has not taken everything yet."""
        return self._is_paused or bool(self._queue)

    @property
    def held_bytes(self) -> int:
        """How much waits in memory for a client that is slow to read."""
        return self._held.size

    def pause(self) -> None:
        """The transport keeps bytes that the client has not taken."""
        self._is_paused = True
        self._count_held()

    def resume(self) -> None:
        """The client has taken everything that the transport had."""
        self._is_paused = False
        self._held.set(0)
        self._progressed()
        self._continue()

    def _count_held(self) -> None:
        in_queue = sum(len(part) for part in self._queue if not isinstance(part, SegmentPart))
        self._held.set(self._transport.get_write_buffer_size() + in_queue)

    def _continue(self) -> None:
        if not self._transport.is_closing():
            self.flush()
            if not self.is_blocked:
                self._drained()

    def close(self) -> None:
        """Drop what was not sent."""
        self._queue.clear()
        self._end_wait()
        self._is_paused = True
        self._held.set(0)

    def write(self, parts: list[Part]) -> None:
        """Send parts in order, now as many as the client takes."""
        first = parts[0] if len(parts) == 1 and not self._queue else None
        if first is None or isinstance(first, SegmentPart) or not self._may_flush():
            self._queue.extend(parts)
            self.flush()
        else:
            self._transport.write(first)

    def flush(self) -> None:
        """Send until the client takes no more or other connections must have their turn."""
        sent = 0
        while self._queue and self._may_flush():
            try:
                sent += self._send_piece()
            except (ConnectionError, TimeoutError):
                self._end()
            except (OSError, SegmentGone) as error:
                self._cannot_read(error)
            if sent >= _TURN_BYTES and self._queue:
                self._next_turn = self._context.loop.call_soon(self._take_turn)

    def _may_flush(self) -> bool:
        return not self._is_paused and not self._is_full and self._disk_read is None and self._next_turn is None

    def _take_turn(self) -> None:
        self._next_turn = None
        self._continue()

    def _send_piece(self) -> int:
        """Send one piece; 0 if there is none, it must come from the disk, or the socket is full."""
        first = self._queue[0]
        if isinstance(first, SegmentPart):
            if self._may_send(first):
                return self._send_file(first)
        elif len(self._queue) == 1 or len(first) >= PIECE_BYTES or self._is_large(self._queue[1]):
            self._queue.popleft()
            self._transport.write(first)
            return len(first)
        piece = memoryview(self._context.piece)
        size = self._gather(piece)
        if not size:
            if self._queue:
                self._read_from_disk()
        elif size <= _SMALL_BYTES:
            self._transport.write(bytes(piece[:size]))
        else:
            self._transport.write(piece[:size])
            if self._transport.get_write_buffer_size():
                self._context.piece = bytearray(PIECE_BYTES)  # the transport continues using the old one
        return size

    def _is_large(self, part: Part) -> bool:
        """Whether a part is large enough to be sent from its file, if the page cache has it."""
        return isinstance(part, SegmentPart) and part.size >= _SENDFILE_BYTES and self._endpoint >= 0

    def _may_send(self, part: SegmentPart) -> bool:
        return (
            self._is_large(part)
            and not self._transport.get_write_buffer_size()
            and not self._transport.is_closing()
            and part.file.is_cached(part.position, min(part.size, _TURN_BYTES))
        )

    def _send_file(self, part: SegmentPart) -> int:
        """Send the beginning of a slice from its file, as much as the socket takes."""
        wanted, sent = min(part.size, _TURN_BYTES), 0
        with contextlib.suppress(BlockingIOError):
            sent = part.file.send(self._endpoint, part.position, wanted)
            self._drop_beginning(sent)
        if sent < wanted:
            self._await_room()
        return sent

    def _await_room(self) -> None:
        self._is_full = True
        if self._awaited < 0:
            self._awaited = os.dup(self._endpoint)
            self._context.loop.add_writer(self._awaited, self._socket_has_room)
            self._count_held()

    def _socket_has_room(self) -> None:
        """Send more. The loop keeps reporting room as long as the socket is full again each time."""
        self._is_full = False
        self._progressed()
        self._continue()
        if not self._is_full:
            self._end_wait()

    def _end_wait(self) -> None:
        self._is_full = False
        if self._awaited >= 0:
            self._context.loop.remove_writer(self._awaited)
            os.close(self._awaited)
            self._awaited = -1
            if not self._is_paused:
                self._held.set(0)

    def _drop_beginning(self, size: int) -> None:
        """The first bytes of the queue's first part are taken care of."""
        rest = _without_beginning(self._queue[0], size)
        if rest is None:
            self._queue.popleft()
        else:
            self._queue[0] = rest

    def _gather(self, piece: memoryview) -> int:
        """Move parts, or the beginning of one, from the queue into the piece."""
        filled = 0
        while self._queue and filled < len(piece):
            parts = len(self._queue)
            taken = self._copy(self._queue[0], piece[filled:])
            filled += taken
            self._drop_beginning(taken)
            if len(self._queue) == parts:
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
        error = done.exception()
        if self._transport.is_closing() or not self._queue:
            return
        if isinstance(error, OSError | SegmentGone):
            self._cannot_read(error)
            return
        data = done.result()
        self._drop_beginning(len(data))
        self._queue.appendleft(data)
        self._continue()

    def _cannot_read(self, error: Exception) -> None:
        """End the connection: nothing may follow a response that is cut. A fault of the disk is the leader's matter."""
        logger.error("cannot send the rest of a response: %s", error)
        part = self._queue[0]
        if isinstance(error, OSError) and isinstance(part, SegmentPart):
            records = FileSlice(part.file.path, part.position, part.size, part.file.inode)
            self._context.broker.partitions.check_records(records)
        self._end()

    def _end(self) -> None:
        self.close()
        self._abort()


def plain_descriptor(transport: asyncio.BaseTransport) -> int:
    """The socket that carries what is written as it is; -1 if there is none, as under TLS."""
    endpoint = transport.get_extra_info("socket")
    return -1 if endpoint is None or transport.get_extra_info("ssl_object") else int(endpoint.fileno())


def _without_beginning(part: Part, size: int) -> Part | None:
    """What is left of a part after its first `size` bytes, None if nothing is."""
    if isinstance(part, SegmentPart):
        return part._replace(position=part.position + size, size=part.size - size) if size < part.size else None
    return memoryview(part)[size:] if size < len(part) else None
