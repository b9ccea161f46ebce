"""Large slices go from their file to the socket without a copy, and whatever happens nothing wrong is sent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayka.gateway.server import segment_files
from rayka.gateway.server.connection import ClientConnection
from rayka.gateway.server.listener import Listener
from rayka.gateway.server.response_writer import plain_descriptor
from rayka.gateway.server.segment_files import SegmentFile, SegmentGone
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from tests.support.descriptors import open_sockets
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.test_listener import fill, run, until
from tests.unit.gateway.test_slow_clients import connect_silently, large_fetch
from tests.unit.gateway.wire_client import WireClient, request_frame

AFTER = request_frame(ApiKey.API_VERSIONS, 0, b"", correlation_id=9)
RECORD_BYTES = 1_000_000

pytestmark = pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 5), reason="the system cannot tell what it has cached"
)


class Sent:
    """Notes what `os.sendfile` does; `before` is called before each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] = lambda: None) -> None:
        self.sizes: list[int] = []
        undisturbed = os.sendfile

        def send(endpoint: int, descriptor: int, position: int, size: int) -> int:
            before()
            sent = undisturbed(endpoint, descriptor, position, size)
            self.sizes.append(sent)
            return sent

        monkeypatch.setattr(os, "sendfile", send)


async def frames(client: socket.socket, count: int) -> list[bytes]:
    """So many frames, without their lengths, and nothing after them."""
    received, found = bytearray(), []
    while len(found) < count:
        received += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1 << 20), 60)
        while len(received) >= 4 and len(received) >= (end := 4 + struct.unpack_from(">i", received)[0]):
            found.append(bytes(received[4:end]))
            del received[:end]
    assert not received
    return found


def records_of(frame: bytes) -> bytes:
    """The records of a Fetch v4 response about one partition."""
    start = frame.index(b"orders") + 6 + 4 + 4 + 2 + 8 + 8 + 4
    (size,) = struct.unpack_from(">i", frame, start)
    records = frame[start + 4 :]
    assert len(records) == size
    return records


