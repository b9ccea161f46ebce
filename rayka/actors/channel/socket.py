"""The local channel: a Unix socket between processes of one node, for requests to partition leaders.

An actor call costs about a millisecond and copies large arguments through the object store; this costs
some tens of microseconds and carries record bytes raw. Requests are pipelined and may be answered out
of order. The socket lies in a directory with mode 0700. The end of the connection is how either side
learns, at once, that the other process died.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rayka.actors.channel.frames import MAX_FRAME_BYTES, FrameBuffer, encode
from rayka.actors.channel.requests import (
    NUMBERS,
    CancelFetch,
    decode_answer,
    decode_failure,
    encode_value,
)
from rayka.errors import ErrorCode, RaykaError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
_CONNECT_RETRY_S = 0.02
_MAX_QUEUED_REQUESTS = 10_000
_SWEEP_S = 0.5
_MAX_PAYLOAD_BYTES = MAX_FRAME_BYTES - (1 << 24)
DEFAULT_TIMEOUT_S = 30.0
SHARE_BYTES = 64 << 20
"""Record bytes that may wait for a peer that does not answer: an eighth of what a node has by default."""
STALLED_S = 1.0
_SMALL_FRAME_BYTES = 4096
"""Requests of up to so many bytes, without records, are sent to a peer however many wait for it."""
_SEND_BUFFER_BYTES = 1 << 20
"""So that a whole batch of the usual maximum size is sent with one call, and most often received with one. Linux takes
twice as much for its own overhead, and not more than `net.core.wmem_max` allows.
"""

Done = Callable[[Any], None]


class ChannelClosed(ConnectionError):
    """The peer has closed. `sent` says whether the request may have reached it."""

    def __init__(self, message: str, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


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


class _Pending(NamedTuple):
    """A request that has no answer yet. `shared` stays where it is in memory until then."""

    done: Done
    deadline_s: float
    payload_size: int
    shared: Sequence[memoryview]

    def end(self, answer: Any) -> None:
        """Give the answer."""
        give(self.done, answer)


def give(done: Done, answer: Any) -> None:
    """Give the answer to a request. A caller that fails with it keeps no other caller from its own."""
    try:
        done(answer)
    except Exception:
        logger.exception("a caller failed with the answer to its request")


class LocalChannel:
    """The calling end: connects when first used, and again after the peer was lost.

    While there is no connection, requests wait for it in order, for at most `CONNECT_TIMEOUT_S` or their own time; then
    they end with `ChannelClosed(sent=False)`. Requests that were sent when the peer died, or that it did not answer in
    time, end with `sent=True`: they may have been carried out.

    A stalled peer takes no more memory than its share: if it has answered no append for `STALLED_S` and more than
    `share_bytes` of record bytes wait for it, the connection is dropped, and further appends fail at once. Large
    requests without records fail while it has so many bytes of them yet to read.
    """

    def __init__(self, path: str, share_bytes: int = SHARE_BYTES) -> None:
        self._path = path
        self._share_bytes = share_bytes
        self._loop = asyncio.get_running_loop()
        self.losses = 0
        """How many connections have ended."""
        self._transport: asyncio.WriteTransport | None = None
        self._pending: dict[int, _Pending] = {}
        self._payload_bytes = 0
        self._appended_s = 0.0  # when the peer last answered an append, or had none to answer
        self._has_dropped = False  # and no append was answered since
        self._queued: dict[int, tuple[bytes, Sequence[memoryview]]] = {}
        self._refused: dict[int, asyncio.Handle] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._lost_at = 0.0
        self._sweep: asyncio.TimerHandle | None = None
        self._correlation_ids = itertools.count(1)

    def request(
        self,
        message: Any,
        done: Done,
        *,
        payload: Sequence[memoryview] = (),
        shared: Sequence[memoryview] = (),
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> int:
        """Send a request now, or as soon as there is a connection.

        The peer reads `shared` where it is. `done` gets the answer, a `RaykaError`, or `ChannelClosed`; never before
        this returns. The returned correlation id is for `cancel`.
        """
        correlation_id = next(self._correlation_ids) & 0xFFFFFFFF
        payload_size = sum(map(len, payload))
        size = payload_size + sum(map(len, shared))
        fault = self._fault(size)
        if fault is not None:
            self._refuse(correlation_id, done, fault)
            return correlation_id
        try:
            frame = encode(NUMBERS[type(message)], correlation_id, encode_value(message), payload_size)
        except RaykaError as error:
            self._refuse(correlation_id, done, error)
            return correlation_id
        if not size and len(frame) > _SMALL_FRAME_BYTES and self._unread_bytes > self._share_bytes:
            self._refuse(correlation_id, done, ChannelClosed(f"{self._path} is stalled", sent=False))
            return correlation_id
        self._await_answer(correlation_id, _Pending(done, self._loop.time() + timeout_s, size, shared))
        if self._transport is not None:
            self._write(frame, payload)
        else:
            self._queued[correlation_id] = frame, payload
            self._connect()
        return correlation_id

    def _fault(self, size: int) -> ChannelClosed | RaykaError | None:
        if size > _MAX_PAYLOAD_BYTES:
            return RaykaError(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes are too many for one request")
        if self._transport is None and len(self._queued) >= _MAX_QUEUED_REQUESTS:
            return ChannelClosed(f"too many requests wait for {self._path}", sent=False)
        if self._payload_bytes + size > self._share_bytes and self._is_stalled:
            return ChannelClosed(f"{self._path} is stalled", sent=False)
        return None

    def _refuse(self, correlation_id: int, done: Done, fault: ChannelClosed | RaykaError) -> None:
        def end() -> None:
            del self._refused[correlation_id]
            done(fault)

        self._refused[correlation_id] = self._loop.call_soon(end)

    @property
    def _unread_bytes(self) -> int:
        """How much of the requests without records the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size() - self._payload_bytes

    @property
    def _is_stalled(self) -> bool:
        """Whether the peer has had unanswered appends for so long, and has answered none."""
        has_appends = self._payload_bytes > 0 or self._has_dropped
        return has_appends and self._loop.time() - self._appended_s > STALLED_S

    def _await_answer(self, correlation_id: int, pending: _Pending) -> None:
        if not self._payload_bytes and not self._has_dropped:
            self._appended_s = self._loop.time()
        self._pending[correlation_id] = pending
        self._payload_bytes += pending.payload_size
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire)

    def cancel(self, correlation_id: int) -> None:
        """The answer to a fetch is not needed any more: `done` will not be called, and the peer stops waiting."""
        refused = self._refused.pop(correlation_id, None)
        if refused is not None:
            refused.cancel()
        if self._take(correlation_id) is not None and self._transport is not None:
            self._transport.write(encode(NUMBERS[CancelFetch], 0, encode_value(CancelFetch(correlation_id))))

    def _take(self, correlation_id: int) -> _Pending | None:
        pending = self._pending.pop(correlation_id, None)
        if pending is not None:
            self._payload_bytes -= pending.payload_size
            if self._queued:
                self._queued.pop(correlation_id, None)
        return pending

    def close(self) -> None:
        """Close the connection; requests without an answer end."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        is_connected = self._transport is not None
        if self._transport is not None:
            self._transport.close()
        self._transport = None
        self.losses += 1
        self._end_all(sent=is_connected)

    def on_answer(
        self, operation: int, correlation_id: int, failed: bool, control: memoryview, payload: memoryview
    ) -> None:
        """Called by the connection for each answer."""
        pending = self._take(correlation_id)
        if pending is None:
            return
        if pending.payload_size:
            self._appended_s, self._has_dropped = self._loop.time(), False
        try:
            answer = decode_failure(control) if failed else decode_answer(operation, control)
        except RaykaError as error:
            answer = error
        pending.end(answer)

    def on_lost(self) -> None:
        """Called by the connection when the peer has closed."""
        self._transport = None
        self.losses += 1
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
            self._connecting = self._loop.create_task(self._keep_connecting())

    async def _keep_connecting(self) -> None:
        deadline = self._loop.time() + CONNECT_TIMEOUT_S
        try:
            await asyncio.sleep(max(0.0, self._lost_at + _CONNECT_RETRY_S - self._loop.time()))
            while not await self._try_connect() and self._loop.time() <= deadline:
                await asyncio.sleep(_CONNECT_RETRY_S)
        finally:
            self._connecting = None
        if self._transport is None:
            self._end_all(sent=False)

    async def _try_connect(self) -> bool:
        try:
            transport, _ = await self._loop.create_unix_connection(lambda: _ClientConnection(self), self._path)
        except OSError:
            return False
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._transport = transport
        for frame, payload in self._queued.values():
            self._write(frame, payload)
        self._queued.clear()
        return True

    def _expire(self) -> None:
        self._sweep = None
        now = self._loop.time()
        for correlation_id, pending in list(self._pending.items()):
            is_sent = correlation_id not in self._queued
            if pending.deadline_s < now and self._take(correlation_id) is not None:
                pending.end(ChannelClosed(f"{os.path.basename(self._path)} did not answer in time", is_sent))
        if self._payload_bytes > self._share_bytes and self._is_stalled and self._transport is not None:
            logger.error("%s is stalled: dropped the %d bytes that waited for it", self._path, self._payload_bytes)
            self._has_dropped = True
            self._transport.abort()
        if self._pending:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire)

    def _end_all(self, sent: bool) -> None:
        self._queued.clear()
        pending = list(self._pending.values())
        self._pending.clear()
        self._payload_bytes = 0
        for each in pending:
            each.end(ChannelClosed(f"no answer from {os.path.basename(self._path)}", sent))
