"""The socket by which a pool gives records to an actor on its node, and gets their acknowledgements.

An actor call takes a millisecond of two processes, a frame on a Unix socket a small part of that. So an actor sends
each acknowledgement in a frame of its own, before it begins the next record. When it dies, the pool has read what it
sent, and knows which record it had begun: the first one without an acknowledgement.

The pool first sends a token that only its actor knows, because another program of the same user could connect first.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import msgspec

from rayka.actors.channel.frames import FrameBuffer, encode
from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.storage.format.records import HEADER_KEY_ERRORS


class ProcessedRecord(NamedTuple):
    """How to acknowledge a record, and how long its processing took."""

    acknowledgement: RecordAcknowledgement
    seconds: float


class _SentRecord(NamedTuple):
    """A `ShareRecord` as it is sent. The keys of its headers are bytes, since not all of them are UTF-8."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    delivery_count: int
    topic_id: uuid.UUID


_BEFORE_HEADERS: Final = 6  # fields of both kinds of record
_TOKEN_TIMEOUT_S: Final = 5.0
_ENCODER: Final = msgspec.msgpack.Encoder()
_RECORDS: Final = msgspec.msgpack.Decoder(list[_SentRecord])
_PROCESSED: Final = msgspec.msgpack.Decoder(ProcessedRecord)


def _sent(record: ShareRecord) -> _SentRecord:
    headers = [(key.encode(errors=HEADER_KEY_ERRORS), value) for key, value in record.headers]
    return _SentRecord(*record[:_BEFORE_HEADERS], headers, record.delivery_count, record.topic_id)


def _received(record: _SentRecord) -> ShareRecord:
    headers = [(key.decode(errors=HEADER_KEY_ERRORS), value) for key, value in record.headers]
    return ShareRecord(*record[:_BEFORE_HEADERS], headers, record.delivery_count, record.topic_id)


# The actor's end.


def listen(path: str) -> socket.socket | None:
    """A socket that listens there; None if that is not possible, as on another machine, which lacks the directory."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(1)
    except OSError:
        listener.close()
        return None
    return listener


def serve(listener: socket.socket, token: bytes, process: Callable[[ShareRecord], ProcessedRecord]) -> None:
    """Process the records of the connection that sends the token, one after the other, until it ends."""
    connection = _accepted(listener, token)
    frames = FrameBuffer()

    def on_frame(_operation: int, _number: int, _failed: bool, control: memoryview, _payload: memoryview) -> None:
        for record in map(_received, _RECORDS.decode(control)):
            connection.sendall(encode(0, 0, _ENCODER.encode(process(record))))

    with listener, connection:
        while count := connection.recv_into(frames.writable()):
            frames.received(count, on_frame)


def _accepted(listener: socket.socket, token: bytes) -> socket.socket:
    while True:
        connection, _ = listener.accept()
        connection.settimeout(_TOKEN_TIMEOUT_S)
        with contextlib.suppress(OSError):
            if connection.recv(len(token)) == token:  # so few bytes arrive in one piece
                connection.settimeout(None)
                return connection
        connection.close()


# The pool's end.


class RecordConnection(asyncio.BufferedProtocol):
    """A connection to one actor. It calls back with what the actor has processed, and when the connection has ended."""

    def __init__(self, on_processed: Callable[[Sequence[ProcessedRecord]], None], on_lost: Callable[[], None]) -> None:
        self._on_processed = on_processed
        self._on_lost = on_lost
        self._frames = FrameBuffer()
        self._processed: list[ProcessedRecord] = []
        self._transport: asyncio.WriteTransport | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    @classmethod
    async def connected(
        cls,
        path: str,
        token: bytes,
        on_processed: Callable[[Sequence[ProcessedRecord]], None],
        on_lost: Callable[[], None],
    ) -> RecordConnection | None:
        """A connection; None if nobody listens there on this machine, or no socket can be made."""
        try:
            with contextlib.ExitStack() as undo:
                connection = cls(on_processed, on_lost)
                undo.callback(connection._socket.close)
                connection._socket.connect(path)  # does not wait: it fails if nobody listens
                connection._socket.send(token)
                loop = asyncio.get_running_loop()
                await loop.create_unix_connection(lambda: connection, sock=connection._socket)
                undo.pop_all()
        except OSError:
            return None
        return connection

    def send(self, records: Sequence[ShareRecord]) -> None:
        """Give records to the actor. They do not reach it if the connection has ended."""
        if self._transport is not None:
            self._transport.write(encode(0, 0, _ENCODER.encode(list(map(_sent, records)))))

    def close(self) -> None:
        """End the connection. No callback is called any more."""
        self._on_processed, self._on_lost = lambda processed: None, lambda: None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of the protocol."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by its class

    def get_buffer(self, sizehint: int) -> memoryview:
        """Part of the protocol."""
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Part of the protocol."""
        self._frames.received(nbytes, self._on_frame)
        processed, self._processed = self._processed, []
        if processed:
            self._on_processed(processed)

    def _on_frame(
        self, _operation: int, _number: int, _failed: bool, control: memoryview, _payload: memoryview
    ) -> None:
        self._processed.append(_PROCESSED.decode(control))

    def connection_lost(self, error: Exception | None) -> None:
        """Part of the protocol. After a failed write, what the actor had sent may not have been read: read it now."""
        self._transport = None
        try:
            if isinstance(error, OSError):
                self._read_rest()
        finally:
            self._on_lost()

    def _read_rest(self) -> None:
        with contextlib.suppress(OSError):
            while count := self._socket.recv_into(self._frames.writable()):
                self.buffer_updated(count)