def test_records_arrive_as_they_are_in_the_log_however_slowly_they_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a receive buffer of 4 KB the socket takes parts of what it is given; the next response follows."""
    sent = Sent(monkeypatch)

    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 20, RECORD_BYTES)
        (log,) = tmp_path.rglob("*.log")
        client = await connect_silently(listener.port)
        client.sendall(large_fetch() + AFTER)
        records, after = await frames(client, 2)
        assert records_of(records) == log.read_bytes()
        assert struct.unpack_from(">i", after) == (9,)
        client.close()

    run(tmp_path, check)
    assert len(sent.sizes) > 1
    assert sum(sent.sizes) > 19 * RECORD_BYTES, "but for a rest nothing is copied"


def test_several_topics_are_sent_with_what_lies_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)

    async def check(listener: Listener, broker: LocalBroker) -> None:
        await broker.controller.create_topics([NewTopic("others", 1)], validate_only=False, timeout_ms=1000)
        fill(broker, 1, RECORD_BYTES)
        fill(broker, 1, 2 * RECORD_BYTES // 3, "others")
        client = await WireClient.connect(listener.port)
        request = struct.pack(">iiiibi", -1, 0, 1, 50 << 20, 0, 2)
        for topic in (b"orders", b"others"):
            request += struct.pack(">h", 6) + topic + struct.pack(">iiqi", 1, 0, 0, 50 << 20)
        frame = await client.ask(ApiKey.FETCH, 4, request)
        logs = [path.read_bytes() for path in sorted(tmp_path.rglob("*.log"))]
        assert [frame.count(log) for log in logs] == [1, 1]
        assert 0 < len(frame) - sum(map(len, logs)) < 200
        await client.close()

    run(tmp_path, check)
    assert sent.sizes


@pytest.mark.parametrize("is_cached", [True, False], ids=["sent", "copied"])
def test_without_an_answer_from_the_page_cache_records_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    """Sending what the disk has to read first would stop every other connection of the process."""
    monkeypatch.setattr(segment_files, "is_cached", lambda *arguments: is_cached)
    sent = Sent(monkeypatch)

    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 5, RECORD_BYTES)
        (log,) = tmp_path.rglob("*.log")
        client = await connect_silently(listener.port)
        client.sendall(large_fetch())
        assert records_of(*await frames(client, 1)) == log.read_bytes()
        client.close()

    run(tmp_path, check)
    assert bool(sent.sizes) is is_cached


def test_a_segment_that_is_deleted_while_it_is_sent_arrives_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 20, RECORD_BYTES)
        (log,) = tmp_path.rglob("*.log")
        expected = log.read_bytes()
        sent = Sent(monkeypatch, before=lambda: log.unlink(missing_ok=True))
        client = await connect_silently(listener.port)
        client.sendall(large_fetch())
        assert records_of(*await frames(client, 1)) == expected
        assert sent.sizes
        assert not log.exists()
        client.close()

    run(tmp_path, check)


def test_a_segment_that_is_cut_while_it_is_sent_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 20, RECORD_BYTES)
        (log,) = tmp_path.rglob("*.log")
        Sent(monkeypatch, before=lambda: os.truncate(log, 4096))
        assert await received_before_the_end(listener, large_fetch() + AFTER) < 5 * RECORD_BYTES
        assert "cannot send the rest of a response" in caplog.text

    run(tmp_path, check)


@pytest.mark.parametrize(("error", "is_logged"), [(errno.EIO, True), (errno.EPIPE, False), (errno.ETIMEDOUT, False)])
def test_an_error_in_the_middle_of_a_response_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: int, is_logged: bool
) -> None:
    """That a client has gone is its own matter and no line in the log."""

    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 20, RECORD_BYTES)
        good = iter(range(2))

        def fail() -> None:
            if next(good, None) is None:
                raise OSError(error, os.strerror(error))

        Sent(monkeypatch, before=fail)
        await received_before_the_end(listener, large_fetch() + AFTER)
        assert ("cannot send the rest of a response" in caplog.text) is is_logged

    run(tmp_path, check)


def test_a_client_that_leaves_in_the_middle_of_a_response_disturbs_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 20, RECORD_BYTES)
        for _ in range(3):
            client = await connect_silently(listener.port)
            client.sendall(large_fetch())
            await asyncio.get_running_loop().sock_recv(client, 1000)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        other = await WireClient.connect(listener.port)
        await other.ask(ApiKey.API_VERSIONS, 0, b"")
        await until(lambda: listener.connections == 1)
        await other.close()
        assert "cannot" not in caplog.text

    run(tmp_path, check)


def test_a_disk_that_fails_after_its_client_has_left_is_no_error_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, has_left, has_failed = threading.Event(), threading.Event(), threading.Event()

    def fail_late(file: SegmentFile, size: int, position: int) -> bytes:
        reading.set()
        assert has_left.wait(30)
        has_failed.set()
        raise SegmentGone(file.path)

    monkeypatch.setattr(segment_files, "is_cached", lambda *arguments: False)
    monkeypatch.setattr(SegmentFile, "read_cached", lambda *arguments: 0)
    monkeypatch.setattr(SegmentFile, "read", fail_late)

    async def check(listener: Listener, broker: LocalBroker) -> None:
        complaints: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        fill(broker, 1, RECORD_BYTES)
        client = await connect_silently(listener.port)
        client.sendall(large_fetch())
        await until(reading.is_set)
        client.close()
        await until(lambda: listener.connections == 0)
        has_left.set()
        await until(has_failed.is_set)
        await loop.run_in_executor(None, int)
        gc.collect()
        assert not complaints

    run(tmp_path, check)


def test_responses_of_empty_parts_only_are_skipped(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        client = await WireClient.connect(listener.port)
        await client.ask(ApiKey.API_VERSIONS, 0, b"")
        assert listener._context is not None
        (connection,) = listener._context.connections
        connection._writer.write([b"", bytearray(), b""])
        assert not connection._writer.is_blocked
        await client.ask(ApiKey.API_VERSIONS, 0, b"")
        await client.close()

    run(tmp_path, check)


def test_a_single_byte_that_a_client_has_not_taken_is_waited_for(tmp_path: Path) -> None:
    """Else the connection might be given to another process without it."""

    async def check(listener: Listener, broker: LocalBroker) -> None:
        client = await connect_silently(listener.port)
        await until(lambda: listener.connections == 1)
        assert listener._context is not None
        (connection,) = listener._context.connections
        while not connection._transport.get_write_buffer_size():
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(plain_descriptor(connection._transport), bytes(1 << 16))
            connection._writer.write([b"x"])
        assert connection._writer.is_blocked
        client.close()

    run(tmp_path, check)


def test_records_are_not_sent_past_an_encrypted_connection(tmp_path: Path) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 5, RECORD_BYTES)
        (log,) = tmp_path.rglob("*.log")
        context, loop = listener._context, asyncio.get_running_loop()
        assert context is not None
        server_side, client_side = (encryption(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
        server = await loop.create_server(lambda: ClientConnection(context), "127.0.0.1", 0, ssl=server_side)
        address = server.sockets[0].getsockname()
        client = WireClient(*await asyncio.open_connection(*address, ssl=client_side))
        client.writer.write(large_fetch())
        assert records_of(await client.receive()) == log.read_bytes()
        await client.close()
        server.close()

    run(tmp_path, check)


def encryption(side: int) -> ssl.SSLContext:
    """TLS that needs no certificates."""
    context = ssl.SSLContext(side)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
    return context


@pytest.mark.parametrize("takes_all", [True, False])
def test_a_slow_client_makes_progress_while_it_reads_and_costs_a_second_descriptor(
    tmp_path: Path, takes_all: bool
) -> None:
    async def check(listener: Listener, broker: LocalBroker) -> None:
        fill(broker, 20, RECORD_BYTES)
        gc.collect()  # what earlier tests have left open is not closed meanwhile
        before = open_sockets()
        client = await connect_silently(listener.port)
        client.sendall(large_fetch() + AFTER)
        await until(lambda: open_sockets() == before + 3)
        assert listener._context is not None
        (connection,) = listener._context.connections
        assert connection.held_bytes < 1000
        stopped = connection.last_progress
        if takes_all:
            await frames(client, 2)
            assert connection.last_progress > stopped
            assert open_sockets() == before + 2
        client.close()
        await until(lambda: listener.connections == 0)
        assert open_sockets() == before

    run(tmp_path, check)


async def received_before_the_end(listener: Listener, requests: bytes) -> int:
    """How many bytes come before the broker ends the connection. The last response is not among them."""
    client = await WireClient.connect(listener.port)
    client.writer.write(requests)
    received: Any = b""
    try:
        await client.receive()
    except asyncio.IncompleteReadError as cut:
        received = cut.partial
    except ConnectionError:
        pass
    else:
        raise AssertionError("the whole response came")
    assert struct.pack(">ih", 9, 0) not in received
    await until(lambda: listener.connections == 0)
    await client.close()
    return len(received)


def test_the_page_cache_says_what_it_has(tmp_path: Path) -> None:
    """Pages that were just written are there; those of a hole, which nobody has read, are not."""
    path = tmp_path / "file"
    with path.open("w+b") as file:
        file.write(bytes(100_000))
        file.flush()
        os.truncate(path, 10_000_000)
        assert segment_files.is_cached(file.fileno(), 10, 90_000)
        assert not segment_files.is_cached(file.fileno(), 10, 5_000_000)
        assert not segment_files.is_cached(99_999, 0, 10), "no such file"


def test_threads_that_ask_about_different_files_each_hear_about_their_own(tmp_path: Path) -> None:
    """Several event loops may run in one process."""
    written, hole = tmp_path / "written", tmp_path / "hole"
    written.write_bytes(bytes(1 << 20))
    hole.touch()
    os.truncate(hole, 1 << 20)
    wrong: list[Path] = []

    def ask(path: Path, expected: bool) -> None:
        with path.open("rb") as file:
            for _ in range(20_000):
                if segment_files.is_cached(file.fileno(), 0, 1 << 20) is not expected:
                    wrong.append(path)

    threads = [threading.Thread(target=ask, args=arguments) for arguments in ((written, True), (hole, False))]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert not wrong
