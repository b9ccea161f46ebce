"""The port: binding, stopping, idle and greedy clients, over real sockets and uvloop."""

from __future__ import annotations

import asyncio
import errno
import resource
import shutil
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from rayka.config import BrokerConfig
from rayka.gateway.server.listener import Listener
from rayka.gateway.server.response_writer import PIECE_BYTES
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.storage.format.records import Record, build_batch
from rayka.types import AppendParams, AppendRequest, TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.requests import batch, fetch_v4, produce_v3
from tests.unit.gateway.wire_client import ENOUGH_S, WireClient, request_frame, response_body, serving

Check = Callable[[Listener, LocalBroker], Awaitable[None]]


def run(directory: Path, check: Check, **configs: str) -> None:
    async def main() -> None:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        async with serving(directory, settings) as (listener, broker):
            await broker.controller.create_topics([NewTopic("orders", 1)], validate_only=False, timeout_ms=1000)
            await check(listener, broker)

    uvloop.run(main())


async def until(condition: Callable[[], bool], within_s: float = ENOUGH_S) -> None:
    """Wait for a condition, with a bound."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        await asyncio.sleep(0.005)


def fill(broker: LocalBroker, batches: int, size: int, topic: str = "orders") -> None:
    for _ in range(batches):
        records = memoryview(build_batch([Record(0, 1, None, b"v" * size, ())]))
        request = AppendRequest(TopicPartition(topic, 0), records)
        assert broker.partitions.replicas.append(request, AppendParams(1, 1000), 0).result.error == 0


def test_listens_on_loopback_and_shares_its_port(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        second = Listener(broker, "127.0.0.1", listener.port)
        await second.start()
        assert second.port == listener.port
        client = await WireClient.connect(listener.port)
        assert client.writer.get_extra_info("peername")[0] == "127.0.0.1"
        await client.ask(ApiKey.API_VERSIONS, 0, b"")
        assert listener.connections + second.connections == 1
        await client.close()
        await second.stop()

    run(tmp_path, check)


def test_the_limit_of_file_descriptors_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may have half of what the system allows this process, and two for each connection."""
    limits: list[tuple[int, int]] = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limits.append(new))

    async def check(listener: Listener, broker: LocalBroker) -> None:
        assert limits[-1] == (4096, 4096)
        assert listener._context is not None
        assert listener._context.limits.process_connections == 1024

    run(tmp_path, check)


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        with pytest.raises(OSError, match="in use"):
            await Listener(broker, "127.0.0.1", listener.port, reuse_port=False).start()

    run(tmp_path, check)


