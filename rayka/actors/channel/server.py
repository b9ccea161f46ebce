"""The serving end of the local channel (see `socket`): listens, and passes on the requests of each connection."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import logging
import os
import socket
import struct
from collections.abc import Callable, Hashable
from typing import Any, cast

from rayka.actors.channel.frames import FrameBuffer, encode
from rayka.actors.channel.memory_file import PeerMemory
from rayka.actors.channel.requests import decode_request, encode_failure, encode_value
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.private_directory import make_private_directory

logger = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a peer, as the system gives them."""


class ChannelRequest:
    """One request as the serving side sees it; `payload` is valid until the handler returns."""

    __slots__ = ("_connection", "_correlation_id", "_operation", "message", "payload")

    # The peer is on this node and reads files itself.
    inline = False

    def __init__(
        self, connection: _ServerConnection, operation: int, correlation_id: int, message: Any, payload: memoryview
    ) -> None:
        self._connection = connection
        self._operation = operation
        self._correlation_id = correlation_id
        self.message = message
        self.payload = payload

    @property
    def key(self) -> Hashable:
        """The key by which a `CancelFetch` on the same connection names it."""
        return self._connection, self._correlation_id

    def key_of(self, correlation_id: int) -> Hashable:
        """The key of another request on the same connection."""
        return self._connection, correlation_id

    @property
    def memory(self) -> PeerMemory:
        """What the peer has shared. Raises INVALID_REQUEST if that is nothing."""
        return self._connection.memory

    def map_memory(self, descriptor: int) -> None:
        """Map the peer's memory file. Raises INVALID_REQUEST."""
        self._connection.map_memory(descriptor)

    def answer(self, value: Any) -> None:
        """Send the answer, or the RaykaError; nothing is sent if the peer has closed."""
        self._connection.answer(self._operation, self._correlation_id, value)


class _ServerConnection(asyncio.BufferedProtocol):
    def __init__(self, serve: Callable[[ChannelRequest], None], connections: set[_ServerConnection]) -> None:
        self._serve = serve
        self._connections = connections
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._memory: PeerMemory | None = None

    @property
    def memory(self) -> PeerMemory:
        if self._memory is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "The peer has shared no memory")
        return self._memory

    def map_memory(self, descriptor: int) -> None:
        if self._memory is not None or self._transport is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "The peer has shared its memory before")
        endpoint = self._transport.get_extra_info("socket")
        credentials = endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self._memory = PeerMemory(_CREDENTIALS.unpack(credentials)[0], descriptor)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        if self._memory is not None:
            self._memory.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._frames.received(nbytes, self._on_frame)
        except ValueError as error:
            logger.error("closing a local channel: %s", error)
            self.close()

    def _on_frame(
        self, operation: int, correlation_id: int, failed: bool, control: memoryview, payload: memoryview
    ) -> None:
        """Serve a request. The channel is shared, so a bad request fails alone."""
        try:
            message = decode_request(operation, control)
            self._serve(ChannelRequest(self, operation, correlation_id, message, payload))
        except RaykaError as error:
            logger.error("refused a request on the local channel: %s", error)
            self.answer(operation, correlation_id, error)
        except Exception as error:
            logger.exception("operation %d of the local channel failed", operation)
            reason = f"{type(error).__name__}: {error}"
            self.answer(operation, correlation_id, RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, reason))

    def answer(self, operation: int, correlation_id: int, value: Any) -> None:
        failed = isinstance(value, RaykaError)
        control = encode_failure(value) if failed else encode_value(value)
        if self._transport is not None:
            self._transport.write(encode(operation, correlation_id, control, failed=failed))

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ChannelServer:
    """Listens at `path` and calls `serve(request)` for each frame, in the event loop."""

    def __init__(self, path: str, serve: Callable[[ChannelRequest], None]) -> None:
        self._path = path
        self._serve = serve
        self._connections: set[_ServerConnection] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen, replacing a process that died. Raises CLUSTER_AUTHORIZATION_FAILED for an unsafe directory."""
        make_private_directory(os.path.dirname(self._path))
        for left_behind in glob.glob(f"{glob.escape(self._path.rsplit('.', 2)[0])}.*sock"):
            os.unlink(left_behind)
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
