"""Clients that read or send slowly use little memory of the broker and disturb nobody, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from rayka.gateway.server import listener as listener_module
from rayka.gateway.server import segment_files
from rayka.gateway.server.context import SCRATCH_BYTES, Context
from rayka.gateway.server.listener import Listener
from rayka.gateway.wire.schema import ApiKey
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FetchResult
from tests.support.descriptors import open_files
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.requests import batch, produce_v3
from tests.unit.gateway.test_listener import fill, resident_bytes, run, until
from tests.unit.gateway.wire_client import ENOUGH_S, WireClient, request_frame

CLIENTS = 100
RESPONSE_BYTES = 55 << 20


def large_fetch(min_bytes: int = RESPONSE_BYTES) -> bytes:
    """A Fetch v4 that waits for 55 MB, not for long, and takes as much."""
    return request_frame(ApiKey.FETCH, 4, large_fetch_body(min_bytes))


def large_fetch_body(min_bytes: int) -> bytes:
    request = struct.pack(">iiiibi", -1, 50, min_bytes, RESPONSE_BYTES, 0, 1) + struct.pack(">h", 6) + b"orders"
    return request + struct.pack(">iiqi", 1, 0, 0, RESPONSE_BYTES)


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
        data = await asyncio.wait_for(loop.sock_recv(client, 1 << 20), ENOUGH_S)
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


@pytest.mark.parametrize("min_bytes", [1, RESPONSE_BYTES])
def test_records_of_other_nodes_are_counted_until_a_client_has_read_them(min_bytes: int, tmp_path: Path) -> None:
    """These records come as bytes, so a response has 4 MB of them at most, and all of them are in the node's limit.

    That is so whatever the clients wait for.
    """
    silent = 20

    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 20, 1_000_000)
        partitions: Any = broker.partitions
        partitions.are_on_this_node = lambda _: False
        local, reader = partitions.fetch, SegmentReader()

        def fetch(*arguments: Any, **options: Any) -> asyncio.Future[list[FetchResult]]:
            future = local(*arguments, **options | {"max_wait_ms": 0})
            (result,) = future.result()
            return answered([result._replace(records=reader.read(result.records))])

        partitions.fetch = fetch
        clients = [await connect_silently(listener.port) for _ in range(silent)]
        for client in clients:
            client.sendall(large_fetch(min_bytes))
        assert listener._context is not None
        context = listener._context
        await until(lambda: sum(c._writer.is_blocked for c in context.connections) == silent)
        held = [connection.held_bytes for connection in context.connections]
        assert all(3_000_000 < size <= (4 << 20) + 1000 for size in held)
        assert context.request_bytes.used == sum(held)
        assert len(await read_all(clients[7])) == pytest.approx(4 << 20, abs=1_000_000)
        for client in clients:
            client.close()

    run(tmp_path, check)


def answered(results: list[FetchResult]) -> asyncio.Future[list[FetchResult]]:
    future: asyncio.Future[list[FetchResult]] = asyncio.get_running_loop().create_future()
    future.set_result(results)
    return future


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


def test_the_disk_gets_the_blocks_of_segments_back_that_clients_have_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may fetch again for days after retention has deleted what was read."""
    monkeypatch.setattr(listener_module, "_LONGEST_SWEEP_S", 0.1)

    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 1, 1_000_000)
        by_log = open_files(tmp_path)
        client = await WireClient.connect(listener.port)
        await client.ask(ApiKey.FETCH, 4, large_fetch_body(min_bytes=1))
        assert open_files(tmp_path) == by_log + 1
        for log in tmp_path.rglob("*.log"):
            log.unlink()
        await until(lambda: open_files(tmp_path) == by_log)
        await client.close()

    run(tmp_path, check)


