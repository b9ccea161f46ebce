"""Produce 0-2 and Fetch 0-3: message sets of magic 0 and 1 on the wire, record batches in the log."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.compression import Codec
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.log.log import Log
from rayka.types import TopicPartition
from tests.support.local_broker import LocalBroker
from tests.support.message_sets import Message, compressed_set, encode, message_set, read_message_set
from tests.unit.gateway.requests import TOPIC, fetch_v4, produce_v0
from tests.unit.gateway.wire_client import WireClient, connected, request_frame, response_body

NOW = 1_450_000_000_000
ORDERS = TopicPartition("orders", 0)
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
MESSAGES = [Message(0, NOW, b"k", b"a"), Message(1, NOW + 1, None, b"b"), Message(2, NOW, b"k", None)]


async def create(broker: LocalBroker, **configs: str) -> Log:
    topic = NewTopic("orders", 2, 1, configs={name.replace("_", "."): value for name, value in configs.items()})
    (result,) = await broker.controller.create_topics([topic], validate_only=False, timeout_ms=1000)
    assert not result.error
    return broker.partitions.replicas.get(ORDERS).log


def stored(log: Log) -> bytes:
    slice_ = log.read(0, 1 << 30, log.log_end_offset)
    assert slice_ is not None
    return Path(slice_.path).read_bytes()[slice_.position : slice_.position + slice_.size]


async def produce(client: WireClient, version: int, records: bytes | None) -> tuple[int, ...]:
    """Error and base offset, and the log append time of version 2."""
    body = await client.ask(ApiKey.PRODUCE, version, produce_v0(records))
    head = struct.pack(">i", 1) + TOPIC + struct.pack(">ii", 1, 0)
    assert body.startswith(head)
    layout = struct.Struct(">hqqi" if version == 2 else ">hqi" if version else ">hq")
    assert len(body) == len(head) + layout.size
    fields = layout.unpack_from(body, len(head))
    return fields[:-1] if version else fields


def fetch_body(version: int, offset: int, max_bytes: int, total: int, max_wait_ms: int) -> bytes:
    head = struct.pack(">iii", -1, max_wait_ms, 1) + (struct.pack(">i", total) if version == 3 else b"")
    return head + struct.pack(">i", 1) + TOPIC + struct.pack(">iiqi", 1, 0, offset, max_bytes)


async def fetch(
    client: WireClient, version: int, offset: int, max_bytes: int = 1 << 20, total: int = 1 << 20, max_wait_ms: int = 0
) -> tuple[int, int, bytes]:
    """Error, high watermark and message set."""
    body = await client.ask(ApiKey.FETCH, version, fetch_body(version, offset, max_bytes, total, max_wait_ms))
    head = (struct.pack(">i", 0) if version else b"") + struct.pack(">i", 1) + TOPIC + struct.pack(">ii", 1, 0)
    assert body.startswith(head)
    error, high_watermark, size = struct.unpack_from(">hqi", body, len(head))
    messages = body[len(head) + 14 :]
    assert len(messages) == size
    return error, high_watermark, messages


def magic_of(version: int) -> int:
    """The magic that clients of a version of Produce or Fetch use."""
    return 0 if version < 2 else 1


def seen(messages: list[Message], version: int) -> list[Message]:
    return messages if magic_of(version) else [one._replace(timestamp=-1) for one in messages]


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_message_sets_are_stored_as_batches_of_the_same_codec(version: int, codec: Codec, tmp_path: Path) -> None:
    magic = magic_of(version)
    records = message_set(MESSAGES, magic) if codec is Codec.NONE else compressed_set(MESSAGES, magic, codec)

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker)
            for round_ in range(2):
                error, base_offset, *append_time = await produce(client, version, records)
                assert (error, base_offset, append_time) == (0, 3 * round_, [-1] if version == 2 else [])
            batches = stored(log)
            assert [(header.magic, header.codec) for _, header in iter_headers(batches)] == [(2, codec)] * 2
            found = [Message(*record[:4]) for record in read_records(batches)]
            assert found == seen([*MESSAGES, *(one._replace(offset=one.offset + 3) for one in MESSAGES)], version)

    asyncio.run(main())


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_batches_are_fetched_as_message_sets(version: int, codec: Codec, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker)
            records = [Record(*one[:4], headers=(("h", b"x"),)) for one in MESSAGES]
            for _ in range(2):
                append(broker, log, build_batch(records, codec=codec))
            wanted = seen([*MESSAGES, *(one._replace(offset=one.offset + 3) for one in MESSAGES)], version)
            for offset in range(6):
                error, high_watermark, messages = await fetch(client, version, offset)
                assert (error, high_watermark) == (0, 6)
                assert messages[16] == magic_of(version)
                assert read_message_set(messages) == wanted[offset:]
            assert await fetch(client, version, 6) == (0, 6, b"")
            assert (await fetch(client, version, 7))[0] == ErrorCode.OFFSET_OUT_OF_RANGE

    asyncio.run(main())


def append(broker: LocalBroker, log: Log, batch: bytearray, *, from_client: bool = True) -> None:
    log.append_as_leader(batch, 0, NOW, origin_is_client=from_client)
    log.update_high_watermark(log.log_end_offset)


BROKEN = {
    "a wrong CRC": (encode(MESSAGES[0], 0)[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
    "a part of a message": (message_set(MESSAGES, 0)[:-1], ErrorCode.CORRUPT_MESSAGE),
    "a few bytes": (bytes(18), ErrorCode.CORRUPT_MESSAGE),
    "no records": (b"", ErrorCode.INVALID_RECORD),
    "null records": (None, ErrorCode.INVALID_RECORD),
    "two compressed sets": (compressed_set(MESSAGES, 1, Codec.GZIP) * 2, ErrorCode.INVALID_RECORD),
    "zstd": (encode(MESSAGES[0], 1, 4), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "a log append time": (message_set(MESSAGES, 1, 8), ErrorCode.INVALID_TIMESTAMP),
    "magic 3": (encode(MESSAGES[0], 3) + bytes(40), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_message_sets_are_refused_and_nothing_is_appended(name: str, tmp_path: Path) -> None:
    records, code = BROKEN[name]

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker)
            assert await produce(client, 2, records) == (code, -1, -1)
            assert log.size == 0
            assert (await produce(client, 2, message_set(MESSAGES, 1)))[:2] == (0, 0)

    asyncio.run(main())


@pytest.mark.parametrize("own", [True, False])
def test_a_compressed_set_above_the_largest_message_is_not_decompressed(own: bool, tmp_path: Path) -> None:
    """A hundred megabytes of tiny snappy blocks would keep all other old clients waiting for half a minute."""
    broken = encode(Message(0, NOW, None, bytes(1_100_000 if not own else 2_000)), 1, Codec.SNAPPY)

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            await create(broker, **({"max_message_bytes": "1000"} if own else {}))
            assert await produce(client, 2, broken) == (ErrorCode.MESSAGE_TOO_LARGE, -1, -1)
            assert (await produce(client, 2, compressed_set(MESSAGES, 1, Codec.SNAPPY)))[:2] == (0, 0)

    asyncio.run(main())


def test_a_record_batch_in_an_old_request_is_stored_as_it_is(tmp_path: Path) -> None:
    """Kafka accepts it too: some clients sent magic 2 in Produce 2."""

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker)
            batch = build_batch([Record(0, NOW, b"k", b"v", (("h", b"x"),))])
            assert (await produce(client, 2, bytes(batch)))[:2] == (0, 0)
            assert [record.headers for record in read_records(stored(log))] == [(("h", b"x"),)]

    asyncio.run(main())


def test_pipelined_old_requests_keep_their_order(tmp_path: Path) -> None:
    """A large set takes longer to convert than the small ones after it."""
    large = message_set([Message(offset, NOW, None, bytes(90)) for offset in range(5_000)], 1)
    small = message_set(MESSAGES[:1], 1)

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker)
            frames = [
                request_frame(ApiKey.PRODUCE, 2, produce_v0(records), correlation_id=number)
                for number, records in enumerate((large, small, large, small))
            ]
            client.writer.write(b"".join(frames))
            offsets = []
            for number in range(4):
                body = response_body(ApiKey.PRODUCE, 2, await client.receive(), number)
                offsets.append(struct.unpack_from(">hq", body, 4 + len(TOPIC) + 8))
            assert offsets == [(0, 0), (0, 5_000), (0, 5_001), (0, 10_001)]
            assert log.log_end_offset == 10_002

    asyncio.run(main())


def test_an_old_request_without_acks_is_appended(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            await create(broker)
            body = produce_v0(message_set(MESSAGES, 0), acks=0)
            client.writer.write(request_frame(ApiKey.PRODUCE, 0, body))
            assert (await fetch(client, 0, 0, max_wait_ms=5_000))[1] == 3

    asyncio.run(main())


def test_the_topic_sets_timestamps_codec_and_keys_for_old_producers_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(
                broker, message_timestamp_type="LogAppendTime", compression_type="gzip", cleanup_policy="compact"
            )
            assert (await produce(client, 2, message_set(MESSAGES, 1)))[0] == ErrorCode.INVALID_RECORD
            error, _, append_time = await produce(client, 2, message_set(MESSAGES[::2], 1))
            assert not error
            assert append_time > NOW
            assert [header.codec for _, header in iter_headers(stored(log))] == [Codec.GZIP]
            (_, _, messages) = await fetch(client, 3, 0)
            assert {one.timestamp for one in read_message_set(messages)} == {append_time}
            assert messages[17] == 8 | Codec.GZIP

    asyncio.run(main())


def test_timestamps_outside_of_the_topics_bounds_are_refused_but_none_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            await create(broker, message_timestamp_before_max_ms="1000")
            assert (await produce(client, 2, message_set(MESSAGES, 1)))[0] == ErrorCode.INVALID_TIMESTAMP
            assert (await produce(client, 0, message_set(MESSAGES, 0)))[0] == ErrorCode.NONE

    asyncio.run(main())


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_limit_of_a_fetch_holds_for_messages(version: int, tmp_path: Path) -> None:
    """Versions 0-2 cut a message that is too large; version 3 gives the first one whole."""

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker)
            append(broker, log, build_batch([Record(offset, NOW, None, bytes(1_000)) for offset in range(100)]))
            _, _, messages = await fetch(client, version, 0, max_bytes=10_000)
            assert 9_000 < len(messages) <= 10_000
            assert [one.offset for one in read_message_set(messages)] == list(range(9))
            _, _, messages = await fetch(client, version, 50, max_bytes=500)
            assert len(messages) == 500 if version < 3 else len(read_message_set(messages)) == 1
            if version == 3:
                _, _, messages = await fetch(client, version, 0, total=10_000)
                assert len(messages) <= 10_000

    asyncio.run(main())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_fetch_without_room_for_a_byte_is_answered_at_once(version: int, tmp_path: Path) -> None:
    """It does not read on through the log for something that fits."""

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker)
            for _ in range(20):
                append(broker, log, build_batch([Record(0, NOW, None, b"v")]))
            asked = []
            read = broker.partitions.fetch
            broker.partitions.fetch = lambda *what, **how: asked.append(what) or read(*what, **how)  # type: ignore[method-assign, func-returns-value]
            assert await fetch(client, version, 0, max_bytes=0) == (0, 20, b"")
            assert len(asked) == 1

    asyncio.run(main())


@pytest.mark.parametrize("version", [0, 3])
def test_zstd_cannot_be_fetched(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker)
            append(broker, log, build_batch([Record(0, NOW, None, bytes(1_000))], codec=Codec.ZSTD))
            assert await fetch(client, version, 0) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1, b"")

    asyncio.run(main())


@pytest.mark.parametrize("version", [0, 3])
def test_a_fetch_skips_transaction_markers_and_waits_after_them(version: int, tmp_path: Path) -> None:
    """A client that got nothing would ask for the marker for ever."""

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker, segment_bytes="1048576")
            data = build_batch(
                [Record(0, NOW, None, b"a")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
            )
            append(broker, log, data)
            append(broker, log, marker())
            assert [one.offset for one in read_message_set((await fetch(client, version, 0))[2])] == [0]
            assert await fetch(client, version, 1, max_wait_ms=50) == (0, 2, b"")
            waiting = asyncio.create_task(fetch(client, version, 1, max_wait_ms=30_000))
            producer = await WireClient.connect(broker.image.brokers[1].port)
            assert (await produce(producer, 2, message_set(MESSAGES, 1)))[:2] == (0, 2)
            await producer.close()
            assert [one.offset for one in read_message_set((await asyncio.wait_for(waiting, 60))[2])] == [2, 3, 4]

    def append(broker: LocalBroker, log: Log, batch: bytearray) -> None:
        log.append_as_leader(batch, 0, NOW, origin_is_client=False)
        log.update_high_watermark(log.log_end_offset)

    asyncio.run(main())


def marker() -> bytearray:
    return build_end_transaction_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, now_ms=NOW
    )


def test_new_clients_read_what_old_ones_wrote(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            await create(broker)
            await produce(client, 0, compressed_set(MESSAGES, 0, Codec.SNAPPY))
            body = await client.ask(ApiKey.FETCH, 4, fetch_v4())
            records = body[4 + 4 + len(TOPIC) + 4 + 4 + 2 + 8 + 8 + 4 + 4 :]
            assert [Message(*record[:4]) for record in read_records(records)] == seen(MESSAGES, 0)

    asyncio.run(main())


def test_a_topic_that_is_all_zstd_needs_a_client_that_knows_it(tmp_path: Path) -> None:
    """Fetch 10 told brokers that the client has zstd (KIP-110)."""

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            log = await create(broker, compression_type="zstd")
            append(broker, log, build_batch([Record(0, NOW, None, b"v")]))
            body = await client.ask(ApiKey.FETCH, 4, fetch_v4())
            (error,) = struct.unpack_from(">h", body, 4 + 4 + len(TOPIC) + 4 + 4)
            assert error == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

    asyncio.run(main())
