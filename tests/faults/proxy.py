"""A TCP proxy that delays, splits, stalls, half-closes and drops connections, and refuses new ones.

The broker advertises the proxy's address, so that clients come through it whatever they are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Self, TypeVar

from rayka.testing import free_port

READ_BYTES = 65536
CALL_S = 60.0
"""How long the proxy's thread may take to do what a test asks for, on a busy machine."""
SIZE, HEADER = struct.Struct(">i"), struct.Struct(">hh")
"""The length of a request; its API key and version."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
Answer = TypeVar("Answer")


class Requests:
    """Finds the requests in what a client sends, and gives each to `passed`."""

    def __init__(self, passed: Callable[[bytes], None]) -> None:
        self._passed = passed
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= SIZE.size:
            end = SIZE.size + SIZE.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            self._passed(bytes(self._buffer[SIZE.size : end]))
            del self._buffer[:end]


class Proxy:
    """Listens on `port` and forwards to `target_port`. `delay_s` and `piece_bytes` hold for what passes from now on.

    `passed`, `dropped`, `half_closed` and `refused` count bytes and connections, so that a test can tell that a fault
    hit something. `repeated` counts the requests that came again late, by API key, and `repeated_versions` has theirs.
    """

    def __init__(self, target_port: int, port: int | None = None) -> None:
        self.port = port or free_port()
        self.delay_s = 0.0
        self.piece_bytes = READ_BYTES
        self.is_refusing = False
        self.passed = self.dropped = self.half_closed = self.refused = self.connected = 0
        self.repeated: Counter[int] = Counter()
        self.repeated_versions: dict[int, set[int]] = defaultdict(set)
        self._target_port = target_port
        self._late: tuple[frozenset[int], float] = (frozenset(), 0.0)
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        server = asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self._server = asyncio.run_coroutine_threadsafe(server, self._loop).result(CALL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.flow()
        self.drop()
        self._call(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)

    def drop(self) -> None:
        """Reset every connection, on both sides, with whatever is under way."""
        self._call(self._drop)

    def half_close(self, toward_client: bool) -> None:
        """End the stream in one direction of every connection; the other goes on."""
        self._call(lambda: self._half_close(toward_client))

    def stall(self) -> None:
        """Pass nothing on, and close nothing, until `flow`."""
        self._call(self._flows.clear)

    def flow(self) -> None:
        """Pass everything on again."""
        self._call(self._flows.set)

    def repeat_late(self, api_keys: Iterable[int], delay_s: float) -> None:
        """Send a copy of each request of these APIs to the broker, so much later and over another connection."""
        self._late = (frozenset(api_keys), delay_s)

    def heal(self) -> None:
        """No fault from now on."""
        self.delay_s, self.piece_bytes, self.is_refusing = 0.0, READ_BYTES, False
        self.flow()

    def _call(self, work: Callable[[], Answer]) -> Answer:
        async def run() -> Answer:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_S)

    def _drop(self) -> None:
        for pair in self._pairs:
            self.dropped += 1
            for writer in pair:
                reset(writer)

    def _half_close(self, toward_client: bool) -> None:
        for client, broker in self._pairs:
            writer = client if toward_client else broker
            if not writer.is_closing() and writer.can_write_eof():
                writer.write_eof()
                self.half_closed += 1

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            self.refused += 1
            reset(writer)
            return
        try:
            broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            reset(writer)
            return
        self.connected += 1
        pair = (writer, broker_writer)
        self._pairs.add(pair)
        try:
            requests = Requests(self._request_passed)
            await asyncio.gather(self._pump(reader, broker_writer, requests), self._pump(broker_reader, writer))
        finally:
            self._pairs.discard(pair)
            for each in pair:
                each.close()

    def _request_passed(self, request: bytes) -> None:
        api_keys, delay_s = self._late
        api_key, version = HEADER.unpack_from(request)
        if api_key in api_keys:
            self._loop.call_later(delay_s, lambda: self._loop.create_task(self._repeat(api_key, version, request)))

    async def _repeat(self, api_key: int, version: int, request: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        writer.write(SIZE.pack(len(request)) + request)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readexactly(SIZE.size)
            self.repeated[api_key] += 1
            self.repeated_versions[api_key].add(version)
        writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: Requests | None = None
    ) -> None:
        """Pass one direction on until it ends; the end is passed on too."""
        with contextlib.suppress(OSError, RuntimeError):
            while data := await reader.read(READ_BYTES):
                if requests is not None:
                    requests.feed(data)
                await asyncio.sleep(self.delay_s)
                for start in range(0, len(data), self.piece_bytes):
                    await self._flows.wait()
                    writer.write(data[start : start + self.piece_bytes])
                    await writer.drain()
                    await asyncio.sleep(0)
                self.passed += len(data)
            if not writer.is_closing():
                writer.write_eof()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST and forget what was to be sent."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()
