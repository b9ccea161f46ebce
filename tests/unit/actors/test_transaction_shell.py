"""What the shell of transaction and group coordinators does when a flush fails or a coordinator resigns."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rayka.actors.coordinator import context
from rayka.actors.coordinator.outside import Verified
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.actors.coordinator.transactions import TransactionLinks
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

ORDERS, PAYMENTS, REFUNDS = TopicPartition("orders", 0), TopicPartition("payments", 0), TopicPartition("refunds", 0)


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
        self.may_report = asyncio.Event()
        self.may_report.set()

    async def verified(self, partition: Partition, request: TransactionalRequest[Any]) -> Verified:
        return ErrorCode.NONE, None

    async def perform(self, markers: TransactionMarkers, leader_epoch: int) -> Request[Any]:
        self.performed.append(markers)
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
        running.runtime.leads(running.partition)
        while not running.performed:
            await asyncio.sleep(0.001)
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


class Leaders:
    """Leaders that give these answers in turn, and the metadata of this process.

    The first `away` attempts to catch up with the controller fail. The partition exists if `exists`; this process knows
    it from the start if `is_known`, else since it caught up.
    """

    def __init__(self, *answers: ErrorCode, is_known: bool = True, exists: bool = True, away: int = 0) -> None:
        self.answers = iter(answers)
        self.is_known, self.exists, self.away = is_known, exists, away
        self.sent: list[TxnMarker] = []
        self.caught_up = 0

    async def write_txn_marker(self, marker: TxnMarker) -> list[ErrorCode]:
        self.sent.append(marker)
        return [next(self.answers) for _ in marker.partitions]

    @property
    def asked(self) -> list[tuple[TopicPartition, ...]]:
        """The partitions of each request."""
        return [marker.partitions for marker in self.sent]

    def locate(self, partition: TopicPartition) -> tuple[str, int] | ErrorCode:
        return ("leader", 1) if self.is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def catch_up(self) -> None:
        self.caught_up += 1
        if self.caught_up <= self.away:
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT)
        self.is_known = self.exists


def write_markers(
    leaders: Leaders, partitions: tuple[TopicPartition, ...] = (ORDERS,), is_committed: bool = True
) -> Request[Any] | None:
    """Write the markers of a transaction."""
    nobody = cast(Any, None)
    links = TransactionLinks(nobody, cast(Any, leaders), lambda: BrokerConfig.parse({}), leaders.catch_up)
    markers = TransactionMarkers("t", 5, 1, is_committed, 2, partitions)
    return asyncio.run(asyncio.wait_for(links.perform(markers, 3), 60))


WRITTEN = MarkersWrittenRequest("t", 5, 1)


@pytest.mark.parametrize("error", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_coordinator_leaves_the_transaction_to_the_newer_one(error: ErrorCode) -> None:
    """It must not end a transaction whose markers it could not write, also if other partitions take them."""
    moved, done = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE
    leaders = Leaders(moved, moved, done, error)
    assert write_markers(leaders, (ORDERS, PAYMENTS)) is None
    assert len(leaders.sent) == 2


def test_markers_are_sent_until_the_leader_has_written_them() -> None:
    passing = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR)
    leaders = Leaders(*passing, ErrorCode.NONE)
    assert write_markers(leaders) == WRITTEN
    assert len(leaders.sent) == 4
    assert leaders.caught_up == 0


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_marker_says_whose_transaction_ended_and_how(is_committed: bool) -> None:
    leaders = Leaders(ErrorCode.NONE)
    assert write_markers(leaders, is_committed=is_committed) == WRITTEN
    assert leaders.sent == [
        TxnMarker(
            producer_id=5,
            producer_epoch=1,
            coordinator_epoch=3,
            is_committed=is_committed,
            transaction_version=2,
            partitions=(ORDERS,),
        )
    ]


def test_only_what_is_not_written_is_sent_again() -> None:
    moved, done = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE
    leaders = Leaders(done, moved, moved, done, moved, done)
    assert write_markers(leaders, (ORDERS, PAYMENTS, REFUNDS)) == WRITTEN
    assert leaders.asked == [(ORDERS, PAYMENTS, REFUNDS), (PAYMENTS, REFUNDS), (REFUNDS,)]


def test_a_leader_that_is_away_for_long_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []

    async def sleep(duration_s: float) -> None:
        pauses_s.append(duration_s)

    monkeypatch.setattr("rayka.actors.coordinator.transactions.asyncio.sleep", sleep)
    assert write_markers(Leaders(*[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 9, ErrorCode.NONE)) == WRITTEN
    assert pauses_s == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


def test_a_deleted_partition_needs_no_marker() -> None:
    leaders = Leaders(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, is_known=False, exists=False)
    assert write_markers(leaders) == WRITTEN
    assert leaders.caught_up == 1


@pytest.mark.parametrize("away", [0, 3])
def test_a_partition_that_this_process_does_not_know_yet_gets_its_marker(away: int) -> None:
    """Another process may know a new topic before this one, and the controller may be away for as long as it likes."""
    unknown = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (away + 1)
    leaders = Leaders(*unknown, ErrorCode.NONE, is_known=False, away=away)
    assert write_markers(leaders) == WRITTEN
    assert len(leaders.sent) == away + 2
