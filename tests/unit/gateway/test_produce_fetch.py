"""Produce and Fetch in every version against a real log, as a client sees them."""

from __future__ import annotations

import asyncio
import datetime
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
from kio.static.primitive import Records

from rayka.errors import ErrorCode
from rayka.gateway.handlers.fetch.sessions import FINAL_EPOCH, INITIAL_EPOCH
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch, read_records
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.requests import TOPIC, produce_v3
from tests.unit.gateway.wire_client import WireClient, connected, encode, request_frame, response_body

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)


def records(*values: bytes, codec: Codec = Codec.NONE) -> bytes:
    return bytes(
        build_batch([Record(index, 1_000 + index, None, value, ()) for index, value in enumerate(values)], codec=codec)
    )


def kio(api: str, version: int, side: str) -> Any:
    import importlib

    return importlib.import_module(f"kio.schema.{api}.v{version}.{side}")


def only(cls: Any, **values: Any) -> Any:
    """An instance with those of the values that this version has."""
    return cls(**{name: value for name, value in values.items() if name in cls.__dataclass_fields__})


def produce_request(
    version: int,
    topic: str,
    topic_id: uuid.UUID,
    data: dict[int, bytes | None],
    acks: int = 1,
    timeout_ms: int = 1000,
) -> Any:
    types = kio("produce", version, "request")
    partitions = tuple(
        types.PartitionProduceData(index=index, records=None if value is None else Records(value))
        for index, value in data.items()
    )
    return only(
        types.ProduceRequest,
        transactional_id=None,
        acks=acks,
        timeout=datetime.timedelta(milliseconds=timeout_ms),
        topic_data=(only(types.TopicProduceData, name=topic, topic_id=topic_id, partition_data=partitions),),
    )


def fetch_request(
    version: int,
    topic: str,
    topic_id: uuid.UUID | None,
    offsets: dict[int, int],
    *,
    max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    session: tuple[int, int] = (0, FINAL_EPOCH),
    forgotten: tuple[int, ...] = (),
    leader_epoch: int = -1,
) -> Any:
    types = kio("fetch", version, "request")
    partitions = tuple(
        only(
            types.FetchPartition,
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=max_bytes,
        )
        for partition, offset in offsets.items()
    )
    topics = (only(types.FetchTopic, topic=topic, topic_id=topic_id, partitions=partitions),) if offsets else ()
    forget = ()
    if forgotten:
        forget = (only(types.ForgottenTopic, topic=topic, topic_id=topic_id, partitions=forgotten),)
    return only(
        types.FetchRequest,
        replica_id=-1,
        max_wait=datetime.timedelta(milliseconds=max_wait_ms),
        min_bytes=min_bytes,
        max_bytes=50 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=forget,
        rack_id="",
    )


async def call(client: WireClient, key: ApiKey, version: int, request: Any) -> Any:
    """Call with kio's classes on both sides."""
    from kio.serial import entity_reader

    from tests.unit.gateway.wire_client import encode

    body = await client.ask(key, version, encode(request))
    response = kio(key.name.lower(), version, "response")
    entity, size = entity_reader(getattr(response, f"{key.title}Response"))(body, 0)
    assert size == len(body)
    return entity


