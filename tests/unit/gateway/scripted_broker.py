"""A broker whose leaders answer when the test says so, and a transport that keeps what is written."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

from rayka.config import BrokerConfig
from rayka.gateway.api import APIS
from rayka.gateway.server.connection import ClientConnection
from rayka.gateway.server.context import Context
from rayka.metadata.image import MetadataImage
from rayka.types import (
    AppendParams,
    AppendRequest,
    AppendResult,
    FetchPartition,
    FetchResult,
    FileSlice,
    OffsetAnswer,
    TopicPartition,
)


class ScriptedPartitions:
    """Keeps what was asked; the test completes the futures."""

    def __init__(self) -> None:
        self.appends: list[tuple[list[AppendRequest], asyncio.Future[list[AppendResult]]]] = []
        self.fetches: list[tuple[list[FetchPartition], asyncio.Future[list[FetchResult]]]] = []
        self.fetch_options: list[dict[str, Any]] = []
        self.offsets_asked = 0
        self.are_here = True
        self.checked: list[FileSlice] = []

    def append(self, requests: Any, params: AppendParams) -> asyncio.Future[list[AppendResult]]:
        future: asyncio.Future[list[AppendResult]] = asyncio.get_running_loop().create_future()
        self.appends.append((list(requests), future))
        return future

    def fetch(self, partitions: Any, **options: Any) -> asyncio.Future[list[FetchResult]]:
        future: asyncio.Future[list[FetchResult]] = asyncio.get_running_loop().create_future()
        self.fetches.append((list(partitions), future))
        self.fetch_options.append(options)
        return future

    def process_of(self, topic_partition: TopicPartition) -> str | None:
        return None

    def are_on_this_node(self, topic_partitions: Any) -> bool:
        return self.are_here

    def channel_of(self, topic_partition: TopicPartition) -> tuple[str, int] | None:
        return None

    def check_records(self, records: FileSlice) -> None:
        self.checked.append(records)

    async def list_offsets(self, queries: Any, isolation: Any) -> list[OffsetAnswer]:
        self.offsets_asked += 1
        return [OffsetAnswer(0, 42) for _ in queries]


class ScriptedBroker:
    """`ports.Broker` with scripted partitions and an image that the test sets."""

    node_id = 1

    def __init__(self, configs: Mapping[str, str] | None = None) -> None:
        self.config = BrokerConfig.parse({"log.dirs": "/nowhere", **(configs or {})})
        self.partitions = ScriptedPartitions()
        self.image = MetadataImage(cluster_id="scripted")
        self.clock_ms = 1_000_000

    def now_ms(self) -> int:
        return self.clock_ms


class MemoryTransport(asyncio.Transport):
    """What a connection writes and does to its transport. Closing it is reported at once."""

    def __init__(self, address: tuple[str, int] = ("10.0.0.1", 5555)) -> None:
        super().__init__({"peername": address})
        self.written = bytearray()
        self.reading = True
        self.ended: str | None = None
        self.protocol: ClientConnection | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        assert self.ended is None
        self.written += data

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return self.ended is not None

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def _end(self, how: str) -> None:
        if self.ended is None:
            self.ended = how
            asyncio.get_running_loop().call_soon(self._lost)

    def _lost(self) -> None:
        assert self.protocol is not None
        self.protocol.connection_lost(None)

    def frames(self) -> list[bytes]:
        """The frames written so far, without their lengths."""
        frames, position = [], 0
        while position < len(self.written):
            (size,) = struct.unpack_from(">i", self.written, position)
            frames.append(bytes(self.written[position + 4 : position + 4 + size]))
            position += 4 + size
        assert position == len(self.written)
        return frames

    def correlation_ids(self) -> list[int]:
        """The correlation ids of the frames written so far."""
        return [struct.unpack_from(">i", frame)[0] for frame in self.frames()]


def new_context(broker: Any) -> Context:
    """A gateway's context in the running loop."""
    return Context(broker, APIS, asyncio.get_running_loop())


def connect(
    context: Context, address: tuple[str, int] = ("10.0.0.1", 5555)
) -> tuple[ClientConnection, MemoryTransport]:
    """A connection over a transport in memory."""
    connection = ClientConnection(context)
    transport = MemoryTransport(address)
    transport.protocol = connection
    connection.connection_made(transport)
    return connection, transport


def transport_of(connection: ClientConnection) -> MemoryTransport:
    """What the connection writes to."""
    transport = connection._transport
    assert isinstance(transport, MemoryTransport)
    return transport


def feed(connection: ClientConnection, data: bytes, piece: int = 1 << 30) -> int:
    """Hand bytes over in pieces of this size, as the event loop does, while the connection reads. Returns how
    many it took."""
    position = 0
    while position < len(data) and not connection.closed and transport_of(connection).reading:
        buffer = connection.get_buffer(-1)
        count = min(piece, len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        connection.buffer_updated(count)
        position += count
    return position


async def settle() -> None:
    """Let everything run that is ready to run."""
    for _ in range(20):
        await asyncio.sleep(0)
