"""One connection: frames however they are cut, requests started in order, answers in order, limits, ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import struct
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from rayka.config import BrokerConfig
from rayka.gateway.server import connection as connection_module
from rayka.gateway.server.connection import ClientConnection
from rayka.gateway.server.context import Context
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.image import MetadataImage
from rayka.types import AppendResult, FetchResult
from tests.unit.gateway.requests import batch, fetch_v4, list_offsets_v1, produce_v3
from tests.unit.gateway.scripted_broker import (
    MemoryTransport,
    ScriptedBroker,
    connect,
    feed,
    new_context,
    settle,
    transport_of,
)
from tests.unit.gateway.wire_client import request_frame

Check = Callable[[ScriptedBroker, Context, ClientConnection, MemoryTransport], Coroutine[Any, Any, None]]


def run(check: Check, **configs: str) -> None:
    """Run a check against a fresh connection."""

    async def main() -> None:
        broker = ScriptedBroker({name.replace("_", "."): value for name, value in configs.items()})
        context = new_context(broker)
        connection, transport = connect(context)
        await check(broker, context, connection, transport)
        connection.abort()
        await settle()
        assert context.request_bytes.used == 0
        assert not context.connections

    asyncio.run(main())


def api_versions(correlation_id: int) -> bytes:
    return request_frame(ApiKey.API_VERSIONS, 0, b"", correlation_id=correlation_id)


def produce(correlation_id: int, acks: int = 1, size: int = 100) -> bytes:
    return request_frame(ApiKey.PRODUCE, 3, produce_v3(batch(size), acks=acks), correlation_id=correlation_id)


def fetch(correlation_id: int) -> bytes:
    return request_frame(ApiKey.FETCH, 4, fetch_v4(), correlation_id=correlation_id)


def list_offsets(correlation_id: int) -> bytes:
    return request_frame(ApiKey.LIST_OFFSETS, 1, list_offsets_v1(), correlation_id=correlation_id)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 1 << 20])
def test_frames_arrive_in_any_pieces(piece: int) -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, b"".join(api_versions(i) for i in range(5)), piece)
        await settle()
        assert transport.correlation_ids() == [0, 1, 2, 3, 4]

    run(check)


def test_thousands_of_requests_in_one_read_do_not_keep_other_connections_from_their_turn() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        requests = b"".join(api_versions(i) for i in range(5000))
        assert feed(connection, requests) == len(requests), "all of them come in one read"
        assert not transport.reading, "no more bytes while requests are left"
        assert len(transport.correlation_ids()) < 5000
        other, its_transport = connect(context)
        feed(other, api_versions(7))
        assert its_transport.correlation_ids() == [7]
        while not transport.reading:
            await asyncio.sleep(0)
        assert transport.correlation_ids() == list(range(5000))
        other.abort()

    run(check)


def test_the_turn_ends_at_the_first_look_if_the_requests_before_it_took_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "_TURN_S", 0.0)

    async def check(_: ScriptedBroker, __: Context, connection: ClientConnection, transport: MemoryTransport) -> None:
        feed(connection, b"".join(api_versions(i) for i in range(100)))
        assert 0 < len(transport.correlation_ids()) <= connection_module._FRAMES_BETWEEN_LOOKS
        while not transport.reading:
            await asyncio.sleep(0)
        assert transport.correlation_ids() == list(range(100))

    run(check)


def test_a_request_alone_costs_no_system_call_for_the_length_of_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, thread_time=lambda: looks.append(0.0) or time.thread_time())
    monkeypatch.setattr(connection_module, "time", clock)

    async def check(_: ScriptedBroker, __: Context, connection: ClientConnection, transport: MemoryTransport) -> None:
        feed(connection, api_versions(1))
        assert transport.correlation_ids() == [1]
        assert looks == []
        feed(connection, b"".join(api_versions(i) for i in range(2, 100)))
        assert looks != []

    run(check)


@pytest.mark.parametrize("size", [100, 127 * 1024, 129 * 1024, 300 * 1024, 3 * 1024 * 1024])
@pytest.mark.parametrize("piece", [999, 1 << 16, 1 << 30])
def test_large_frames_keep_every_byte_and_are_writable(size: int, piece: int) -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, produce(1, size=size) + produce(2, size=size) + produce(3, size=50), piece)
        assert len(broker.partitions.appends) == 3
        for (requests, future), expected in zip(broker.partitions.appends, [size, size, 50], strict=True):
            assert bytes(requests[0].records) == batch(expected)
            requests[0].records[0] = 9
            future.set_result([AppendResult(0, 5)])
        await settle()
        assert transport.correlation_ids() == [1, 2, 3]

    run(check)


def test_produces_overlap_and_are_answered_in_request_order() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, b"".join(produce(i) for i in range(4)))
        assert len(broker.partitions.appends) == 4
        for index in (2, 0, 3):
            broker.partitions.appends[index][1].set_result([AppendResult(0, index)])
            await settle()
        assert transport.correlation_ids() == [0]
        broker.partitions.appends[1][1].set_result([AppendResult(0, 1)])
        await settle()
        assert transport.correlation_ids() == [0, 1, 2, 3]

    run(check)


def test_requests_other_than_produce_are_answered_one_at_a_time() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, produce(1) + list_offsets(2) + produce(3) + fetch(4))
        partitions = broker.partitions
        await settle()
        assert (len(partitions.appends), partitions.offsets_asked) == (1, 0)
        assert not transport.reading
        partitions.appends[0][1].set_result([AppendResult(0, 1)])
        await settle()
        assert transport.correlation_ids() == [1, 2]
        assert (len(partitions.appends), len(partitions.fetches)) == (2, 0)
        partitions.appends[1][1].set_result([AppendResult(0, 2)])
        await settle()
        assert len(partitions.fetches) == 1
        assert transport.reading
        partitions.fetches[0][1].set_result([FetchResult(0, 1, 1, 0)])
        await settle()
        assert transport.correlation_ids() == [1, 2, 3, 4]

    run(check)


def test_a_request_without_a_response_leaves_no_gap() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, produce(1, acks=0) + produce(2))
        broker.partitions.appends[1][1].set_result([AppendResult(0, 1)])
        await settle()
        assert transport.correlation_ids() == []
        broker.partitions.appends[0][1].set_result([AppendResult(0, 1)])
        await settle()
        assert transport.correlation_ids() == [2]

    run(check)


def test_an_error_of_an_append_without_acks_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, produce(1, acks=0))
        broker.partitions.appends[0][1].set_result([AppendResult(3)])
        await settle()
        assert transport.ended == "aborted"
        assert not transport.written

    run(check)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in caplog.text


def test_requests_under_way_are_bounded() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        context.limits = context.limits._replace(connection_requests=3)
        taken = feed(connection, b"".join(produce(i) for i in range(10)), len(produce(0)))
        assert len(broker.partitions.appends) == 3
        assert not transport.reading
        assert taken == 4 * len(produce(0))
        broker.partitions.appends[0][1].set_result([AppendResult(0, 1)])
        await settle()
        assert len(broker.partitions.appends) == 4
        assert transport.reading

    run(check)


def test_bytes_under_way_are_bounded_for_a_connection_and_for_the_process() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        size = len(produce(0, size=10_000))
        context.limits = context.limits._replace(connection_bytes=3 * size)
        context.request_bytes._limit = 4 * (size - 4)
        other, _ = connect(context)
        for number in range(5):
            feed(connection, produce(number, size=10_000))
            feed(other, produce(number, size=10_000))
        assert len(broker.partitions.appends) == 4
        assert not transport_of(connection).reading
        assert not transport_of(other).reading
        while not all(future.done() for _, future in broker.partitions.appends):
            for _, future in broker.partitions.appends:
                if not future.done():
                    future.set_result([AppendResult(0, 1)])
            await settle()
            feed(connection, b"")
        assert context.request_bytes.used == 0
        assert transport_of(connection).reading
        assert transport_of(other).reading
        other.abort()

    run(check)


def test_limits_follow_the_settings() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        broker.config = BrokerConfig.parse({"log.dirs": "/nowhere", "max.connections": "1", "fetch.max.bytes": "2048"})
        _, refused = connect(context)
        assert refused.ended == "aborted"
        assert context.fetch_max_bytes == 2048

    run(check)


def test_one_request_larger_than_the_process_may_hold_still_gets_its_turn() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        context.request_bytes._limit = 10
        feed(connection, produce(1))
        assert len(broker.partitions.appends) == 1

    run(check)


def test_nothing_is_started_for_a_client_that_does_not_read() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        context.request_bytes._limit = 100
        connection.pause_writing()
        feed(connection, produce(1) + produce(2))
        assert not broker.partitions.appends
        assert not transport.reading
        assert connection.held_bytes == context.request_bytes.used > 2 * 100
        connection.resume_writing()
        await settle()
        assert broker.partitions.appends
        context.request_bytes._limit = 1 << 20
        context.request_bytes.release(0)
        await settle()
        assert len(broker.partitions.appends) == 2
        assert transport.reading

    run(check)


def test_a_lost_connection_ends_its_long_poll_and_gives_its_bytes_back() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, fetch(1))
        assert context.request_bytes.used > 0
        connection.connection_lost(None)
        await settle()
        assert broker.partitions.fetches[0][1].cancelled()
        assert context.request_bytes.used == 0
        assert context.connection_counts.total == 0

    run(check)


def test_an_append_is_answered_after_the_client_closed_its_sending_end() -> None:
    """The records are in the log: without the response the client would send them again. Kafka answers too."""

    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, produce(1) + produce(2))
        assert connection.eof_received() is True
        for _, future in broker.partitions.appends:
            assert transport.ended is None
            future.set_result([AppendResult(0, 1)])
        await settle()
        assert transport.correlation_ids() == [1, 2]
        assert transport.ended == "closed"

    run(check)


def test_an_answer_after_the_connection_was_lost_is_dropped() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, produce(1))
        connection.connection_lost(None)
        broker.partitions.appends[0][1].set_result([AppendResult(0, 1)])
        await settle()
        assert not transport.written

    run(check)


BAD_FRAMES = {
    "negative": struct.pack(">i", -1),
    "most negative": struct.pack(">i", -(2**31)),
    "too large": struct.pack(">i", 100 * 1024 * 1024 + 1),
    "empty": struct.pack(">i", 0),
    "shorter than a header": struct.pack(">i", 8) + bytes(8),
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": bytes.fromhex("16030100f8010000f40303") + bytes(100),
    "unknown API": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "negative API": struct.pack(">ihhih", 10, -5, 0, 1, -1),
    "controlled shutdown": struct.pack(">ihhih", 10, 7, 0, 1, -1),
    "version above": struct.pack(">ihhih", 10, 3, 14, 1, -1),
    "version below": struct.pack(">ihhih", 10, 3, -1, 1, -1),
    "client id beyond the frame": struct.pack(">ihhih", 10, 3, 1, 1, 500),
    "client id of length -2": struct.pack(">ihhih", 10, 3, 1, 1, -2),
    "client id not UTF-8": struct.pack(">ihhih", 12, 3, 1, 1, 2) + b"\xff\xfe",
    "array of 2^31": request_frame(ApiKey.METADATA, 1, struct.pack(">i", 2**31 - 1)),
    "compact array of 2^31": request_frame(ApiKey.METADATA, 12, b"\xff\xff\xff\xff\x07"),
    "string of 32,768 bytes": request_frame(ApiKey.FIND_COORDINATOR, 3, b"\x81\x80\x02" + b"g" * 32_768 + b"\0\0"),
    "transactional id of 32,768 bytes": request_frame(ApiKey.PRODUCE, 9, b"\x81\x80\x02" + b"t" * 32_768 + bytes(9)),
    "produce without a body": request_frame(ApiKey.PRODUCE, 9, b""),
    "fetch without a body": request_frame(ApiKey.FETCH, 13, b""),
    "fetch of 2^31 topics": request_frame(ApiKey.FETCH, 4, struct.pack(">iiiibi", -1, 0, 0, 0, 0, 2**31 - 1)),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_closes_its_connection_with_a_line_in_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        neighbour, neighbour_transport = connect(context, ("10.0.0.2", 6666))
        feed(connection, BAD_FRAMES[name])
        await settle()
        assert transport.ended == "aborted"
        assert not transport.written
        feed(neighbour, api_versions(1))
        assert neighbour_transport.correlation_ids() == [1]
        neighbour.abort()

    with caplog.at_level(logging.WARNING):
        run(check)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("closed the connection from 10.0.0.1:5555: ")


def test_a_string_of_32767_bytes_is_read() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        topic = b"\x80\x80\x02" + b"t" * 32_767
        feed(connection, request_frame(ApiKey.METADATA, 9, b"\x02" + topic + b"\0" + bytes(4), correlation_id=3))
        await settle()
        assert transport.correlation_ids() == [3]

    run(check)


def test_bytes_after_a_request_within_its_frame_are_ignored() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, request_frame(ApiKey.METADATA, 1, struct.pack(">i", 0) + b"garbage", correlation_id=3))
        await settle()
        assert transport.correlation_ids() == [3]

    run(check)


def test_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        for number in range(500):
            bad, _ = connect(context, ("10.0.0.3", number))
            feed(bad, BAD_FRAMES["negative"])
        await settle()

    run(check)
    assert 1 <= len(caplog.records) < 100


def test_connections_are_bounded_in_all_and_by_address() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        _, same_transport = connect(context)
        assert same_transport.ended is None
        _, third_transport = connect(context)
        assert third_transport.ended == "aborted"
        allowed, allowed_transport = connect(context, ("10.0.0.9", 1))
        connect(context, ("10.0.0.9", 2))
        assert allowed_transport.ended is None
        _, over_transport = connect(context, ("10.0.0.8", 1))
        assert over_transport.ended == "aborted"
        allowed.abort()
        await settle()
        _, retry_transport = connect(context, ("10.0.0.8", 1))
        assert retry_transport.ended is None
        for open_connection in list(context.connections):
            open_connection.abort()

    run(
        check,
        max_connections="4",
        max_connections_per_ip="2",
        max_connections_per_ip_overrides="10.0.0.9:3",
    )


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        connection.expire(connection.last_progress - 1)
        assert transport.ended is None
        feed(connection, produce(1))
        connection.expire(connection.last_progress + 1)
        assert transport.ended is None
        connection.pause_writing()
        connection.expire(connection.last_progress + 1)
        assert transport.ended == "aborted"
        half_open, half_transport = connect(context)
        feed(half_open, produce(1)[:20])
        half_open.expire(half_open.last_progress + 1)
        assert half_transport.ended == "aborted"

    run(check)


def test_finishing_answers_requests_under_way_and_takes_no_more() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, produce(1) + list_offsets(2))
        connection.finish()
        assert transport.ended is None
        broker.partitions.appends[0][1].set_result([AppendResult(0, 1)])
        await settle()
        assert transport.correlation_ids() == [1]
        assert transport.ended == "closed"

    run(check)


def test_finishing_does_not_wait_for_a_long_poll() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        feed(connection, fetch(1))
        connection.finish()
        await settle()
        assert transport.ended == "closed"

    run(check)


def test_a_failing_handler_closes_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        broker.image = None  # type: ignore[assignment]
        feed(connection, request_frame(ApiKey.METADATA, 1, struct.pack(">i", -1)))
        await settle()
        assert transport.ended == "aborted"
        broker.image = MetadataImage()
        neighbour, neighbour_transport = connect(context)
        feed(neighbour, api_versions(1))
        assert neighbour_transport.correlation_ids() == [1]
        neighbour.abort()

    run(check)


def test_a_version_of_api_versions_above_ours_gets_error_35_in_version_0() -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        head = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 8, 1) + b"x" + b"\x00\x01\x02garbage"
        feed(connection, struct.pack(">i", len(head)) + head)
        (frame,) = transport.frames()
        assert frame == struct.pack(">ihihhh", 8, 35, 1, 18, 0, 5)

    run(check)


def test_a_connection_whose_requests_cannot_be_processed_is_closed_and_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        def fail() -> None:
            raise MemoryError

        transport.pause_reading = fail  # type: ignore[method-assign]
        context.limits = context.limits._replace(connection_requests=1)
        feed(connection, produce(1) + produce(2))
        assert transport.ended == "aborted"
        await settle()
        assert context.connection_counts.total == 0
        assert context.request_bytes.used == 0
        assert "its requests cannot be processed" in caplog.text

    run(check)


def test_a_connection_that_cannot_be_accepted_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        def fail(connection: ClientConnection) -> str | None:
            raise OSError(errno.EIO, "Input/output error")

        context.add = fail  # type: ignore[method-assign]
        _, refused = connect(context)
        assert refused.ended == "aborted"
        await settle()
        assert context.connection_counts.total == 1
        assert "cannot accept the connection" in caplog.text

    run(check)


@pytest.mark.parametrize("frames", [[api_versions(number) for number in range(100)], [produce(0, size=100_000)]])
def test_requests_behind_a_waiting_one_are_counted_and_answered_when_memory_is_full(frames: list[bytes]) -> None:
    async def check(
        broker: ScriptedBroker, context: Context, connection: ClientConnection, transport: MemoryTransport
    ) -> None:
        context.request_bytes._limit = 1000
        behind = b"".join(frames)
        other, _ = connect(context)
        for one in (connection, other):
            feed(one, fetch(1000) + behind)
        assert context.request_bytes.used > len(behind)
        assert context.request_bytes.is_full
        while not all(future.done() for _, future in (*broker.partitions.fetches, *broker.partitions.appends)):
            for _, future in broker.partitions.fetches:
                if not future.done():
                    future.set_result([FetchResult(0, 5, 5, 0)])
            for _, future in broker.partitions.appends:
                if not future.done():
                    future.set_result([AppendResult(0, 0)])
            await settle()
        assert transport.correlation_ids() == [1000, *range(len(frames))]
        assert transport_of(other).correlation_ids() == [1000, *range(len(frames))]
        assert context.request_bytes.used == 0
        other.abort()

    run(check)