async def create(broker: LocalBroker, name: str = "orders", partitions: int = 2) -> uuid.UUID:
    (result,) = await broker.controller.create_topics(
        [NewTopic(name, partitions)], validate_only=False, timeout_ms=1000
    )
    assert result.error == ErrorCode.NONE
    return broker.image.topics[name].topic_id


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_appends_and_tells_the_offset(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            for expected in (0, 2):
                data: dict[int, bytes | None] = {0: records(b"a", b"b"), 1: records(b"c")}
                response = await call(
                    client, ApiKey.PRODUCE, version, produce_request(version, "orders", topic_id, data)
                )
                (topic,) = response.responses
                first, second = topic.partition_responses
                assert (first.index, first.error_code, first.base_offset) == (0, 0, expected)
                assert (second.index, second.error_code, second.base_offset) == (1, 0, expected // 2)
                assert getattr(topic, "topic_id", topic_id) == topic_id
                assert getattr(topic, "name", "orders") == "orders"

    asyncio.run(main())


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_returns_the_bytes_produced(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            sent = produce_request(9, "orders", topic_id, {0: records(b"a", b"b"), 1: records(b"c", codec=Codec.LZ4)})
            await call(client, ApiKey.PRODUCE, 9, sent)
            response = await call(
                client, ApiKey.FETCH, version, fetch_request(version, "orders", topic_id, {0: 0, 1: 0, 7: 0})
            )
            (topic,) = response.responses
            assert getattr(topic, "topic_id", topic_id) == topic_id
            first, second, missing = topic.partitions
            assert [record.value for record in read_records(first.records)] == [b"a", b"b"]
            assert [record.value for record in read_records(second.records)] == [b"c"]
            assert (first.partition_index, first.error_code, first.high_watermark) == (0, 0, 2)
            assert (first.last_stable_offset, second.high_watermark) == (2, 1)
            assert getattr(first, "log_start_offset", 0) == 0
            assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert not missing.records

    asyncio.run(main())


REFUSED = {
    "null records": (3, None, ErrorCode.INVALID_RECORD),
    "no records": (3, b"", ErrorCode.INVALID_RECORD),
    "less than a batch": (9, bytes(60), ErrorCode.INVALID_RECORD),
    "magic 1": (9, struct.pack(">qiibI", 0, 50, 0, 1, 0) + bytes(41), ErrorCode.INVALID_RECORD),
    "two batches": (9, records(b"a") + records(b"b"), ErrorCode.INVALID_RECORD),
    "zstd before version 7": (6, records(b"a" * 100, codec=Codec.ZSTD), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "a wrong CRC": (9, records(b"a")[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_records_are_refused_and_the_others_appended(name: str, tmp_path: Path) -> None:
    version, bad, error = REFUSED[name]

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            request = produce_request(version, "orders", topic_id, {0: bad, 1: records(b"good")})
            response = await call(client, ApiKey.PRODUCE, version, request)
            first, second = response.responses[0].partition_responses
            assert (first.error_code, first.base_offset) == (error, -1)
            assert (second.error_code, second.base_offset) == (0, 0)
            if version >= 8:
                assert first.error_message

    asyncio.run(main())


def test_zstd_is_taken_from_version_7_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            request = produce_request(7, "orders", topic_id, {0: records(b"a" * 100, codec=Codec.ZSTD)})
            response = await call(client, ApiKey.PRODUCE, 7, request)
            assert response.responses[0].partition_responses[0].error_code == 0

    asyncio.run(main())


@pytest.mark.parametrize(("acks", "error"), [(-1, 0), (1, 0), (2, 21), (-2, 21), (3000, 21)])
def test_acks(acks: int, error: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            request = produce_request(9, "orders", topic_id, {0: records(b"a")}, acks=acks)
            response = await call(client, ApiKey.PRODUCE, 9, request)
            assert response.responses[0].partition_responses[0].error_code == error

    asyncio.run(main())


def test_records_outside_of_a_transaction_need_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            await create(broker)
            body = await client.ask(ApiKey.PRODUCE, 3, produce_v3(records(b"a"), transactional_id=b"t"))
            assert struct.unpack_from(">h", body, 4 + len(TOPIC) + 8) == (ErrorCode.NONE,)

    asyncio.run(main())


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_a_transactional_batch_without_a_transactional_id_is_refused(version: int, tmp_path: Path) -> None:
    """Kafka's answer to all partitions of the request; none of them gets an open transaction."""

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            record = [Record(0, 1_000, None, b"v", ())]
            transaction = bytes(
                build_batch(record, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
            )
            for before in (records(b"a"), None):
                if before is not None:
                    await call(
                        client, ApiKey.PRODUCE, version, produce_request(version, "orders", topic_id, {0: before})
                    )
                data: dict[int, bytes | None] = {0: transaction}
                response = await call(
                    client, ApiKey.PRODUCE, version, produce_request(version, "orders", topic_id, data)
                )
                (answer,) = response.responses[0].partition_responses
                assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            both: dict[int, bytes | None] = {0: transaction, 1: records(b"b")}
            response = await call(client, ApiKey.PRODUCE, version, produce_request(version, "orders", topic_id, both))
            assert {one.error_code for one in response.responses[0].partition_responses} == {53}
            ends = {one.topic_partition.partition: one.log.last_stable_offset for one in broker.partitions.replicas}
            assert ends == {0: 1, 1: 0}

    asyncio.run(main())


@pytest.mark.parametrize("version", range(8, 14))
def test_bad_records_are_named(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            await broker.controller.create_topics(
                [NewTopic("orders", 1, configs={"cleanup.policy": "compact"})], validate_only=False, timeout_ms=1000
            )
            topic_id = broker.image.topics["orders"].topic_id
            data = build_batch([Record(0, 1, None if index % 4 == 1 else b"k", b"v", ()) for index in range(6)])
            request = produce_request(version, "orders", topic_id, {0: bytes(data)})
            response = await call(client, ApiKey.PRODUCE, version, request)
            (answer,) = response.responses[0].partition_responses
            message = "Compacted topic cannot accept message without key in topic partition orders-0"
            assert answer.error_code == ErrorCode.INVALID_RECORD
            named = [(one.batch_index, one.batch_index_error_message) for one in answer.record_errors]
            assert named == [(1, message), (5, message)]
            assert answer.error_message.startswith("One or more records have been rejected due to 2 record errors")

    asyncio.run(main())


@pytest.mark.parametrize(("client_id", "error"), [(b"test", 17), (b"__admin_client", 0)])
def test_only_the_admin_client_may_produce_to_internal_topics(client_id: bytes, error: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker, "__consumer_offsets", 1)
            for version in (9, 9):
                keyed = bytes(build_batch([Record(0, 1_000, b"key", b"a", ())]))
                request = produce_request(version, "__consumer_offsets", topic_id, {0: keyed})
                frame = request_frame(ApiKey.PRODUCE, version, encode(request), client_id=client_id)
                client.writer.write(frame)
                body = response_body(ApiKey.PRODUCE, version, await client.receive())
                name_size = 1 + len("__consumer_offsets")
                assert struct.unpack_from(">ih", body, 1 + name_size + 1) == (0, error)

    asyncio.run(main())


def test_unknown_topic_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            await create(broker)
            unknown = uuid.uuid4()
            produced = await call(client, ApiKey.PRODUCE, 13, produce_request(13, "", unknown, {0: records(b"a")}))
            assert produced.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert produced.responses[0].topic_id == unknown
            fetched = await call(client, ApiKey.FETCH, 13, fetch_request(13, "", unknown, {3: 0}, max_wait_ms=30_000))
            assert fetched.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert fetched.responses[0].partitions[0].partition_index == 3

    asyncio.run(main())


@pytest.mark.parametrize("version", [12, 13, 18])
def test_the_leader_refuses_a_fetch_by_the_id_of_the_topic_before(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process may not have heard yet that the topic was created again: the id says which one the client reads."""

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            old, image = await create(broker), broker.image
            for _ in range(2):
                await call(client, ApiKey.PRODUCE, 9, produce_request(9, "orders", old, {0: records(b"a")}))
                fetched = await call(client, ApiKey.FETCH, version, fetch_request(version, "orders", old, {0: 0}))
                assert fetched.responses[0].partitions[0].error_code == 0
            await broker.controller.delete_topics(["orders"], timeout_ms=1000)
            new = await create(broker)
            await call(client, ApiKey.PRODUCE, 9, produce_request(9, "orders", new, {0: records(b"b")}))
            monkeypatch.setattr(LocalBroker, "image", image)
            for _ in range(2):
                fetched = await call(client, ApiKey.FETCH, version, fetch_request(version, "orders", old, {0: 0}))
                error = fetched.responses[0].partitions[0].error_code
                assert error == (ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else 0), "a name is any topic's"

    asyncio.run(main())


def test_a_session_is_told_that_the_leader_has_another_topic_before_this_process_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kafka tells the two apart. librdkafka, which has no sessions, gives INCONSISTENT_TOPIC_ID to its program as an
    error; after UNKNOWN_TOPIC_ID it asks for the metadata and goes on."""

    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            old, image = await create(broker), broker.image
            first = fetch_request(13, "", old, {0: 0}, session=(0, INITIAL_EPOCH))
            session_id = (await call(client, ApiKey.FETCH, 13, first)).session_id
            await broker.controller.delete_topics(["orders"], timeout_ms=1000)
            await create(broker)
            monkeypatch.setattr(LocalBroker, "image", image)

            async def error(session: tuple[int, int]) -> int:
                partitions: dict[int, int] = {0: 0} if session[0] == 0 else {}
                request = fetch_request(13, "", old if partitions else None, partitions, session=session)
                response = await call(client, ApiKey.FETCH, 13, request)
                return int(response.responses[0].partitions[0].error_code)

            assert await error((session_id, 1)) == ErrorCode.INCONSISTENT_TOPIC_ID
            assert await error((0, INITIAL_EPOCH)) == ErrorCode.UNKNOWN_TOPIC_ID
            assert await error((0, FINAL_EPOCH)) == ErrorCode.UNKNOWN_TOPIC_ID

    asyncio.run(main())


@pytest.mark.parametrize("version", [12, 13])
def test_the_leader_refuses_a_batch_by_the_id_of_the_topic_before(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            old, image = await create(broker), broker.image

            async def produce(topic_id: uuid.UUID, data: dict[int, bytes | None]) -> list[int]:
                answer = await call(client, ApiKey.PRODUCE, version, produce_request(version, "orders", topic_id, data))
                return [partition.error_code for partition in answer.responses[0].partition_responses]

            assert await produce(old, {0: records(b"a")}) == [0]
            await broker.controller.delete_topics(["orders"], timeout_ms=1000)
            new = await create(broker)
            with monkeypatch.context() as patched:
                patched.setattr(LocalBroker, "image", image)
                error = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else 0  # a name is any topic's
                assert await produce(old, {0: records(b"b")}) == [error], "the request repeats the one before"
                assert await produce(old, {0: records(b"b"), 1: records(b"c")}) == [error, error]
            for _ in range(2):
                assert await produce(new, {0: records(b"d")}) == [0]

    asyncio.run(main())


def test_a_session_tells_a_topic_that_is_gone_from_one_created_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            first = fetch_request(13, "", topic_id, {0: 0}, session=(0, INITIAL_EPOCH))
            session_id = (await call(client, ApiKey.FETCH, 13, first)).session_id

            async def error(epoch: int) -> ErrorCode:
                again = fetch_request(13, "", None, {}, session=(session_id, epoch))
                response = await call(client, ApiKey.FETCH, 13, again)
                ((partition,),) = [topic.partitions for topic in response.responses]
                return ErrorCode(partition.error_code)

            await broker.controller.delete_topics(["orders"], 1_000)
            assert await error(1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await create(broker)
            assert await error(2) is ErrorCode.INCONSISTENT_TOPIC_ID
            stale = await call(client, ApiKey.FETCH, 13, fetch_request(13, "", topic_id, {0: 0}))
            assert stale.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    asyncio.run(main())


def test_long_poll_ends_with_data_and_with_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            empty = await call(client, ApiKey.FETCH, 12, fetch_request(12, "orders", topic_id, {0: 0}, max_wait_ms=20))
            assert not empty.responses[0].partitions[0].records
            waiting = asyncio.ensure_future(
                call(client, ApiKey.FETCH, 12, fetch_request(12, "orders", topic_id, {0: 0}, max_wait_ms=60_000))
            )
            other = await WireClient.connect(client.writer.get_extra_info("peername")[1])
            await call(other, ApiKey.PRODUCE, 9, produce_request(9, "orders", topic_id, {0: records(b"late")}))
            response = await asyncio.wait_for(waiting, 60)
            (record,) = read_records(response.responses[0].partitions[0].records)
            assert record.value == b"late"
            await other.close()

    asyncio.run(main())


def test_offset_out_of_range_and_epochs(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            for offset, epoch, error in ((5, -1, 1), (0, 99, 75), (0, 0, 0)):
                request = fetch_request(12, "orders", topic_id, {0: offset}, leader_epoch=epoch, max_wait_ms=1)
                response = await call(client, ApiKey.FETCH, 12, request)
                assert response.responses[0].partitions[0].error_code == error

    asyncio.run(main())


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_a_session_answers_only_what_is_new(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)

            async def fetch(epoch: int, offsets: dict[int, int], forgotten: tuple[int, ...] = ()) -> Any:
                request = fetch_request(
                    version, "orders", topic_id, offsets, session=(session_id, epoch), forgotten=forgotten
                )
                return await call(client, ApiKey.FETCH, version, request)

            session_id = 0
            full = await fetch(INITIAL_EPOCH, {0: 0, 1: 0})
            session_id = full.session_id
            assert session_id > 0
            assert len(full.responses[0].partitions) == 2
            assert (await fetch(1, {})).responses == ()
            await call(client, ApiKey.PRODUCE, 9, produce_request(9, "orders", topic_id, {1: records(b"x")}))
            (topic,) = (await fetch(2, {})).responses
            (partition,) = topic.partitions
            assert partition.partition_index == 1
            assert [record.value for record in read_records(partition.records)] == [b"x"]
            (topic,) = (await fetch(3, {0: 77})).responses
            assert {p.partition_index: p.error_code for p in topic.partitions} == {0: 1, 1: 0}
            (topic,) = (await fetch(4, {0: 0, 1: 1})).responses
            assert [p.partition_index for p in topic.partitions] == [0], "the error is over, and the reader must know"
            assert (await fetch(5, {}, forgotten=(0,))).responses == ()
            stale = await fetch(5, {})
            assert stale.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            assert (await fetch(6, {}, forgotten=(1,))).session_id == 0
            assert (await fetch(7, {})).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    asyncio.run(main())


def test_a_session_of_names_is_not_one_of_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            request = fetch_request(12, "orders", topic_id, {0: 0}, session=(0, INITIAL_EPOCH))
            session_id = (await call(client, ApiKey.FETCH, 12, request)).session_id
            request = fetch_request(13, "orders", topic_id, {}, session=(session_id, 1))
            response = await call(client, ApiKey.FETCH, 13, request)
            assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    asyncio.run(main())


def test_fetch_limits(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path, {"fetch.max.bytes": "2000"}) as (client, broker):
            topic_id = await create(broker)
            data: dict[int, bytes | None] = {0: records(b"x" * 1500), 1: records(b"y" * 1500)}
            await call(client, ApiKey.PRODUCE, 9, produce_request(9, "orders", topic_id, data))
            response = await call(
                client, ApiKey.FETCH, 12, fetch_request(12, "orders", topic_id, {0: 0, 1: 0}, max_bytes=10)
            )
            first, second = response.responses[0].partitions
            assert [record.value for record in read_records(first.records)] == [b"x" * 1500], "one batch always fits"
            assert not second.records

    asyncio.run(main())
