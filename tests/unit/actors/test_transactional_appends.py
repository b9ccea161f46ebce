"""The leader's part in transactions: it asks before one begins, keeps the producer's order, and writes the markers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rayka.actors.channel.requests import DescribeProducers, FetchParams, WriteTxnMarkers
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.server import ReplicaServer
from rayka.config import LogConfig
from rayka.errors import ErrorCode
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.types import (
    AppendParams,
    AppendRequest,
    AppendResult,
    FetchPartition,
    FetchResult,
    IsolationLevel,
    TopicPartition,
    TransactionSupport,
    TxnMarker,
    VerificationRequest,
)
from tests.support.logs import batch

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)
ABSENT = TopicPartition("absent", 0)
PRODUCER = 9


class Leader:
    """A server of two partitions. The test is the coordinator, with `answers` to the `questions` that it heard."""

    def __init__(self, path: Path) -> None:
        directory = LogDirectory.open(str(path), RealFiles(), now_ms=0)
        self.replicas = Replicas()
        for name in (ORDERS, PAYMENTS):
            partition = Partition(directory.open_log(name, uuid.uuid4(), LogConfig(), now_ms=0), uuid.uuid4())
            partition.become_leader(3)
            self.replicas.add(partition)
        self.server = ReplicaServer(self.replicas, directory, DiskThread())
        self.server.verify_with(self.verify)
        self.questions: list[tuple[TopicPartition, ...]] = []
        self.answers: asyncio.Queue[ErrorCode] = asyncio.Queue()

    async def verify(self, request: VerificationRequest) -> Sequence[ErrorCode]:
        self.questions.append(request.partitions)
        return [await self.answers.get()] * len(request.partitions)

    def append(
        self,
        sequence: int,
        *names: TopicPartition,
        epoch: int = 0,
        support: TransactionSupport = TransactionSupport.VERIFY,
        topic_id: bytes | None = None,
    ) -> asyncio.Future[Sequence[AppendResult]]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        requests = []
        for name in names:
            data = bytearray(
                batch(b"v", producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence, is_transactional=True)
            )
            requests.append(AppendRequest(name, memoryview(data), 3, topic_id))
        params = AppendParams(-1, 1000, transactional_id="t", transaction_support=support)
        self.server.append(requests, params, future.set_result)
        return future

    async def ask(self, request: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.server.ask(request, future.set_result)
        return await future

    async def mark(self, *names: TopicPartition, epoch: int = 0, is_committed: bool = True) -> Any:
        return await self.ask(WriteTxnMarkers((TxnMarker(PRODUCER, epoch, 0, is_committed, 0, names),)))


def check(path: Path, test: Callable[[Leader], Awaitable[None]]) -> None:
    async def run() -> None:
        leader = Leader(path)
        await asyncio.wait_for(test(leader), 60)
        await leader.server.stop()

    uvloop.run(run())


def errors(results: Sequence[AppendResult]) -> list[int]:
    return [result.error for result in results]


def test_no_coordinator_is_asked_about_a_batch_for_a_topic_that_was_deleted(tmp_path: Path) -> None:
    """It would add the new topic of that name to the transaction."""

    async def test(leader: Leader) -> None:
        assert errors(await leader.append(0, ORDERS, topic_id=uuid.uuid4().bytes)) == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert leader.questions == []

    check(tmp_path, test)


def test_a_producers_batches_wait_for_the_answer_and_keep_their_order(tmp_path: Path) -> None:
    async def test(leader: Leader) -> None:
        sent = [leader.append(sequence, ORDERS) for sequence in range(4)]
        await asyncio.sleep(0)
        assert not any(one.done() for one in sent)
        leader.answers.put_nowait(ErrorCode.NONE)
        results = [(await one)[0] for one in sent]
        assert [(result.error, result.base_offset) for result in results] == [(0, offset) for offset in range(4)]
        assert leader.questions == [(ORDERS,)]
        last = leader.append(4, ORDERS)
        assert last.done(), "a batch of an open transaction waits for nobody"

    check(tmp_path, test)


def test_one_question_is_asked_for_all_partitions_of_a_request(tmp_path: Path) -> None:
    async def test(leader: Leader) -> None:
        leader.answers.put_nowait(ErrorCode.NONE)
        assert errors(await leader.append(0, ORDERS, PAYMENTS)) == [0, 0]
        assert leader.questions == [(ORDERS, PAYMENTS)]

    check(tmp_path, test)


@pytest.mark.parametrize(
    ("answer", "support", "error"),
    [
        (ErrorCode.PRODUCER_FENCED, TransactionSupport.VERIFY, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionSupport.VERIFY, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionSupport.ABORTABLE_ERRORS, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, TransactionSupport.VERIFY, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, TransactionSupport.ADD_PARTITIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_COORDINATOR, TransactionSupport.ADD_PARTITIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, TransactionSupport.VERIFY, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_batch_without_a_transaction_is_refused(
    answer: ErrorCode, support: TransactionSupport, error: ErrorCode, tmp_path: Path
) -> None:
    async def test(leader: Leader) -> None:
        leader.answers.put_nowait(answer)
        assert errors(await leader.append(0, ORDERS, support=support)) == [error]
        assert leader.replicas.get(ORDERS).log.log_end_offset == 0

    check(tmp_path, test)


def test_a_partition_that_is_not_here_fails_alone(tmp_path: Path) -> None:
    async def test(leader: Leader) -> None:
        leader.answers.put_nowait(ErrorCode.NONE)
        assert errors(await leader.append(0, ABSENT, ORDERS)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
        assert leader.questions == [(ORDERS,)]

    check(tmp_path, test)


def test_a_marker_that_comes_before_the_answer_ends_the_verification(tmp_path: Path) -> None:
    async def test(leader: Leader) -> None:
        delayed = leader.append(0, ORDERS)
        await asyncio.sleep(0)
        assert await leader.mark(ORDERS, is_committed=False) == ((0,),)
        leader.answers.put_nowait(ErrorCode.NONE)
        assert errors(await delayed) == [ErrorCode.INVALID_TXN_STATE]

    check(tmp_path, test)


def test_a_fetch_of_committed_records_waits_for_the_marker(tmp_path: Path) -> None:
    async def test(leader: Leader) -> None:
        fetched: asyncio.Future[list[FetchResult]] = asyncio.get_running_loop().create_future()
        partitions = (FetchPartition(ORDERS, 0, 1 << 20),)
        committed = IsolationLevel.READ_COMMITTED
        leader.server.fetch(FetchParams(partitions, 15.0, 1, 1 << 20, committed), fetched.set_result)
        leader.answers.put_nowait(ErrorCode.NONE)
        for sequence in range(3):
            assert errors(await leader.append(sequence, ORDERS)) == [0]
        assert not fetched.done()
        await leader.mark(ORDERS)
        (result,) = await fetched
        assert (result.last_stable_offset, result.size > 0) == (4, True)

    check(tmp_path, test)


def test_markers_are_answered_for_each_partition(tmp_path: Path) -> None:
    async def test(leader: Leader) -> None:
        leader.answers.put_nowait(ErrorCode.NONE)
        await leader.append(0, ORDERS)
        assert await leader.mark(ORDERS, ABSENT, PAYMENTS) == ((0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),)
        assert await leader.ask(WriteTxnMarkers(())) == ()
        answers = await leader.ask(DescribeProducers((ORDERS, ABSENT)))
        assert [answer.error for answer in answers] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        (producer,) = answers[0].producers
        assert (producer.producer_id, producer.coordinator_epoch, producer.current_txn_start_offset) == (
            PRODUCER,
            0,
            -1,
        )

    check(tmp_path, test)
