"""Requests of one connection that begin alike, and those that only seem to."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.wire.schema import ApiKey
from rayka.storage.format.batch import CRC_OFFSET
from rayka.storage.format.records import Record, build_batch
from rayka.types import AppendParams
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.test_produce_fetch import PRODUCE_VERSIONS, call, create, produce_request
from tests.unit.gateway.wire_client import WireClient, connected, encode, request_frame


def batch(sequence: int, producer_id: int = 7, size: int = 5, epoch: int = 0) -> bytes:
    record = Record(0, 1_000, None, b"v" * size, ())
    return bytes(build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


class Producer:
    """Sends single batches and gives the partition's answer."""

    def __init__(self, client: WireClient, version: int, topic_id: uuid.UUID, topic: str = "orders") -> None:
        self._client, self._version, self._topic_id, self._topic = client, version, topic_id, topic

    async def send(self, records: bytes, partition: int = 0) -> Any:
        request = produce_request(self._version, self._topic, self._topic_id, {partition: records})
        response = await call(self._client, ApiKey.PRODUCE, self._version, request)
        ((answer,),) = [topic.partition_responses for topic in response.responses]
        assert answer.index == partition
        return answer


async def offsets(broker: LocalBroker) -> dict[int, int]:
    return {one.topic_partition.partition: one.log.log_end_offset for one in broker.partitions.replicas}


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_every_answer_is_that_of_its_own_request(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            producer = Producer(client, version, await create(broker))
            sizes = [5, 200, 20_000, 5, 0]
            for sequence, size in enumerate(sizes):
                answer = await producer.send(batch(sequence, size=size))
                assert (answer.error_code, answer.base_offset) == (0, sequence)
            other = await producer.send(batch(0, producer_id=8), partition=1)
            assert (other.error_code, other.base_offset) == (0, 0)
            back = await producer.send(batch(len(sizes)))
            assert (back.error_code, back.base_offset) == (0, len(sizes))
            assert await offsets(broker) == {0: len(sizes) + 1, 1: 1}

    asyncio.run(main())


@pytest.mark.parametrize("version", [3, 9, 13])
def test_acks_and_timeout_of_each_request_reach_the_leader(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            append, asked = broker.partitions.append, []

            def note(requests: Any, params: AppendParams) -> Any:
                asked.append((params.acks, params.timeout_ms))
                return append(requests, params)

            broker.partitions.append = note  # type: ignore[method-assign]
            wanted = [(-1, 7_000), (-1, 7_000), (-1, 250), (1, 250)]
            for sequence, (acks, timeout_ms) in enumerate(wanted):
                request = produce_request(version, "orders", topic_id, {0: batch(sequence)}, acks, timeout_ms)
                await call(client, ApiKey.PRODUCE, version, request)
            assert asked == wanted

    asyncio.run(main())


@pytest.mark.parametrize("version", [5, 9, 13])
def test_errors_are_answered_and_the_next_request_is_served(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            producer = Producer(client, version, await create(broker))
            for sequence in (0, 1):
                await producer.send(batch(sequence))
            damaged = bytearray(batch(2))
            damaged[CRC_OFFSET] ^= 1
            assert (await producer.send(bytes(damaged))).error_code == ErrorCode.CORRUPT_MESSAGE
            assert (await producer.send(batch(5))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert (await producer.send(batch(2) + batch(3))).error_code == ErrorCode.INVALID_RECORD
            assert (await producer.send(b"")).error_code == ErrorCode.INVALID_RECORD
            assert (await producer.send(batch(1))).base_offset == 1, "a duplicate gets the offset of then"
            assert (await producer.send(batch(2))).base_offset == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("version", "error"), [(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)]
)
def test_a_topic_that_was_deleted_meanwhile_is_not_served(version: int, error: ErrorCode, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            producer = Producer(client, version, await create(broker))
            for sequence in (0, 1):
                await producer.send(batch(sequence))
            await broker.controller.delete_topics(["orders"], timeout_ms=1000)
            assert (await producer.send(batch(2))).error_code == error
            await create(broker)
            if version < 13:
                assert (await producer.send(batch(0))).base_offset == 0

    asyncio.run(main())


def test_a_topic_that_is_created_again_during_an_append_gets_nothing_for_the_old_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            append = broker.partitions.append

            def append_slowly(requests: Any, params: AppendParams) -> Any:
                """The answer is on its way while the topic is created again."""
                answered, answer = append(requests, params), asyncio.get_running_loop().create_future()
                again.append(asyncio.create_task(create_again(answer, answered.result())))
                return answer

            async def create_again(answer: Any, results: Any) -> None:
                await broker.controller.delete_topics(["orders"], timeout_ms=1000)
                await create(broker)
                answer.set_result(results)

            again: list[Any] = []
            broker.partitions.append = append_slowly  # type: ignore[method-assign]
            producer = Producer(client, 13, topic_id)
            assert (await producer.send(batch(0))).error_code == 0
            broker.partitions.append = append  # type: ignore[method-assign]
            assert (await producer.send(batch(1))).error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert await offsets(broker) == {0: 0, 1: 0}

    asyncio.run(main())


@pytest.mark.parametrize("end", [b"", b"\0\0\1"])
def test_a_frame_that_ends_wrongly_closes_the_connection(end: bytes, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            producer = Producer(client, 9, await create(broker))
            for sequence in (0, 1):
                await producer.send(batch(sequence))
            body = encode(produce_request(9, "orders", uuid.uuid4(), {0: batch(2)}))
            client.writer.write(request_frame(ApiKey.PRODUCE, 9, body[: -len(end) or -4] + end))
            assert await asyncio.wait_for(client.reader.read(1), 60) == b""
            assert (await offsets(broker))[0] == 2

    asyncio.run(main())
