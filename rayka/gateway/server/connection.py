"""One client connection: frames in, requests started in order, responses out in order.

Theory of operation. `FrameReceiver` cuts the received bytes into frames, and each frame becomes a `PendingRequest`.
Kafka processes one request of a connection at a time; here consecutive Produce requests may overlap, because the
leaders keep their order. A request that may not start yet is parked, and reading stops. So at most one parked request
and the bytes of one read wait here. The parked request starts when the requests before it are answered, the client has
read enough of the written responses, and there is room for the request's bytes. One read may bring thousands of small
requests; after `_TURN_S` the other connections get their turn.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, cast

from rayka.gateway.handlers.fetch.template import FetchTemplate
from rayka.gateway.handlers.groups.commit_template import CommitTemplate
from rayka.gateway.handlers.produce.lost_batches import LostBatches
from rayka.gateway.handlers.produce.template import ProduceTemplate
from rayka.gateway.server.context import Context
from rayka.gateway.server.eager_task import start_eagerly
from rayka.gateway.server.frames import FrameReceiver
from rayka.gateway.server.handover import Affinity
from rayka.gateway.server.header import parse_header
from rayka.gateway.server.limits import CountedBytes
from rayka.gateway.server.request import Call, PendingRequest
from rayka.gateway.server.response_writer import Part, ResponseWriter, plain_descriptor
from rayka.gateway.wire.reader import FrameReader, MalformedFrame
from rayka.gateway.wire.schema import schema

logger = logging.getLogger("rayka.gateway")

_TURN_S = 0.01  # of processor time
_FRAMES_BETWEEN_LOOKS = 16


class ConnectionState(enum.Enum):
    """What a connection can still do."""

    NEW = enum.auto()  # not accepted yet
    OPEN = enum.auto()
    FINISHING = enum.auto()  # answers what was started, takes no more requests
    CLOSED = enum.auto()


class ClientConnection(asyncio.BufferedProtocol):
    """The protocol of one TCP connection, which was handed over to another process `moves` times."""

    def __init__(self, context: Context, moves: int = 0) -> None:
        self.affinity = Affinity(context.broker, moves)
        self._context = context
        self._loop = context.loop
        self._transport = cast(asyncio.Transport, None)
        self._writer = cast(ResponseWriter, None)
        self._frames = FrameReceiver(context.scratch, context.limits.max_request_bytes)
        self._requests: deque[PendingRequest] = deque()  # started, in order
        self._request_bytes = 0
        self._receiving = CountedBytes(context.request_bytes)  # a large frame, until its request starts
        self._kept = CountedBytes(context.request_bytes)  # frames read behind requests under way or unread responses
        self._parked: PendingRequest | None = None
        self._responses: list[Part] = []  # their turn has come, not yet written
        self._flush: asyncio.Handle | None = None
        self._next_turn: asyncio.Handle | None = None  # frames are left that were read
        self._is_processing = False
        self._state = ConnectionState.NEW
        self.client = "?"
        self.client_host = "?"
        self.produce_template: ProduceTemplate | None = None
        self.fetch_template: FetchTemplate | None = None
        self.commit_template: CommitTemplate | None = None
        self.lost_batches = LostBatches()
        self.last_progress = self._loop.time()

    @property
    def closed(self) -> bool:
        """Whether nothing more is read or written."""
        return self._state is ConnectionState.CLOSED

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished frame, of unread responses, and of requests that wait for these or others."""
        return self._receiving.size + self._kept.size + self._writer.held_bytes

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it when there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.client_host = str(address[0]) if address else "?"
        self.client = f"{self.client_host}:{address[1]}" if address else "?"
        self._writer = ResponseWriter(self._context, self._transport, self._process, self._note_progress, self.abort)
        try:
            self._accept()
        except Exception:
            logger.exception("cannot accept the connection from %s", self.client)
            self.abort()

    def _accept(self) -> None:
        self._context.refresh()
        refusal = self._context.add(self)
        if refusal is not None:
            self.refuse(refusal, "connect")
            return
        self._state = ConnectionState.OPEN
        self._keep_alive()

    def _keep_alive(self) -> None:
        """Let the system notice a client whose machine is gone, also while it waits for records."""
        endpoint = self._transport.get_extra_info("socket")
        if endpoint is not None:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived in the buffer of `get_buffer`."""
        self.last_progress = self._loop.time()
        self._frames.received(nbytes)
        if self._frames.incomplete_bytes:
            self._receiving.set(self._frames.incomplete_bytes)
        self._process()

    def eof_received(self) -> bool:
        """The client sends no more. Started appends are answered first, as in Kafka, because they are in the log."""
        if any(request.api.pipelined for request in self._requests):
            self.finish()
        else:
            self.close()
        return not self.closed

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that this connection held."""
        self._drop()
        self._context.remove(self)
        requests, self._requests = self._requests, deque()
        for request in requests:
            if request.waiting is not None:
                request.waiting.cancel()
        self._release(self._request_bytes)

    def pause_writing(self) -> None:
        """The client reads slowly: start no more requests for it."""
        self._writer.pause()

    def resume_writing(self) -> None:
        """The client has read enough: start requests again."""
        self._writer.resume()

    def _note_progress(self) -> None:
        self.last_progress = self._loop.time()

    # Requests.

    def _process(self) -> None:
        """Start requests until one must wait or no whole frame is left. A failure closes the connection."""
        if self._is_processing or self._state is ConnectionState.CLOSED:
            return
        try:
            self._start_requests()
            self._write_responses()
            if not self.closed:
                self._await_more()
        except Exception:
            logger.exception("closed the connection from %s: its requests cannot be processed", self.client)
            self.abort()

    def _start_requests(self) -> None:
        self._is_processing = True  # a response given meanwhile does not come in here again
        began_s, turn_end_s, frames = time.monotonic(), 0.0, 0
        try:
            while self._state is not ConnectionState.CLOSED:
                if (parked := self._parked) is not None:
                    if not self._may_start(parked):
                        return
                    self._parked = None
                    self._start(parked)
                frames += 1
                if not frames % _FRAMES_BETWEEN_LOOKS and self._frames.has_bytes:
                    now_s = time.thread_time()
                    if frames == _FRAMES_BETWEEN_LOOKS:  # the system call is only for reads of many requests
                        turn_end_s = now_s + _TURN_S - (time.monotonic() - began_s)
                    if now_s > turn_end_s:
                        self._end_turn()
                        return
                if (frame := self._frames.next()) is None:
                    return
                if self._state is ConnectionState.OPEN:
                    self._parked = parse_header(self, self._context.apis, frame)
        except MalformedFrame as error:
            self.refuse(str(error), "receive")
        finally:
            self._is_processing = False

    def _end_turn(self) -> None:
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._next_turn = None
        self._process()

    def _await_more(self) -> None:
        self._frames.keep_rest()  # the scratch buffer is shared by all connections
        # If nothing else here is awaited, nothing would give back the bytes: connections would wait for each other's.
        is_waiting = self._requests or self._writer.is_blocked
        kept_bytes = self._frames.kept_bytes + self._parked_bytes if is_waiting else 0
        if kept_bytes != self._kept.size:
            self._kept.set(kept_bytes)
        is_ready = self._parked is None and self._next_turn is None and self._state is ConnectionState.OPEN
        self._set_reading(is_ready and self._may_receive())
        if self.affinity.is_due:
            self._hand_over()
        if self._state is ConnectionState.FINISHING and not (self._requests or self._writer.is_blocked):
            self.close()

    @property
    def _parked_bytes(self) -> int:
        """The bytes of the parked request, unless it is a large frame, which is counted as it is received."""
        return 0 if self._parked is None or self._receiving.size else self._parked.size

    def _hand_over(self) -> None:
        """Hand the connection to the process that leads what it asks for, once nothing of it is in progress here."""
        is_quiet = not (self._requests or self._frames.has_bytes or self._writer.is_blocked or self.lost_batches)
        descriptor = plain_descriptor(self._transport)
        if not is_quiet or self._parked is not None or self._state is not ConnectionState.OPEN or descriptor < 0:
            return
        assert self.affinity.path is not None
        if self._context.handover.send(self.affinity.path, descriptor, self.affinity.moves + 1):
            self.abort()
        else:
            self.affinity.reset()

    def _may_start(self, request: PendingRequest) -> bool:
        if self._writer.is_blocked or (self._requests and not self._may_overlap(request)):
            return False
        return bool(self._receiving.size) or self._has_room()

    def _has_room(self) -> bool:
        """Whether there is room for more bytes; if not, wait for it."""
        if self._context.request_bytes.is_full:
            self._context.request_bytes.wait(self._process)
            return False
        return True

    def _may_receive(self) -> bool:
        """A large frame is counted while it is received, and waits when there is no room."""
        size = self._frames.incomplete_bytes
        if self._parked is None and size != self._receiving.size:
            self._receiving.set(size)
        return not size or self._has_room()

    def _may_overlap(self, request: PendingRequest) -> bool:
        limits = self._context.limits
        last = self._requests[-1]
        return (
            request.api.may_overlap(request.version)
            and last.api.may_overlap(last.version)
            and len(self._requests) < limits.connection_requests
            and self._request_bytes + request.size <= limits.connection_bytes
        )

    def _start(self, request: PendingRequest) -> None:
        self._requests.append(request)
        self._request_bytes += request.size
        self._context.request_bytes.acquire(request.size)
        if self._receiving.size:
            self._receiving.set(0)
        api = request.api
        try:
            if api.handle_frame is not None:
                api.handle_frame(self._context, request)
            else:
                self.start_call(request)
        except MalformedFrame as error:
            request.refuse(str(error))
        except Exception:
            logger.exception("%s from %s failed", request.describe(), self.client)
            request.refuse("internal error")

    def start_call(self, request: PendingRequest) -> None:
        """Decode a request and handle it. Raises MalformedFrame."""
        self.serve(request, self.decode(request).respond())

    def decode(self, request: PendingRequest) -> Call:
        """The request for its handler. Raises MalformedFrame."""
        messages = schema(request.api.key, request.version)
        return Call(self._context, request, messages.read(FrameReader(request.frame, request.position)), messages)

    def serve(self, request: PendingRequest, response: Coroutine[Any, Any, bytearray]) -> None:
        """Answer with the frame that the coroutine returns, in a task if it waits."""
        self._context.busy_poll.request_came(request.size)
        request.waiting = start_eagerly(self._answer(request, response), self._loop)

    async def _answer(self, request: PendingRequest, response: Coroutine[Any, Any, bytearray]) -> None:
        try:
            request.answer(await response)
            self._context.busy_poll.answered()
        except Exception:
            logger.exception("%s from %s failed", request.describe(), self.client)
            request.refuse("internal error")

    # Responses.

    def answered(self, request: PendingRequest) -> None:
        """A request has its response: write all responses whose turn it is."""
        if self._state is ConnectionState.CLOSED:
            return
        requests = self._requests
        freed = 0
        while requests and requests[0].answered:
            done = requests.popleft()
            freed += done.size
            self._responses.extend(done.response)
        if freed:
            self.last_progress = self._loop.time()
            self._write_soon(request.api.pipelined)
            self._release(freed)
            if not self._is_processing:
                self._process()

    def _write_soon(self, pipelined: bool) -> None:
        """Write now, unless more responses to small pipelined requests are about to come: then one system
        call is for all of them, after the last frame that was read or in the loop's next iteration."""
        if not pipelined or not (self._requests or self._is_processing):
            self._write_responses()
        elif not self._is_processing and self._flush is None:
            self._flush = self._loop.call_soon(self._write_responses)

    def _write_responses(self) -> None:
        self._flush = None
        responses = self._responses
        if responses and not self._transport.is_closing():
            self._responses = []
            self._writer.write(responses)

    def _release(self, size: int) -> None:
        self._request_bytes -= size
        if size:
            self._context.request_bytes.release(size)

    def _set_reading(self, wanted: bool) -> None:
        if wanted is not self._transport.is_reading():
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # Closing.

    def finish(self) -> None:
        """Accept no more requests; close once those in progress are answered. Long polls are not waited for."""
        if self._state is not ConnectionState.OPEN:
            return
        self._state = ConnectionState.FINISHING
        self._parked = None
        self._frames.clear()
        self._set_reading(False)
        if not any(request.api.pipelined or request.api.handle is not None for request in self._requests):
            self.close()

    def close(self) -> None:
        """Close after writing the finished responses."""
        if not self.closed:
            self._write_responses()
            self._state = ConnectionState.CLOSED
            self._transport.close()

    def abort(self) -> None:
        """Close at once, dropping what was not written."""
        self._drop()
        self._transport.abort()

    def _drop(self) -> None:
        """Drop everything but the requests that were started."""
        self._state = ConnectionState.CLOSED
        self._parked = None
        self._frames.clear()
        self._writer.close()
        self._receiving.set(0)
        self._kept.set(0)

    def refuse(self, reason: str, request: str) -> None:
        """Close at once for a fault of the client, with a line in the log."""
        if self.closed:
            return
        self._context.complain(self.client, request, reason)
        self._write_responses()
        self.abort()

    def expire(self, before: float) -> None:
        """Close if no byte has moved since `before` (the loop's clock) and no request is in progress."""
        if self.last_progress < before and (not self._requests or self._writer.is_blocked):
            logger.info("closed the idle connection from %s", self.client)
            self.abort()
