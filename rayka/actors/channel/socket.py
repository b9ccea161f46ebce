"""The local channel: a Unix socket between processes of one node, for produce, fetch and their kin.

An actor call costs about a millisecond and copies large arguments through the object store; this costs
some tens of microseconds and carries record bytes raw. Requests are pipelined and may be answered out
of order. The socket lies in a directory with mode 0700. The end of the connection is how either side
learns, at once, that the other process died.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

from rayka.actors.background import BackgroundTasks
from rayka.actors.channel.frames import FrameBuffer, Operation, encode
from rayka.gateway.server.private_directory import make_private_directory

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
_CONNECT_RETRY_S = 0.02
_MAX_QUEUED_REQUESTS = 10_000
_SWEEP_S = 0.5
DEFAULT_TIMEOUT_S = 30.0

Done = Callable[[Any], None]


class ChannelClosed(ConnectionError):
    """The peer is gone. `sent` tells whether the request may have reached it."""

    def __init__(self, message: str, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Request:
    """One request as the serving side sees it; `payload` is good until the handler returns."""

    __slots__ = ("_connection", "control", "correlation_id", "operation", "payload")

    # The peer is on this node and reads files itself.
    inline = False

    def __init__(
        self, connection: _ServerConnection, operation: int, correlation_id: int, control: Any, payload: memoryview
    ) -> None:
        self._connection = connection
        self.operation = operation
        self.correlation_id = correlation_id
        self.control = control
        self.payload = payload

    @property
    def connection(self) -> object:
        """Identifies the peer among all connections."""
        return self._connection

    def answer(self, control: Any) -> None:
        """Send the answer; a peer that is gone gets none."""
        self._connection.send(encode(self.operation, self.correlation_id, control))


class _ServerConnection(asyncio.BufferedProtocol):
    def __init__(self, serve: Callable[[Request], None], connections: set[_ServerConnection]) -> None:
        self._serve = serve
        self._connections = connections
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._frames.received(nbytes, self._on_frame)
        except ValueError as error:
            logger.error("closing a local channel: %s", error)
            self.close()

    def _on_frame(self, operation: int, correlation_id: int, control: Any, payload: memoryview) -> None:
        self._serve(Request(self, operation, correlation_id, control, payload))

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ChannelServer:
    """Listens at `path` and calls `serve(request)` for each frame, in the event loop."""

    def __init__(self, path: str, serve: Callable[[Request], None]) -> None:
        self._path = path
        self._serve = serve
        self._connections: set[_ServerConnection] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen, in place of a process that died. Raises CLUSTER_AUTHORIZATION_FAILED for an unsafe directory."""
        make_private_directory(os.path.dirname(self._path))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: _ServerConnection(self._serve, self._connections), self._path
        )

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class _ClientConnection(asyncio.BufferedProtocol):
    def __init__(self, channel: LocalChannel) -> None:
        self._channel = channel
        self._frames = FrameBuffer()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.received(nbytes, self._channel.on_answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.on_lost()


class LocalChannel:
    """The calling end: connects when first used, and again after the peer was lost.

    While there is no connection, requests wait for it in order, up to `CONNECT_TIMEOUT_S`; then they end
    with `ChannelClosed(sent=False)`. Requests that were sent when the peer went, or that it did not
    answer within their time, end with `sent=True`: they may have been done.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: dict[int, tuple[Done, float]] = {}
        self._queued: list[tuple[bytes, Sequence[memoryview]]] = []
        self._connecting: asyncio.Task[None] | None = None
        self._background = BackgroundTasks(f"channel to {os.path.basename(path)}")
        self._lost_at = 0.0
        self._sweep: asyncio.TimerHandle | None = None
        self._correlation_ids = itertools.count(1)

    def request(
        self,
        operation: int,
        control: Any,
        done: Done,
        *,
        payload: Sequence[memoryview] = (),
        payload_size: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> int:
        """Send a request now, or as soon as there is a connection; `done(control or ChannelClosed)` ends it.

        The returned correlation id lets the caller speak of this request later. `done` is never called
        before this returns.
        """
        correlation_id = next(self._correlation_ids) & 0xFFFFFFFF
        frame = encode(operation, correlation_id, control, payload_size)
        if self._transport is None and len(self._queued) >= _MAX_QUEUED_REQUESTS:
            self._loop.call_soon(done, ChannelClosed(f"too many requests wait for {self._path}", sent=False))
            return correlation_id
        self._waiting[correlation_id] = (done, self._loop.time() + timeout_s)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire)
        if self._transport is not None:
            self._write(frame, payload)
        else:
            self._queued.append((frame, payload))
            self._connect()
        return correlation_id

    def cancel(self, correlation_id: int) -> None:
        """The answer to a fetch is not wanted any more: `done` will not be called, and the peer stops waiting."""
        if self._waiting.pop(correlation_id, None) is not None and self._transport is not None:
            self._transport.write(encode(Operation.CANCEL_FETCH, 0, correlation_id))

    def close(self) -> None:
        """Close the connection; what still waits ends."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._transport is not None:
            self._transport.close()
        self.on_lost()

    def on_answer(self, operation: int, correlation_id: int, control: Any, payload: memoryview) -> None:
        """Called by the connection for each answer."""
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is not None:
            waiting[0](control)

    def on_lost(self) -> None:
        """Called by the connection when the peer is gone."""
        self._transport = None
        self._lost_at = self._loop.time()
        self._end_all(sent=True)

    def _write(self, frame: bytes, payload: Sequence[memoryview]) -> None:
        assert self._transport is not None
        if payload:
            self._transport.writelines([frame, *payload])
        else:
            self._transport.write(frame)

    def _connect(self) -> None:
        if self._connecting is None:
            self._connecting = self._background.start("connect", self._keep_connecting())

    async def _keep_connecting(self) -> None:
        deadline = self._loop.time() + CONNECT_TIMEOUT_S
        try:
            await asyncio.sleep(max(0.0, self._lost_at + _CONNECT_RETRY_S - self._loop.time()))
            while not await self._try_connect():
                if self._loop.time() > deadline:
                    self._queued.clear()
                    self._end_all(sent=False)
                    return
                await asyncio.sleep(_CONNECT_RETRY_S)
        finally:
            self._connecting = None

    async def _try_connect(self) -> bool:
        try:
            transport, _ = await self._loop.create_unix_connection(lambda: _ClientConnection(self), self._path)
        except OSError:
            return False
        self._transport = transport
        for frame, payload in self._queued:
            self._write(frame, payload)
        self._queued.clear()
        return True

    def _expire(self) -> None:
        self._sweep = None
        now = self._loop.time()
        for correlation_id, (done, deadline) in list(self._waiting.items()):
            if deadline < now:
                del self._waiting[correlation_id]
                done(ChannelClosed(f"{os.path.basename(self._path)} did not answer in time", sent=True))
        if self._waiting:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire)

    def _end_all(self, sent: bool) -> None:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for done, _ in waiting:
            done(ChannelClosed(f"no answer from {os.path.basename(self._path)}", sent))