def test_frames_that_never_end_make_room_for_other_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that sent most of a large frame and stopped use up the memory for requests; then they are closed."""
    monkeypatch.setattr(listener_module, "_STALLED_S", 1.0)
    monkeypatch.setattr(listener_module, "_LONGEST_SWEEP_S", 0.1)

    async def check(listener: Listener, broker: LocalBroker) -> None:
        assert listener._context is not None
        context = listener._context
        head = struct.pack(">i", 9_000_000)
        stalled = [await WireClient.connect(listener.port) for _ in range(4)]
        for client in stalled:
            client.writer.write(head + bytes(8_000_000))
        await until(lambda: context.request_bytes.is_full)
        most = 10_000_000 + len(stalled) * SCRATCH_BYTES
        assert context.request_bytes.used < most, "over by one read of each; the rest waits in the sockets"
        other = await WireClient.connect(listener.port)
        await other.ask(ApiKey.PRODUCE, 3, produce_v3(batch(5000)))
        assert context.request_bytes.used < most + 10_000, "over by one read of each, and the request of the other"
        for client in (other, *stalled):
            await client.close()

    run(tmp_path, check, queued_max_request_bytes="10000000", socket_request_max_bytes="10000000")


def test_hundreds_of_clients_that_wait_for_room_are_all_answered(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        assert listener._context is not None
        context = listener._context
        large = [await WireClient.connect(listener.port) for _ in range(2)]
        large[0].writer.write(struct.pack(">i", 999_000) + bytes(990_000))
        await until(lambda: len(context.connections) == 2 and held_most(context) >= 990_000)
        large[1].writer.write(struct.pack(">i", 999_000) + bytes(400_000))
        await until(lambda: context.request_bytes.is_full)
        clients = [await WireClient.connect(listener.port) for _ in range(300)]
        for client in clients:
            client.writer.write(request_frame(ApiKey.API_VERSIONS, 0, b""))
        await until(lambda: len(context.request_bytes._waiting) >= 300)
        for client in large:
            client.writer.transport.abort()
        await asyncio.gather(*(client.receive() for client in clients))
        for client in clients:
            await client.ask(ApiKey.API_VERSIONS, 0, b"")
            await client.close()
        await until(lambda: not context.connections)
        assert (context.request_bytes.used, context.connection_counts.total) == (0, 0)

    run(tmp_path, check, queued_max_request_bytes="1000000", socket_request_max_bytes="1000000")


def held_most(context: Context) -> int:
    """How many bytes the connection has received that has received most of a frame."""
    return max(connection._frames._large_end for connection in context.connections)


def test_a_response_that_cannot_be_read_to_its_end_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page cache fails in the middle of a response; the next response must not stand in its place."""
    monkeypatch.setattr(segment_files, "is_cached", lambda *arguments: False)
    read, reads = os.preadv, iter(range(8))

    def read_or_fail(*arguments: Any) -> int:
        if next(reads, None) is None:
            raise OSError(errno.EIO, "Input/output error")
        return read(*arguments)

    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 12, 1_000_000)
        monkeypatch.setattr(os, "preadv", read_or_fail)
        client = await WireClient.connect(listener.port)
        client.writer.write(large_fetch() + request_frame(ApiKey.API_VERSIONS, 0, b"", correlation_id=9))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)) as cut:
            await client.receive()
        assert struct.pack(">ih", 9, 0) not in getattr(cut.value, "partial", b"")
        await until(lambda: listener.connections == 0)
        assert "cannot send the rest of a response" in caplog.text
        await client.close()

    run(tmp_path, check)


def test_a_wait_for_records_is_capped(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        asked: list[int] = []
        fetch = broker.partitions.fetch

        def note(partitions: Any, **options: Any) -> Any:
            asked.append(options["max_wait_ms"])
            return fetch(partitions, **{**options, "max_wait_ms": 0})

        broker.partitions.fetch = note  # type: ignore[method-assign]
        client = await WireClient.connect(listener.port)
        request = struct.pack(">iiiibi", -1, 2**31 - 1, 1, 1000, 0, 1) + struct.pack(">h", 6) + b"orders"
        await client.ask(ApiKey.FETCH, 4, request + struct.pack(">iiqi", 1, 0, 0, 1000))
        assert 50_000 < asked[0] <= 60_000
        await client.close()

    run(tmp_path, check)


def test_connections_leave_half_of_the_file_descriptors_to_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (80, 80))  # two of each connection

    async def check(listener: Listener, broker: LocalBroker) -> None:
        clients = [await WireClient.connect(listener.port) for _ in range(20)]
        for client in clients:
            await client.ask(ApiKey.API_VERSIONS, 0, b"")
        last = await WireClient.connect(listener.port)
        assert await last.is_closed()
        await clients[0].ask(ApiKey.API_VERSIONS, 0, b"")
        for client in (last, *clients):
            await client.close()

    run(tmp_path, check)
