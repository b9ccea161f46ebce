"""A client of the wire: requests and responses as kio's entities (ours where kio lacks a version)."""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kio.serial import entity_reader, entity_writer

from rayka.gateway.api import APIS
from rayka.gateway.server.listener import Listener
from rayka.gateway.wire.schema import ApiKey, schema
from tests.support.local_broker import LocalBroker

ENOUGH_S = 120.0


def request_frame(
    key: ApiKey, version: int, body: bytes, *, correlation_id: int = 7, client_id: bytes | None = b"test"
) -> bytes:
    """A whole frame around a request's body."""
    head = struct.pack(">hhi", key, version, correlation_id)
    head += struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
    if APIS[key].is_flexible(version):
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def encode(entity: Any) -> bytes:
    """An entity's bytes, by kio's writer."""
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def response_body(key: ApiKey, version: int, frame: bytes, correlation_id: int = 7) -> bytes:
    """What follows the response header."""
    assert struct.unpack_from(">i", frame) == (correlation_id,)
    flexible = APIS[key].is_flexible(version) and key != ApiKey.API_VERSIONS
    return frame[5:] if flexible else frame[4:]


def decode(key: ApiKey, version: int, frame: bytes, correlation_id: int = 7) -> Any:
    """A response, by kio's reader; every byte of it must be used."""
    body = response_body(key, version, frame, correlation_id)
    response, size = entity_reader(schema(key, version).response)(body, 0)
    assert size == len(body)
    return response


class WireClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 100

    @classmethod
    async def connect(cls, port: int) -> WireClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    async def receive(self) -> bytes:
        """The next frame without its length."""
        (size,) = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), ENOUGH_S))
        return await asyncio.wait_for(self.reader.readexactly(size), ENOUGH_S)

    async def is_closed(self) -> bool:
        """Wait until the other side closes; nothing more may come."""
        try:
            return await asyncio.wait_for(self.reader.read(1), ENOUGH_S) == b""
        except ConnectionError:
            return True

    async def ask(self, key: ApiKey, version: int, body: bytes) -> bytes:
        """Send a body and return the body of the answer."""
        self._correlation_id += 1
        self.writer.write(request_frame(key, version, body, correlation_id=self._correlation_id))
        return response_body(key, version, await self.receive(), self._correlation_id)

    async def call(self, key: ApiKey, version: int, request: Any) -> Any:
        """Send an entity and return the entity answered."""
        self._correlation_id += 1
        self.writer.write(request_frame(key, version, encode(request), correlation_id=self._correlation_id))
        return decode(key, version, await self.receive(), self._correlation_id)


@asynccontextmanager
async def serving(
    directory: Path, configs: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Listener, LocalBroker]]:
    """A listener with a local broker behind it."""
    broker = LocalBroker(str(directory), configs)
    listener = Listener(broker)
    await listener.start()
    broker.register("127.0.0.1", listener.port)
    try:
        yield listener, broker
    finally:
        await listener.stop(grace_s=2)
        broker.close()


@asynccontextmanager
async def connected(
    directory: Path, configs: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[WireClient, LocalBroker]]:
    """A client of a listener of its own."""
    async with serving(directory, configs) as (listener, broker):
        client = await WireClient.connect(listener.port)
        try:
            yield client, broker
        finally:
            await client.close()


def versions(*keys: ApiKey) -> list[tuple[ApiKey, int]]:
    """Every version served of these APIs."""
    return [(key, version) for key in keys for version in range(APIS[key].min_version, APIS[key].max_version + 1)]
