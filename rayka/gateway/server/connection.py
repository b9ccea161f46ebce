"""One client connection: frames in, requests started in order, answers out in order.

Theory of operation. A frame is received either in the scratch buffer that all connections share (and
copied out of it, since its records will be stamped in place and outlive the read), or, once its length is
known and the rest is still to come, straight into memory of its own.

A complete frame becomes an `PendingRequest`. Kafka processes one request of a connection at a time; consecutive
Produce requests may overlap, because the leaders keep their order. A request that may not start yet is
parked, and reading stops: at most one parked request and one read's worth of bytes wait here. It starts
when the exchanges before it have been answered, the client has taken enough of what was written to it,
and the process has room for its bytes.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections import deque
from typing import Any, cast

from rayka.gateway.handlers.produce.template import RepeatedProduce
from rayka.gateway.server.context import SCRATCH_BYTES, Context
from rayka.gateway.server.eager_task import begin
from rayka.gateway.server.limits import logger
from rayka.gateway.server.request import Api, Call, PendingRequest, Response, finish_frame, response_head
from rayka.gateway.wire.header import parse_header
from rayka.gateway.wire.reader import INT32, Frame, MalformedFrame, Reader
from rayka.gateway.wire.schema import schema

# A frame above this is received in pages that the system provides as bytes arrive: a client that
# announces 100 MB and sends nothing costs nothing.
_LAZY_FRAME_BYTES = 2 * 1024 * 1024
# API key, version and correlation id: no request is shorter.
_LEAST_FRAME_BYTES = 8
# After a frame above this the next read is short, so that a frame like it is not received in the scratch
# buffer and copied, but where it will stay.
_LARGE_FRAME_BYTES = 128 * 1024
_SHORT_READ_BYTES = 1024


class Connection(asyncio.BufferedProtocol):
    """The protocol of one TCP connection."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loop = context.loop
        self._transport = cast(asyncio.Transport, None)
        self._exchanges: deque[PendingRequest] = deque()
        self._bytes_under_way = 0
        self._outgoing: list[Response] = []
        self._flush_scheduled = False
        self._parked: PendingRequest | None = None
        self._leftover = b""
        self._frame: memoryview | None = None
        self._received = 0
        self._read_bytes = SCRATCH_BYTES
        self._parsing = False
        self._reading = True
        self._writing = True
        self._finishing = False
        self._waits_for_room = False
        self._admitted = False
        self.closed = False
        self.client = "?"
        self.client_host = "?"
        self.last_produce: RepeatedProduce | None = None
        self.last_progress = self._loop.time()

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or close it when there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.client_host = str(address[0]) if address else "?"
        self.client = f"{self.client_host}:{address[1]}" if address else "?"
        self._context.refresh()
        refusal = self._context.connection_counts.refusal(self.client_host, self._context.limits)
        if refusal is not None:
            self.refuse(refusal, "connect")
            return
        self._admitted = True
        self._context.add(self)
        self._transport.set_write_buffer_limits(high=self._context.limits.write_high_water_bytes)
        self._keep_alive()

    def _keep_alive(self) -> None:
        """Let the system notice a client whose machine is gone, also while it waits for records."""
        endpoint = self._transport.get_extra_info("socket")
        if endpoint is not None:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: the rest of a large frame, or the scratch buffer after a leftover."""
        if self._frame is not None:
            return self._frame[self._received :]
        kept = len(self._leftover)
        if kept:
            self._context.scratch[:kept] = self._leftover
        return self._context.scratch_view[kept : self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived where `get_buffer` said."""
        self.last_progress = self._loop.time()
        if self._frame is None:
            end = len(self._leftover) + nbytes
            self._leftover = b""
            self._parse(self._context.scratch, end)
            if self._frame is None:
                self._read_bytes = SCRATCH_BYTES
            return
        self._received += nbytes
        if self._received == len(self._frame):
            frame = cast(Frame, self._frame.obj)
            self._frame = None
            self._read_bytes = _SHORT_READ_BYTES if len(frame) > _LARGE_FRAME_BYTES else SCRATCH_BYTES
            self._take(frame)

    def eof_received(self) -> bool:
        """The client has gone. What it sent is under way; nobody waits for the answers."""
        self.closed = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back everything this connection held."""
        self.closed = True
        self._frame = None
        self._parked = None
        self._leftover = b""
        exchanges, self._exchanges = self._exchanges, deque()
        if self._admitted:
            self._context.remove(self)
        for exchange in exchanges:
            if exchange.waiting is not None:
                exchange.waiting.cancel()
        self._release(self._bytes_under_way)

    def pause_writing(self) -> None:
        """The client is slow to read: start nothing more for it."""
        self._writing = False

    def resume_writing(self) -> None:
        """The client has taken enough."""
        self._writing = True
        self.last_progress = self._loop.time()
        self._continue()

    @property
    def is_reading(self) -> bool:
        """Whether more bytes are wanted."""
        return self._reading

    # Frames.

    def _parse(self, buffer: bytes | bytearray, end: int) -> None:
        """Take the frames in `buffer[:end]`; keep what is left over, start to receive what is incomplete."""
        position = 0
        self._parsing = True
        while self._parked is None and not self.closed and end - position >= 4:
            size = INT32.unpack_from(buffer, position)[0]
            if not _LEAST_FRAME_BYTES <= size <= self._context.limits.max_request_bytes:
                self.refuse(f"frame of {size} bytes", "receive")
                break
            begin = position + 4
            if size > end - begin:
                self._begin_frame(size, buffer, begin, end)
                position = end
                break
            position = begin + size
            self._take(bytearray(buffer[begin:position]))
        self._parsing = False
        self._flush()
        if not self.closed:
            self._leftover = bytes(buffer[position:end])
            self._balance_reading()

    def _begin_frame(self, size: int, buffer: bytes | bytearray, begin: int, end: int) -> None:
        frame = memoryview(bytearray(size) if size <= _LAZY_FRAME_BYTES else mmap.mmap(-1, size))
        self._received = end - begin
        frame[: self._received] = memoryview(buffer)[begin:end]
        self._frame = frame

    def _take(self, frame: Frame) -> None:
        """A frame is complete: start its request or park it."""
        if self._finishing:
            return
        exchange = parse_header(self, self._context.apis, frame)
        if exchange is None:
            return
        if self._may_start(exchange):
            self._start(exchange)
        else:
            self._parked = exchange
        if not self._parsing:
            self._balance_reading()

    # Requests.

    def _may_start(self, exchange: PendingRequest) -> bool:
        if not self._writing:
            return False
        limits = self._context.limits
        if self._exchanges and not (
            exchange.api.pipelined
            and self._exchanges[-1].api.pipelined
            and len(self._exchanges) < limits.connection_requests
            and self._bytes_under_way + exchange.size <= limits.connection_bytes
        ):
            return False
        if not self._context.request_bytes.is_full:
            return True
        if not self._waits_for_room:
            self._waits_for_room = True
            self._context.request_bytes.wait(self._room_freed)
        return False

    def _room_freed(self) -> None:
        self._waits_for_room = False
        if not self.closed:
            self._continue()

    def _start(self, exchange: PendingRequest) -> None:
        self._exchanges.append(exchange)
        self._bytes_under_way += exchange.size
        self._context.request_bytes.acquire(exchange.size)
        api = exchange.api
        try:
            if api.handle_frame is not None:
                api.handle_frame(self._context, exchange)
            else:
                self._start_call(api, exchange)
        except MalformedFrame as error:
            exchange.refuse(str(error))
        except Exception:
            logger.exception("failed at %s from %s", exchange.describe(), self.client)
            exchange.refuse("internal error")

    def _start_call(self, api: Api, exchange: PendingRequest) -> None:
        """Decode the request and handle it, in a task if that takes waiting."""
        messages = schema(api.key, exchange.version)
        request = messages.read(Reader(exchange.frame, exchange.position))
        call = Call(self._context, exchange.version, request, messages.types, exchange.client_id, self.client_host)
        self._context.busy_poll.request_came(exchange.size)
        exchange.waiting = begin(self._serve(call, exchange), self._loop)

    async def _serve(self, call: Call, exchange: PendingRequest) -> None:
        api = exchange.api
        assert api.handle is not None
        try:
            response: Any = await api.handle(call)
            out = response_head(exchange.correlation_id, api.is_flexible(exchange.version))
            schema(api.key, exchange.version).write(out, response)
            exchange.answer(finish_frame(out))
            self._context.busy_poll.answered()
        except Exception:
            logger.exception("failed at %s from %s", exchange.describe(), self.client)
            exchange.refuse("internal error")

    def answered(self, exchange: PendingRequest) -> None:
        """An exchange has its answer: write all whose turn it is."""
        if self.closed:
            return
        exchanges = self._exchanges
        freed = 0
        while exchanges and exchanges[0].answered:
            done = exchanges.popleft()
            freed += done.size
            if done.response is not None:
                self._outgoing.append(done.response)
        if freed:
            self.last_progress = self._loop.time()
            self._write_soon(exchange.api.pipelined)
            self._release(freed)
            self._continue()

    def _write_soon(self, pipelined: bool) -> None:
        """Write at once, unless more answers to small pipelined requests are about to come: then one system
        call is for all of them, after the last frame that was read or when the loop comes round."""
        if not pipelined or not (self._exchanges or self._parsing):
            self._flush()
        elif not self._parsing and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        outgoing = self._outgoing
        if outgoing and not self._transport.is_closing():
            self._outgoing = []
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def _release(self, size: int) -> None:
        self._bytes_under_way -= size
        if size:
            self._context.request_bytes.release(size)

    def _continue(self) -> None:
        """Something that may have held up the next request is over."""
        if self._parsing or self.closed:
            return
        parked = self._parked
        if parked is not None:
            if not self._may_start(parked):
                return
            self._parked = None
            self._parsing = True
            self._start(parked)
            self._parsing = False
            self._flush()
        if self.closed:
            return
        if self._leftover and self._frame is None:
            leftover, self._leftover = self._leftover, b""
            self._parse(leftover, len(leftover))
        else:
            self._balance_reading()
        if self._finishing and not self._exchanges:
            self.close()

    def _balance_reading(self) -> None:
        """Read while nothing is parked."""
        wanted = self._parked is None and not self._finishing
        if wanted is not self._reading and not self.closed:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # Ends.

    def finish(self) -> None:
        """Take no more requests; close once those under way are answered. A long poll is not waited for."""
        self._finishing = True
        self._parked = None
        self._leftover = b""
        self._balance_reading()
        if not any(exchange.api.pipelined or exchange.api.handle is not None for exchange in self._exchanges):
            self.close()

    def close(self) -> None:
        """Close after writing what was answered."""
        if not self.closed:
            self._flush()
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close at once, dropping what was not written."""
        self.closed = True
        self._transport.abort()

    def refuse(self, reason: str, request: str) -> None:
        """Close at once for a fault of the client, with a line in the log."""
        if self.closed:
            return
        self._context.complain(self.client, request, reason)
        self._flush()
        self.abort()

    def expire(self, before: float) -> None:
        """Close if nothing has moved since `before` (the loop's clock) and nothing is being worked at."""
        if self.last_progress < before and (not self._exchanges or not self._writing):
            logger.info("closed the idle connection from %s", self.client)
            self.abort()
