"""An idempotent producer whose leader dies while several of its batches are under way on one connection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kio.serial import entity_reader

from rayka.errors import ErrorCode
from rayka.gateway.handlers.produce.lost_batches import EXPIRY_S, LostBatches
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.storage.format.records import read_records
from rayka.types import AppendParams, AppendRequest, AppendResult, TopicPartition
from tests.support.faulty_partitions import ANSWER_LOST, REQUEST_LOST, FaultyPartitions
from tests.unit.gateway.test_produce_fetch import create, kio, produce_request
from tests.unit.gateway.test_produce_template import batch
from tests.unit.gateway.wire_client import WireClient, connected, encode, request_frame, response_body, serving

VERSION = 9
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT


class DyingLeader:
    """A leader that dies with some batches under way. The next batch finds its next start.

    It writes the first `written` of them, and answers none. The batch after them comes when their loss is known.
    """

    def __init__(self, partitions: Any, *, answered: int, lost: int, written: int) -> None:
        self._partitions = partitions
        self._answered, self._lost, self._written = answered, lost, written
        self._waiting: list[asyncio.Future[list[AppendResult]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partitions, name)

    def append(self, requests: Any, params: AppendParams) -> asyncio.Future[list[AppendResult]]:
        if self._answered:
            self._answered -= 1
        elif self._lost:
            return self._lose(requests, params)
        answer: asyncio.Future[list[AppendResult]] = self._partitions.append(requests, params)
        return answer

    def _lose(self, requests: Any, params: AppendParams) -> asyncio.Future[list[AppendResult]]:
        self._lost -= 1
        if self._written:
            self._written -= 1
            self._partitions.append(requests, params)
        future: asyncio.Future[list[AppendResult]] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if not self._lost:
            for waiting in self._waiting:
                waiting.set_result([AppendResult(TIMED_OUT)])
        return future


def values(broker: Any) -> list[bytes | None]:
    log = broker.partitions.replicas.get(TopicPartition("orders", 0)).log
    written = log.read(0, 1 << 20, log.high_watermark)
    return [record.value for record in read_records(Path(written.path).read_bytes()[: written.size])]


@pytest.mark.parametrize("first_is_known", [True, False])
def test_librdkafka_writes_every_record_once_when_a_leader_dies(tmp_path: Path, first_is_known: bool) -> None:
    """With an error of sequence for the third batch librdkafka would begin a new epoch and send the first again."""

    def produce(bootstrap: str) -> list[Any]:
        told: list[Any] = []
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1}
        producer = Producer({**settings, "log_level": 0, "delivery.timeout.ms": 8000})
        producer.produce("orders", b"0", partition=0, on_delivery=lambda error, _: told.append(error))
        if first_is_known:
            producer.flush(5)
        for number in range(1, 8):
            producer.produce("orders", str(number), partition=0, on_delivery=lambda error, _: told.append(error))
        producer.flush(15)
        return told

    async def main() -> None:
        async with serving(tmp_path) as (listener, broker):
            new = [NewTopic("orders", 1)]
            await broker.controller.create_topics(new, validate_only=False, timeout_ms=1000)
            leader: Any = broker.partitions
            if first_is_known:
                broker.partitions = DyingLeader(leader, answered=1, lost=2, written=1)  # type: ignore[assignment]
            else:
                broker.partitions = DyingLeader(leader, answered=0, lost=2, written=0)  # type: ignore[assignment]
            told = await asyncio.to_thread(produce, f"127.0.0.1:{listener.port}")
            assert told == [None] * 8
            assert values(broker) == [b"%d" % number for number in range(8)]

    asyncio.run(main())


async def send_all(client: WireClient, topic_id: Any, sequences: list[int]) -> list[int]:
    """Send batches one after the other without waiting; the errors that come back."""
    for sequence in sequences:
        request = produce_request(VERSION, "orders", topic_id, {0: batch(sequence)}, acks=-1)
        client.writer.write(request_frame(ApiKey.PRODUCE, VERSION, encode(request)))
    frames = [await client.receive() for _ in sequences]
    return [error_of(frame) for frame in frames]


def error_of(frame: bytes) -> int:
    body = response_body(ApiKey.PRODUCE, VERSION, frame)
    response, _ = entity_reader(kio("produce", VERSION, "response").ProduceResponse)(body, 0)
    ((answer,),) = [topic.partition_responses for topic in response.responses]
    return int(answer.error_code)


def test_batches_behind_a_lost_one_wait_for_it_to_be_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, broker):
            topic_id = await create(broker)
            faulty: Any = FaultyPartitions(broker.partitions)
            broker.partitions = faulty
            assert await send_all(client, topic_id, [0]) == [0]
            faulty.fail_appends(ANSWER_LOST, REQUEST_LOST)
            assert await send_all(client, topic_id, [1, 2, 3, 4]) == [TIMED_OUT, TIMED_OUT, NOT_LEADER, NOT_LEADER]
            assert await send_all(client, topic_id, [4]) == [NOT_LEADER]
            assert await send_all(client, topic_id, [1, 2, 3, 4]) == [0, 0, 0, 0]
            assert await send_all(client, topic_id, [9]) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
            assert len(values(broker)) == 5

    asyncio.run(main())


def request_of(sequence: int, producer_id: int = 7, partition: int = 0, epoch: int = 0) -> AppendRequest:
    records = batch(sequence, producer_id, epoch=epoch)
    return AppendRequest(TopicPartition("orders", partition), memoryview(bytearray(records)))


def test_only_later_batches_of_the_same_producer_and_partition_are_held_back() -> None:
    lost = LostBatches()
    lost.settle(request_of(5), AppendResult(TIMED_OUT), 0)
    assert lost.holds_back(request_of(6), 1)
    assert not lost.holds_back(request_of(4), 1)
    assert not lost.holds_back(request_of(6, producer_id=8), 1)
    assert not lost.holds_back(request_of(6, partition=1), 1)
    lost.settle(request_of(4), AppendResult(NOT_LEADER), 1)
    assert lost.holds_back(request_of(5), 1), "the earliest lost batch counts"
    assert not lost.holds_back(request_of(4), 1)
    assert not lost.holds_back(request_of(5), 1), "it was sent again"
    assert not lost


def test_a_new_epoch_ends_it_and_counts_from_the_beginning() -> None:
    lost = LostBatches()
    lost.settle(request_of(5), AppendResult(TIMED_OUT), 0)
    assert not lost.holds_back(request_of(0, epoch=1), 1)
    assert not lost.holds_back(request_of(6, epoch=1), 1)


def test_sequences_that_have_begun_again_at_0_come_later() -> None:
    lost = LostBatches()
    lost.settle(request_of(2**31 - 1), AppendResult(TIMED_OUT), 0)
    assert lost.holds_back(request_of(0), 1)
    assert not lost.holds_back(request_of(2**31 - 2), 1)


def test_a_sequence_error_after_a_lost_batch_becomes_the_error_of_the_loss() -> None:
    lost = LostBatches()
    lost.settle(request_of(5), AppendResult(NOT_LEADER), 0)
    later = lost.settle(request_of(6), AppendResult(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    assert later.error == NOT_LEADER
    assert lost.settle(request_of(4), AppendResult(0, 40), 0) == AppendResult(0, 40)


def test_a_batch_that_is_never_sent_again_holds_nothing_back_for_ever() -> None:
    lost = LostBatches()
    lost.settle(request_of(5), AppendResult(TIMED_OUT), 0)
    assert lost.holds_back(request_of(6), EXPIRY_S - 1)
    assert not lost.holds_back(request_of(6), EXPIRY_S + 1)
    assert not lost


def test_producers_without_sequences_are_not_held_back() -> None:
    lost = LostBatches()
    lost.settle(request_of(-1, producer_id=-1), AppendResult(TIMED_OUT), 0)
    assert not lost
