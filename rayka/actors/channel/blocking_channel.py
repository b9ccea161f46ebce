"""The local channel for a thread without an event loop: one request at a time, answered in the same thread.

A request that goes through an event loop needs two thread switches, which take most of the time of a single record.
So the thread that asks reads the answer itself. At first it polls for it without sleeping, as the leader polls for the
next request (`gateway/server/busy_poll.py`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from typing import Any

from rayka.actors.channel.frames import HEADER, HEADER_SIZE, encode
from rayka.actors.channel.requests import NUMBERS, decode_answer, decode_failure, encode_value
from rayka.actors.channel.socket import ChannelClosed
from rayka.errors import RaykaError
from rayka.gateway.server.cores import usable_cores

SPIN_S = 200e-6
"""How long an answer is waited for without sleeping, as long as answers come in that time.

It is more than an answer takes when both sides have slept, or else a thread that has slept once would always sleep.
"""
_RECEIVE_BYTES = 65_536


class BlockingChannel:
    """A connection to one start of a partition actor. Any thread may use it, one at a time.

    Raises ChannelClosed if nobody listens at `path`, or no descriptor is free. `is_closed`: it is of no use any more.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._socket = _connect(path)
        except OSError as error:
            raise ChannelClosed(f"{os.path.basename(path)}: {error}", sent=False) from error
        self._received = b""
        self._correlation_id = 0
        self.is_closed = False
        self._spin_s = SPIN_S if usable_cores() > 1 else 0.0
        self._came_soon = True
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def fileno(self) -> int:
        """For an event loop that takes over waiting for the answer."""
        return self._socket.fileno()

    def request(self, message: Any, payload: bytes | bytearray | memoryview) -> None:
        """Send a request, if the one before is answered. Raises ChannelClosed: the channel is of no use any more.

        The payload must be small: what the socket does not take at once is not sent.
        """
        self._correlation_id = (self._correlation_id + 1) & 0xFFFFFFFF
        frame = encode(NUMBERS[type(message)], self._correlation_id, encode_value(message), len(payload))
        try:
            sent = self._socket.sendmsg([frame, payload])
        except OSError as error:
            raise self._closed(str(error)) from error
        if sent != len(frame) + len(payload):
            raise self._closed("it takes no more bytes")

    def receive(self, timeout_s: float) -> Any:
        """The answer or a RaykaError; None if there is none after `timeout_s`. Raises ChannelClosed."""
        began_s = time.monotonic()
        spin_until_s = began_s + min(self._spin_s, timeout_s) if self._came_soon else 0.0
        answer = self.receive_now()
        while answer is None:
            now_s = time.monotonic()
            if now_s >= spin_until_s:
                remaining_s = began_s + timeout_s - now_s
                if remaining_s <= 0 or not self._poll.poll(remaining_s * 1000):
                    return None
            else:
                os.sched_yield()  # the leader may be on this core
            answer = self.receive_now()
        self._came_soon = time.monotonic() - began_s < self._spin_s
        return answer

    def receive_now(self) -> Any:
        """The answer or a RaykaError; None if it is not there yet. Raises ChannelClosed."""
        try:
            received = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._closed(str(error)) from error
        if not received:
            raise self._closed("the peer is gone")
        self._received += received
        return self._take()

    def interrupt(self) -> None:
        """End the connection from another thread: the one that waits for an answer gets ChannelClosed."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, which nobody uses at the moment. Safe to repeat."""
        self.is_closed = True
        self._socket.close()

    def _take(self) -> Any:
        """The answer to the last request, if all of it is there."""
        data = self._received
        if len(data) < HEADER_SIZE:
            return None
        length, correlation_id, operation, failed, control_length = HEADER.unpack_from(data)
        if len(data) < length + 4:
            return None
        self._received = data[length + 4 :]
        if correlation_id != self._correlation_id:
            raise self._closed(f"answer {correlation_id} to request {self._correlation_id}")
        control = memoryview(data)[HEADER_SIZE : HEADER_SIZE + control_length]
        try:
            return decode_failure(control) if failed else decode_answer(operation, control)
        except RaykaError as error:
            return error

    def _closed(self, reason: str) -> ChannelClosed:
        self.is_closed = True
        return ChannelClosed(f"{os.path.basename(self._path)}: {reason}", sent=True)


def _connect(path: str) -> socket.socket:
    """A connection that never blocks. Raises OSError."""
    endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        endpoint.setblocking(False)
        endpoint.connect(path)
    except BaseException:
        endpoint.close()
        raise
    return endpoint
