"""What the shell of transaction and group coordinators does when a flush fails or a coordinator resigns."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rayka.actors.coordinator import context
from rayka.actors.coordinator.log import CoordinatorLog
from rayka.actors.coordinator.outside import Verified
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.config import BrokerConfig, LogConfig
from rayka.coordinator.groups.requests import (
    CommittedOffset,
    ListGroupsRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from rayka.coordinator.groups.spec import GROUPS
from rayka.coordinator.request import Request, TransactionalRequest
from rayka.coordinator.spec import CoordinatorSpec
from rayka.coordinator.transactions.requests import (
    AddPartitionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    MarkersWrittenRequest,
)
from rayka.coordinator.transactions.spec import TRANSACTIONS
from rayka.coordinator.transactions.state import TransactionState
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.types import TopicPartition, TransactionSupport, TxnMarker
from tests.unit.actors.test_coordinator_log import FewDescriptors, open_partition

ORDERS = TopicPartition("orders", 0)


def commit_of(offset: int) -> TxnOffsetCommitRequest:
    offsets = (CommittedOffset("orders", 0, offset),)
    return TxnOffsetCommitRequest("g", offsets, "t", 5, 0, TransactionSupport.ADD_PARTITIONS)


class Running:
    """A coordinator in this process; what it wants written is noted, and counts as written."""

    def __init__(self, path: Path, spec: CoordinatorSpec[Any]) -> None:
        self.files = FewDescriptors()
        self.partition, self.server = open_partition(path, self.files, LogConfig(flush_messages=1))
        self.runtime = CoordinatorRuntime(spec, self.server, BrokerConfig.parse({}), 1)
        self.runtime.outside = self
        self.performed: list[TransactionMarkers] = []
        self.epochs: list[int] = []
        self.may_report = asyncio.Event()
        self.may_report.set()

    async def verified(self, partition: Partition, request: TransactionalRequest[Any]) -> Verified:
        return ErrorCode.NONE, None

    async def perform(self, markers: TransactionMarkers, leader_epoch: int) -> Request[Any]:
        self.performed.append(markers)
        self.epochs.append(leader_epoch)
        await self.may_report.wait()
        return MarkersWrittenRequest(markers.transactional_id, markers.producer_id, markers.producer_epoch)

    async def start(self, query: Request[Any]) -> None:
        self.runtime.leads(self.partition)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        while isinstance(answer := await self.send(query), RaykaError) and answer.code is loading:
            await asyncio.sleep(0)

    @property
    def state(self) -> TransactionState:
        """Of the transactional id, durable or not."""
        state: TransactionState = self.runtime._coordinators[0]._core.transactions["t"].state
        return state

    def send(self, request: Request[Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.runtime.execute(0, request, future.set_result)
        return future


def check(path: Path, spec: CoordinatorSpec[Any], test: Callable[[Running], Awaitable[None]]) -> None:
    async def run() -> None:
        running = Running(path, spec)
        async with asyncio.timeout(20):
            await test(running)
        running.runtime.resign()
        await running.server.stop()

    asyncio.run(run())


def test_markers_are_written_though_the_flush_of_the_outcome_fails_at_first(tmp_path: Path) -> None:
    """The outcome is in the log, and nobody else would ask for the markers before the coordinator loads again."""

    async def end(running: Running) -> None:
        await running.start(ListTransactionsRequest())
        producer = await running.send(InitProducerIdRequest("t", 60_000, new_producer_id=5))
        await running.send(AddPartitionsRequest("t", producer.producer_id, producer.producer_epoch, (ORDERS,)))
        running.files.lacks = True
        refusal = await running.send(EndTxnRequest("t", producer.producer_id, producer.producer_epoch, True))
        assert isinstance(refusal, RaykaError)
        for _ in range(5):
            await asyncio.sleep(0)
        assert running.performed == [], "an outcome that is not on the device may not be known to others"
        running.files.lacks = False
        async with asyncio.timeout(10):
            while not running.performed:
                running.server.flush([running.partition])
                await asyncio.sleep(0.01)
        (markers,) = running.performed
        assert (markers.is_committed, markers.partitions) == (True, (ORDERS,))

    check(tmp_path, TRANSACTIONS, end)


def test_a_report_of_markers_whose_flush_fails_does_not_end_the_next_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions of an older client have the same epoch, so a report that came again would be taken for theirs."""
    monkeypatch.setattr(context, "_EFFECT_RETRY_S", 0.2)

    async def end_two(running: Running) -> None:
        await running.start(ListTransactionsRequest())
        producer = await running.send(InitProducerIdRequest("t", 60_000, new_producer_id=5))
        commit = EndTxnRequest("t", producer.producer_id, producer.producer_epoch, True)
        add = AddPartitionsRequest("t", producer.producer_id, producer.producer_epoch, (ORDERS,))
        running.may_report.clear()
        await running.send(add)
        await running.send(commit)
        while not running.performed:
            await asyncio.sleep(0)
        running.files.lacks = True
        running.may_report.set()
        while not running.files.refused:
            await asyncio.sleep(0)
        assert running.state is TransactionState.COMPLETE_COMMIT
        running.may_report.clear()
        running.files.lacks = False
        running.server._directory.disk.probe_succeeded()
        await running.send(add)
        await running.send(commit)
        while len(running.performed) < 2:
            await asyncio.sleep(0)
        for _ in range(30):
            await asyncio.sleep(0.01)
            assert running.state is TransactionState.PREPARE_COMMIT
        running.may_report.set()
        added = await running.send(dataclasses.replace(add, max_wait_ms=10_000))
        assert added.errors == (ErrorCode.NONE,)

    check(tmp_path, TRANSACTIONS, end_two)