def test_socket_options(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        client = await WireClient.connect(listener.port)
        await client.ask(ApiKey.API_VERSIONS, 0, b"")
        (connection,) = listener._context.connections  # type: ignore[union-attr]
        server_side: socket.socket = connection._transport.get_extra_info("socket")
        assert server_side.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert server_side.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert server_side.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 102_400, "Linux doubles the default"
        assert server_side.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 60_000
        await client.close()

    run(tmp_path, check, socket_receive_buffer_bytes="60000")


def test_the_system_sizes_socket_buffers_if_told_so(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        (listening,) = listener._server.sockets  # type: ignore[union-attr]
        with socket.socket(listening.family) as untouched:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sizes = [one.getsockopt(socket.SOL_SOCKET, option) for one in (listening, untouched)]
                assert sizes[0] == sizes[1]

    run(tmp_path, check, socket_send_buffer_bytes="-1")


def test_stop_answers_requests_under_way_and_leaves_nothing_open(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        client, poller = await WireClient.connect(listener.port), await WireClient.connect(listener.port)
        poller.writer.write(request_frame(ApiKey.FETCH, 4, fetch_v4()))
        await client.ask(ApiKey.API_VERSIONS, 0, b"")
        await listener.stop()
        assert await client.is_closed()
        assert await poller.is_closed()
        assert listener.connections == 0
        with pytest.raises(ConnectionRefusedError):
            await WireClient.connect(listener.port)

    run(tmp_path, check)


def test_stop_does_not_wait_for_a_client_that_never_reads(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 20, 900_000)
        deaf = await WireClient.connect(listener.port)
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
        request = struct.pack(">iiiibi", -1, 500, 1, 50 << 20, 0, 1) + struct.pack(">h", 6) + b"orders"
        request += struct.pack(">iiqi", 1, 0, 0, 50 << 20)
        for _ in range(8):  # one response still fits into the sockets' buffers
            deaf.writer.write(request_frame(ApiKey.FETCH, 4, request))
        await until(lambda: any(c._writer.is_blocked for c in listener._context.connections))  # type: ignore[union-attr]
        begin = time.monotonic()
        await listener.stop(grace_s=0.2)
        assert time.monotonic() - begin < ENOUGH_S / 2
        await deaf.close()

    run(tmp_path, check)


def test_a_client_that_never_reads_is_bounded_and_does_not_disturb_others(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 20, 900_000)
        deaf = await WireClient.connect(listener.port)
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
        request = struct.pack(">iiiibi", -1, 500, 1, 50 << 20, 0, 1) + struct.pack(">h", 6) + b"orders"
        request = request_frame(ApiKey.FETCH, 4, request + struct.pack(">iiqi", 1, 0, 0, 50 << 20))
        for _ in range(50):
            deaf.writer.write(request)
        await until(lambda: any(c._writer.is_blocked for c in listener._context.connections))  # type: ignore[union-attr]
        (connection,) = listener._context.connections  # type: ignore[union-attr]
        other = await WireClient.connect(listener.port)
        for _ in range(20):
            await other.ask(ApiKey.API_VERSIONS, 0, b"")
        assert connection._transport.get_write_buffer_size() <= PIECE_BYTES
        broker.config = BrokerConfig.parse({**broker.config.texts, "connections.max.idle.ms": "100"})
        await until(lambda: connection.closed)
        await other.close()
        await deaf.close()

    run(tmp_path, check)


def test_idle_and_half_open_connections_are_closed(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        idle, half = await WireClient.connect(listener.port), await WireClient.connect(listener.port)
        half.writer.write(request_frame(ApiKey.PRODUCE, 3, produce_v3(batch(5000)))[:1000])
        busy = await WireClient.connect(listener.port)
        closed = asyncio.gather(idle.is_closed(), half.is_closed())
        while not closed.done():
            await busy.ask(ApiKey.API_VERSIONS, 0, b"")
            await asyncio.sleep(0.02)
        assert await closed == [True, True]
        await busy.ask(ApiKey.API_VERSIONS, 0, b"")
        for client in (idle, half, busy):
            await client.close()

    run(tmp_path, check, connections_max_idle_ms="1500")


def test_clients_are_served_and_swept_after_the_directory_for_counts_was_removed_or_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        broker = LocalBroker(str(tmp_path / "logs"), {"connections.max.idle.ms": "1000"})
        listener = Listener(broker, usage_dir=str(tmp_path / "node" / "usage"))
        await listener.start()
        broker.register("127.0.0.1", listener.port)
        swept = asyncio.Event()
        for fault in (OSError(errno.EMFILE, "Too many open files"), RuntimeError("cannot be swept")):
            with monkeypatch.context() as patch:
                patch.setattr(listener._context.usage, "refresh", failing_once(fault, swept))  # type: ignore[union-attr]
                await asyncio.wait_for(swept.wait(), ENOUGH_S)
            swept.clear()
        shutil.rmtree(tmp_path / "node")
        client = await WireClient.connect(listener.port)
        await client.ask(ApiKey.API_VERSIONS, 0, b"")
        assert await client.is_closed(), "idle connections are still closed"
        await client.close()
        await listener.stop(1)
        broker.close()

    uvloop.run(main())


def failing_once(fault: Exception, called: asyncio.Event) -> Callable[[], None]:
    def fail() -> None:
        called.set()
        raise fault

    return fail


def test_announcing_large_frames_costs_nothing(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        before = resident_bytes()
        clients = [await WireClient.connect(listener.port) for _ in range(20)]
        for client in clients:
            client.writer.write(struct.pack(">i", 100 * 1024 * 1024) + bytes(100))
        await until(lambda: sum(c._frames._large is not None for c in listener._context.connections) == 20)  # type: ignore[union-attr]
        assert resident_bytes() - before < 50_000_000
        for client in clients:
            await client.close()

    run(tmp_path, check)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_connections_over_the_bound_are_closed_and_others_go_on(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        first, second = await WireClient.connect(listener.port), await WireClient.connect(listener.port)
        await first.ask(ApiKey.API_VERSIONS, 0, b"")
        await second.ask(ApiKey.API_VERSIONS, 0, b"")
        third = await WireClient.connect(listener.port)
        assert await third.is_closed()
        await first.close()
        await until(lambda: listener.connections == 1)
        fourth = await WireClient.connect(listener.port)
        await fourth.ask(ApiKey.API_VERSIONS, 0, b"")
        for client in (second, third, fourth):
            await client.close()

    run(tmp_path, check, max_connections="2")


def test_many_pipelined_produces_are_all_answered_in_order(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        client = await WireClient.connect(listener.port)
        records = bytes(build_batch([Record(0, 1, None, b"v", ())]))
        count = 5000
        for number in range(count):
            client.writer.write(request_frame(ApiKey.PRODUCE, 3, produce_v3(records), correlation_id=number))
        for number in range(count):
            body = response_body(ApiKey.PRODUCE, 3, await client.receive(), number)
            assert struct.unpack_from(">hq", body, 4 + 8 + 4 + 4) == (0, number)
        await client.close()

    run(tmp_path, check)
