"""One TCP connection to a broker: requests go out and answers come back one at a time.

Requests are kio's entities, written and read by the gateway's own codec. The broker is asked once which versions it
serves, so that one that is too old is named instead of closing the connection without a word.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import socket
import struct
import sys
from typing import Any

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.wire.codec import entity_reader, entity_writer
from rayka.gateway.wire.reader import Frame, FrameReader, MalformedFrame

CLIENT_ID = b"rayka"
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
_HEADER = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_VERSIONS_HEAD = struct.Struct(">hi")
_VERSIONS = struct.Struct(">hhh")
_API_VERSIONS_KEY = 18


def entity(cls: Any, *values: Any) -> Any:
    """An entity from its fields in order; kio's classes take keywords only. Fields that are left out have defaults."""
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**dict(zip(names, values, strict=False)))


def _import_kio() -> None:
    """Import kio without hypothesis, which kio loads wherever it is installed: that would double a command's time."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]


_import_kio()


class ResponseReader(FrameReader):
    """A reader without the gateway's bound on array elements: the response of a large cluster has more."""

    __slots__ = ()

    def __init__(self, buffer: Frame, position: int) -> None:
        super().__init__(buffer, position)
        self._elements_left = len(buffer)

    def records(self, flexible: bool) -> Frame | None:
        """Nullable record batches, where they lie in the frame."""
        size = self.blob_size(flexible)
        if size < 0:
            return None
        begin = self.take(size)
        return self.buffer[begin : begin + size]


class BrokerConnection:
    """A connection to HOST:PORT. Every method raises RaykaError(BROKER_NOT_AVAILABLE) when nobody answers there."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self.address = f"{host}:{port}"
        self._correlation_id = 0
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise self._lost(error) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._versions = self._api_versions()

    def close(self) -> None:
        """Close the socket. Safe to repeat."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def serves(self, request: Any) -> bool:
        """Whether the broker knows this request (an entity or its class) in its version."""
        first, last = self._versions.get(request.__api_key__, (0, -1))
        return bool(first <= request.__version__ <= last)

    def request(self, request: Any) -> Any:
        """Send a request and return the response. Raises UNSUPPORTED_VERSION if the broker does not know it."""
        if not self.serves(request):
            name = type(request).__name__.removesuffix("Request")
            message = f"{self.address} does not serve {name} version {request.__version__}; a newer broker does"
            raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, message)
        body = bytearray()
        if request.__flexible__:
            body.append(0)
        cls: Any = type(request)
        entity_writer(cls)(body, request)
        reader = ResponseReader(self._exchange(int(request.__api_key__), int(request.__version__), bytes(body)), 4)
        if request.__flexible__:
            reader.skip_tags()
        try:
            return entity_reader(_response_class(cls))(reader)
        except MalformedFrame as error:
            raise self._lost(error) from None

    def _api_versions(self) -> dict[int, tuple[int, int]]:
        answer = self._exchange(_API_VERSIONS_KEY, 0, b"")
        _, count = _VERSIONS_HEAD.unpack_from(answer, 4)
        rows = answer[4 + _VERSIONS_HEAD.size :][: count * _VERSIONS.size]
        return {key: (first, last) for key, first, last in _VERSIONS.iter_unpack(rows)}

    def _exchange(self, api_key: int, version: int, body: bytes) -> memoryview:
        """The answer's frame, beginning with the correlation id."""
        self._correlation_id += 1
        head = _HEADER.pack(api_key, version, self._correlation_id, len(CLIENT_ID)) + CLIENT_ID
        try:
            self._socket.sendall(_SIZE.pack(len(head) + len(body)) + head + body)
            (size,) = _SIZE.unpack(self._receive(_SIZE.size))
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                raise OSError(f"a response of {size} bytes")
            return self._receive(size)
        except OSError as error:
            self.close()
            raise self._lost(error) from None

    def _receive(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        received = 0
        while received < size:
            count = self._socket.recv_into(data[received:])
            if not count:
                raise OSError("the connection was closed")
            received += count
        return data.toreadonly()

    def _lost(self, error: Exception) -> RaykaError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return RaykaError(ErrorCode.BROKER_NOT_AVAILABLE, f"no broker answers at {self.address}: {reason}")


def _response_class(request: type) -> Any:
    """kio keeps a request's response beside it."""
    module = importlib.import_module(request.__module__.removesuffix("request") + "response")
    return getattr(module, request.__name__.removesuffix("Request") + "Response")