def test_a_report_of_markers_that_cannot_be_written_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the transaction would be open for its producer until the coordinator loads again."""
    monkeypatch.setattr(context, "_EFFECT_RETRY_S", 0.01)
    append = CoordinatorLog.append

    def fail_once(log: CoordinatorLog, *records: Any) -> int:
        monkeypatch.setattr(CoordinatorLog, "append", append)
        raise RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    async def end(running: Running) -> None:
        await running.start(ListTransactionsRequest())
        producer = await running.send(InitProducerIdRequest("t", 60_000, new_producer_id=5))
        await running.send(AddPartitionsRequest("t", producer.producer_id, producer.producer_epoch, (ORDERS,)))
        running.may_report.clear()
        await running.send(EndTxnRequest("t", producer.producer_id, producer.producer_epoch, True))
        while not running.performed:
            await asyncio.sleep(0)
        monkeypatch.setattr(CoordinatorLog, "append", fail_once)
        running.may_report.set()
        while running.state is not TransactionState.COMPLETE_COMMIT:
            await asyncio.sleep(0.001)
        assert CoordinatorLog.append is append, "the first report was written"

    check(tmp_path, TRANSACTIONS, end)


@pytest.mark.parametrize("ends", [True, False])
def test_a_coordinator_that_has_loaded_ends_transactions_unasked(tmp_path: Path, ends: bool) -> None:
    """One whose outcome is in the log, and one whose time is over."""

    async def load(running: Running) -> None:
        await running.start(ListTransactionsRequest())
        producer = await running.send(InitProducerIdRequest("t", 300, new_producer_id=5))
        await running.send(AddPartitionsRequest("t", producer.producer_id, producer.producer_epoch, (ORDERS,)))
        running.may_report.clear()
        if ends:
            await running.send(EndTxnRequest("t", producer.producer_id, producer.producer_epoch, True))
        running.runtime.leaves(0)
        running.performed.clear()
        running.partition.become_leader(4)
        running.runtime.leads(running.partition)
        while not running.performed:
            await asyncio.sleep(0.001)
        assert running.epochs[-1] == 4
        assert [(markers.is_committed, markers.partitions) for markers in running.performed] == [(ends, (ORDERS,))]

    check(tmp_path, TRANSACTIONS, load)


@pytest.mark.parametrize("is_open", [True, False])
def test_offsets_are_written_if_their_transaction_is_still_open(tmp_path: Path, is_open: bool) -> None:
    """It may end while a transaction coordinator is asked. Nothing is kept of the question."""

    async def commit(running: Running) -> None:
        async def verify(partition: Partition, request: TransactionalRequest[Any]) -> Verified:
            verification = partition.log.begin_verification(request.producer_id, request.producer_epoch, 0, 0)
            if not is_open:
                partition.log.end_verification(request.producer_id, verification)
            return ErrorCode.NONE, verification

        running.verified = verify  # type: ignore[method-assign]
        await running.start(ListGroupsRequest())
        answer = await asyncio.wait_for(running.send(commit_of(7)), 60)
        assert answer.errors == (ErrorCode.NONE if is_open else ErrorCode.INVALID_TXN_STATE,)
        assert not running.runtime._coordinators[0]._verifying

    check(tmp_path, GROUPS, commit)


def test_offsets_of_a_transaction_count_from_its_marker_on(tmp_path: Path) -> None:
    """It is answered when it is on the device, and not as written where it was not."""

    async def commit(running: Running) -> None:
        async def committed() -> list[int]:
            return [one.offset for one in (await running.send(OffsetFetchRequest("g"))).offsets]

        await running.start(ListGroupsRequest())
        assert (await running.send(commit_of(7))).errors == (ErrorCode.NONE,)
        assert await committed() == []
        answers: list[ErrorCode] = []
        running.runtime.write_marker(0, TxnMarker(5, 1, 3, True, 2, ()), answers.append)
        assert answers == []
        while not answers:
            await asyncio.sleep(0)
        assert answers == [ErrorCode.NONE]
        assert await committed() == [7]
        running.runtime.leaves(0)
        await running.start(ListGroupsRequest())
        assert await committed() == [7], "it has loaded the log"
        running.partition.resign()
        running.runtime.write_marker(0, TxnMarker(5, 2, 3, True, 2, ()), answers.append)
        assert answers[1] is ErrorCode.NOT_LEADER_OR_FOLLOWER

    check(tmp_path, GROUPS, commit)


def test_a_commit_of_offsets_is_answered_by_a_coordinator_that_resigns_at_once(tmp_path: Path) -> None:
    async def resign(running: Running) -> None:
        await running.start(ListGroupsRequest())
        committing = running.send(commit_of(7))
        running.runtime.leaves(0)
        answer = await asyncio.wait_for(committing, 60)
        assert isinstance(answer, RaykaError)
        assert answer.code is ErrorCode.NOT_COORDINATOR

    check(tmp_path, GROUPS, resign)


def test_a_commit_of_offsets_is_answered_if_its_transaction_cannot_be_verified(tmp_path: Path) -> None:
    """Nobody else would answer it, and the gateway would wait for as long as for a join."""

    async def refuse(running: Running) -> None:
        async def fail(partition: Partition, request: TransactionalRequest[Any]) -> Verified:
            raise ZeroDivisionError

        running.verified = fail  # type: ignore[method-assign]
        await running.start(ListGroupsRequest())
        answer = await asyncio.wait_for(running.send(commit_of(7)), 60)
        assert isinstance(answer, RaykaError)
        assert answer.code is ErrorCode.UNKNOWN_SERVER_ERROR

    check(tmp_path, GROUPS, refuse)


def test_a_coordinator_of_a_new_epoch_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """What waits for the one before is answered, and it is not loaded again for news of the epoch that it is in."""

    async def lead_again(running: Running) -> None:
        await running.start(ListGroupsRequest())
        committing = running.send(commit_of(7))
        running.runtime.leads(running.partition)
        assert not committing.done()
        running.partition.become_leader(1)
        await running.start(ListGroupsRequest())
        answer = await asyncio.wait_for(committing, 60)
        assert isinstance(answer, RaykaError)
        assert answer.code is ErrorCode.NOT_COORDINATOR
        running.runtime.leaves(0)
        await running.start(ListGroupsRequest())
        assert not isinstance(await running.send(ListGroupsRequest()), RaykaError), "it leads again in the same epoch"

    check(tmp_path, GROUPS, lead_again)


def test_markers_are_written_where_the_partition_is_led(tmp_path: Path) -> None:
    async def write(running: Running) -> None:
        await running.start(ListGroupsRequest())
        marker = TxnMarker(5, 1, 3, True, 2, ())
        answers: list[ErrorCode] = []
        running.runtime.write_marker(1, marker, answers.append)
        assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        running.runtime.write_marker(0, marker, answers.append)
        while len(answers) < 2:
            await asyncio.sleep(0)
        assert answers[1] is ErrorCode.NONE
        running.runtime.leaves(0)
        running.runtime.write_marker(0, marker, answers.append)
        assert answers[2] is ErrorCode.NOT_LEADER_OR_FOLLOWER

    check(tmp_path, GROUPS, write)
