"""Clients that read or send slowly use little memory of the broker and disturb nobody, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

from rayka.gateway.server.listener import Listener
from rayka.gateway.wire.schema import ApiKey
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.requests import batch, produce_v3
from tests.unit.gateway.test_listener import fill, resident_bytes, run, until
from tests.unit.gateway.wire_client import WireClient, request_frame

CLIENTS = 100
RESPONSE_BYTES = 55 << 20


def large_fetch() -> bytes:
    """A Fetch v4 that waits for 55 MB and takes as much."""
    request = struct.pack(">iiiibi", -1, 500, RESPONSE_BYTES, RESPONSE_BYTES, 0, 1) + struct.pack(">h", 6) + b"orders"
    return request_frame(ApiKey.FETCH, 4, request + struct.pack(">iiqi", 1, 0, 0, RESPONSE_BYTES))


async def connect_silently(port: int) -> socket.socket:
    """A client that reads nothing, with a small receive buffer."""
    client = socket.socket()
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


async def read_all(client: socket.socket) -> bytes:
    """One whole frame without its length."""
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
        data = await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 10)
        assert data, "the broker closed the connection"
        received += data
    return bytes(received[4:])


def test_a_hundred_clients_that_ask_for_55_mb_and_read_nothing_cost_little_memory(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 60, 1_000_000)
        before = resident_bytes()
        clients = [await connect_silently(listener.port) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(large_fetch())
        assert listener._context is not None
        context = listener._context
        await until(lambda: sum(c._writer.is_blocked for c in context.connections) == CLIENTS, within_s=60)
        assert resident_bytes() - before < 100_000_000
        other = await WireClient.connect(listener.port)
        await other.ask(ApiKey.PRODUCE, 3, produce_v3(batch(5000)))
        frame = await read_all(clients[57])
        assert RESPONSE_BYTES - 2_000_000 < len(frame) < RESPONSE_BYTES + 1000
        await other.close()
        for client in clients:
            client.close()

    run(tmp_path, check)


def test_large_responses_follow_one_another_on_a_connection(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 60, 1_000_000)
        client = await WireClient.connect(listener.port)
        client.writer.write(large_fetch() * 3 + request_frame(ApiKey.API_VERSIONS, 0, b""))
        frames = [await client.receive() for _ in range(4)]
        assert frames[0] == frames[1] == frames[2]
        assert len(frames[0]) > RESPONSE_BYTES - 2_000_000
        assert len(frames[3]) < 1000
        await client.close()

    run(tmp_path, check)
