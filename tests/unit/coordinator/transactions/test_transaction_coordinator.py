"""What producers, brokers and operators rely on in the transaction coordinator."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rayka.coordinator.clock import Now
from rayka.coordinator.result import Completion, Pending, Retry
from rayka.coordinator.transactions.coordinator import TransactionCoordinator
from rayka.coordinator.transactions.metadata import MAX_EPOCH, TransactionMetadata
from rayka.coordinator.transactions.records import TransactionRecord, decode, encode
from rayka.coordinator.transactions.requests import (
    AddPartitionsRequest,
    AddPartitionsResponse,
    DescribeTransactionRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    MarkersWrittenRequest,
    ProducerIdResponse,
)
from rayka.coordinator.transactions.settings import TransactionSettings
from rayka.coordinator.transactions.spec import TRANSACTIONS
from rayka.coordinator.transactions.state import TransactionState
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition

NONE = ErrorCode.NONE
ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 3)
DAY_MS = 86_400_000


class Shell:
    """Carries out what the core returns, with a clock that stands still."""

    def __init__(self, *records: TransactionRecord, is_two_phase_commit_enabled: bool = False) -> None:
        self.ms = 1_000_000
        settings = TransactionSettings(900_000, 7 * DAY_MS, 3_600_000, is_two_phase_commit_enabled)
        self.core = TransactionCoordinator(settings)
        self.completions: list[Completion] = []
        for record in records:
            self.core.replay(record)
        self.core.on_loaded(self.now)

    @property
    def now(self) -> Now:
        return Now(self.ms, self.ms)

    def run(self, request: Any) -> Any:
        result = TRANSACTIONS.commands[type(request)](self.core, request, self.now)
        self.carry_out(result)
        self.core.validate_state()
        return result.response

    def carry_out(self, result: Any) -> None:
        for record in result.records:
            decoded = decode(*encode(record))
            assert decoded is not None
            self.core.replay(record)
        done = self.core.commit(result.step, self.now) if result.step is not None else ()
        for request_id, response in (*result.completions, *done):
            answer = self.run(response.request) if isinstance(response, Retry) else response
            self.completions.append(Completion(request_id, answer))

    def pass_time(self, ms: int) -> None:
        self.ms += ms
        while (result := self.core.expire(self.now)) is not None:
            self.carry_out(result)

    def init(self, producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000, **how: Any) -> ProducerIdResponse:
        request = InitProducerIdRequest("t", timeout_ms, producer_id, epoch, **how)
        response: ProducerIdResponse = self.run(request)
        if response.needs_producer_id:
            response = self.run(dataclasses.replace(request, new_producer_id=500))
        return response

    def add(self, producer: ProducerIdResponse, *partitions: TopicPartition, **how: Any) -> tuple[ErrorCode, ...]:
        request = AddPartitionsRequest("t", producer.producer_id, producer.producer_epoch, partitions, **how)
        errors: tuple[ErrorCode, ...] = self.run(request).errors
        return errors

    def end(self, producer: ProducerIdResponse, commits: bool = True, version: int = 0) -> ProducerIdResponse:
        request = EndTxnRequest("t", producer.producer_id, producer.producer_epoch, commits, version)
        response: ProducerIdResponse = self.run(request)
        if response.needs_producer_id:
            response = self.run(dataclasses.replace(request, new_producer_id=501))
        return response

    def write_markers(self) -> list[Any]:
        taken = list(self.core.take_markers())
        for markers in taken:
            self.run(MarkersWrittenRequest(markers.transactional_id, markers.producer_id, markers.producer_epoch))
        return taken

    @property
    def state(self) -> TransactionState:
        return self.core.transactions["t"].state


def test_a_transaction_is_committed_when_all_markers_are_written() -> None:
    shell = Shell()
    producer = shell.init()
    assert producer == ProducerIdResponse(NONE, 500, 0)
    assert shell.add(producer, ORDERS) == (NONE,)
    assert shell.add(producer, PAYMENTS, ORDERS) == (NONE, NONE)
    assert shell.end(producer) == ProducerIdResponse(NONE, 500, 0)
    assert shell.state is TransactionState.PREPARE_COMMIT
    (markers,) = shell.write_markers()
    assert (markers.is_committed, markers.partitions) == (True, (ORDERS, PAYMENTS))
    assert shell.state is TransactionState.COMPLETE_COMMIT
    assert shell.core.transactions["t"].partitions == frozenset()


def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction() -> None:
    shell = Shell()
    old = shell.init()
    shell.add(old, ORDERS)
    assert shell.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    (markers,) = shell.write_markers()
    assert (markers.is_committed, markers.producer_epoch) == (False, 1)
    new = shell.init()
    assert (new.producer_id, new.producer_epoch) == (500, 2)
    assert shell.add(old, ORDERS) == (ErrorCode.PRODUCER_FENCED,)
    assert shell.end(old).error is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_was_replaced_cannot_abort_the_transaction_of_its_successor() -> None:
    shell = Shell()
    old = shell.init()
    new = shell.init()
    shell.add(new, ORDERS)
    assert shell.init(old.producer_id, old.producer_epoch).error is ErrorCode.PRODUCER_FENCED
    assert shell.state is TransactionState.ONGOING


@pytest.mark.parametrize("commits", [True, False])
def test_a_producer_of_the_new_version_is_fenced_by_one_of_the_old_version(commits: bool) -> None:
    """The epoch that follows its own is not that of its own next transaction: its successor has it."""
    shell = Shell()
    fenced, successor = shell.init(), shell.init()
    assert (fenced.producer_epoch, successor.producer_epoch) == (0, 1)
    shell.add(successor, ORDERS)
    shell.end(successor, commits)
    assert shell.end(fenced, commits, version=2).error is ErrorCode.PRODUCER_FENCED
    shell.write_markers()
    assert shell.end(fenced, commits, version=2).error is ErrorCode.PRODUCER_FENCED
    assert shell.add(successor, ORDERS) == (NONE,)


def test_a_producer_may_go_on_after_an_error_and_repeat_that_request() -> None:
    shell = Shell()
    producer = shell.init()
    bumped = shell.init(producer.producer_id, producer.producer_epoch)
    assert (bumped.producer_id, bumped.producer_epoch) == (500, 1)
    assert shell.init(producer.producer_id, producer.producer_epoch) == bumped
    shell.init()
    assert shell.init(producer.producer_id, producer.producer_epoch).error is ErrorCode.PRODUCER_FENCED


def test_every_transaction_of_a_new_client_has_an_epoch_of_its_own() -> None:
    shell = Shell()
    first = shell.init()
    shell.add(first, ORDERS, transaction_version=2)
    second = shell.end(first, version=2)
    assert (second.producer_id, second.producer_epoch) == (500, 1)
    assert shell.end(first, version=2).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shell.write_markers()
    assert shell.end(first, version=2) == second
    shell.add(second, ORDERS, transaction_version=2)
    assert shell.end(first, version=2).error is ErrorCode.PRODUCER_FENCED
    assert shell.state is TransactionState.ONGOING


def test_a_producer_whose_epochs_are_used_up_goes_on_with_a_new_id() -> None:
    shell = Shell(TransactionRecord("t", TransactionMetadata(7, MAX_EPOCH - 2, 60_000, 0)))
    last = shell.init()
    assert (last.producer_id, last.producer_epoch) == (7, MAX_EPOCH - 1)
    shell.add(last, ORDERS, transaction_version=2)
    after = shell.end(last, version=2)
    assert (after.producer_id, after.producer_epoch) == (501, 0)
    assert shell.add(after, ORDERS, transaction_version=2) == (ErrorCode.CONCURRENT_TRANSACTIONS,)
    (markers,) = shell.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (7, MAX_EPOCH)
    assert shell.end(last, version=2) == after
    assert shell.add(after, ORDERS, transaction_version=2) == (NONE,)


def test_init_rotates_the_producer_id_when_the_epochs_are_used_up() -> None:
    shell = Shell(TransactionRecord("t", TransactionMetadata(7, MAX_EPOCH, 60_000, 0)))
    assert shell.init() == ProducerIdResponse(NONE, 500, 0)


def test_a_producer_may_repeat_the_request_that_gave_it_a_new_id() -> None:
    shell = Shell(TransactionRecord("t", TransactionMetadata(7, MAX_EPOCH - 1, 60_000, 0)))
    assert shell.init(7, MAX_EPOCH - 2).error is ErrorCode.PRODUCER_FENCED
    for _ in range(2):
        assert shell.init(7, MAX_EPOCH - 1) == ProducerIdResponse(NONE, 500, 0)
    for stranger in ((7, 3), (8, MAX_EPOCH - 1), (8, 3)):
        assert shell.init(*stranger).error is ErrorCode.PRODUCER_FENCED


def test_an_older_client_ends_its_transaction_in_the_last_epoch() -> None:
    shell = Shell(TransactionRecord("t", TransactionMetadata(7, MAX_EPOCH - 2, 60_000, 0)))
    last = shell.init()
    shell.add(last, ORDERS)
    assert shell.run(EndTxnRequest("t", 7, MAX_EPOCH - 1, True)) == last


def test_a_producer_that_has_not_heard_of_its_commit_gets_the_epoch_that_it_gave() -> None:
    """Its InitProducerId has the epoch of the transaction that ended (KIP-890)."""
    shell = Shell()
    producer = shell.init()
    shell.add(producer, ORDERS, transaction_version=2)
    began_ms = shell.ms
    shell.ms += 10
    after = shell.run(EndTxnRequest("t", 500, 0, True, 2))
    assert shell.core.transactions["t"].start_ms == began_ms
    assert shell.init(500, 0).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shell.write_markers()
    assert shell.init(500, 0) == after
    shell.end(after, commits=False, version=2)
    assert shell.core.transactions["t"].start_ms == shell.ms


def test_a_producer_that_begins_anew_aborts_its_own_transaction() -> None:
    shell = Shell()
    producer = shell.init()
    shell.add(producer, ORDERS)
    assert shell.init(producer.producer_id, producer.producer_epoch).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.state is TransactionState.PREPARE_ABORT


def test_partitions_that_the_transaction_has_are_not_written_again() -> None:
    shell = Shell()
    producer = shell.init()
    shell.add(producer, ORDERS, PAYMENTS)
    for partitions in ((ORDERS,), (ORDERS, PAYMENTS)):
        again = AddPartitionsRequest("t", producer.producer_id, producer.producer_epoch, partitions)
        assert shell.core.add_partitions(again, shell.now).records == ()


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    shell = Shell()
    producer = shell.init(timeout_ms=5_000)
    shell.add(producer, ORDERS)
    shell.pass_time(4_999)
    assert shell.state is TransactionState.ONGOING
    shell.pass_time(1)
    assert shell.state is TransactionState.PREPARE_ABORT
    (markers,) = shell.write_markers()
    assert markers.producer_epoch == producer.producer_epoch + 1
    assert shell.end(producer).error is ErrorCode.PRODUCER_FENCED


def test_partitions_that_are_added_later_give_a_transaction_no_more_time() -> None:
    shell = Shell()
    producer = shell.init(timeout_ms=5_000)
    shell.add(producer, ORDERS)
    shell.pass_time(3_000)
    shell.add(producer, PAYMENTS)
    shell.pass_time(1_999)
    assert shell.state is TransactionState.ONGOING
    shell.pass_time(1)
    assert shell.state is TransactionState.PREPARE_ABORT


@pytest.mark.parametrize(
    ("epoch", "after"),
    [(3, ProducerIdResponse(NONE, 7, 4)), (MAX_EPOCH - 1, ProducerIdResponse(NONE, 500, 0))],
)
def test_a_producer_may_go_on_after_a_timeout_unless_another_took_its_place(
    epoch: int, after: ProducerIdResponse
) -> None:
    open_since = TransactionMetadata(
        7, epoch, 5_000, 0, TransactionState.ONGOING, partitions=frozenset({ORDERS}), start_ms=1_000_000
    )
    shell = Shell(TransactionRecord("t", open_since))
    shell.pass_time(5_000)
    shell.write_markers()
    assert shell.add(ProducerIdResponse(NONE, 7, MAX_EPOCH), ORDERS) == (ErrorCode.PRODUCER_FENCED,)
    for _ in range(2):
        assert shell.init(7, epoch) == after
    shell.init()
    assert shell.init(7, epoch).error is ErrorCode.PRODUCER_FENCED


def test_a_transaction_with_two_phase_commit_never_times_out() -> None:
    shell = Shell(is_two_phase_commit_enabled=True)
    shell.add(shell.init(timeout_ms=0, is_two_phase=True), ORDERS)
    for _ in range(30):
        shell.pass_time(DAY_MS)
    assert shell.state is TransactionState.ONGOING
    loaded = Shell(TransactionRecord("t", shell.core.transactions["t"]))
    loaded.pass_time(30 * DAY_MS)
    assert loaded.state is TransactionState.ONGOING
    loaded.core.validate_state()


def test_a_coordinator_that_loads_goes_on_where_the_last_one_stopped() -> None:
    open_since = TransactionMetadata(
        7, 0, 5_000, 0, TransactionState.ONGOING, partitions=frozenset({ORDERS}), start_ms=997_000
    )
    decided = dataclasses.replace(open_since, state=TransactionState.PREPARE_COMMIT)
    shell = Shell(TransactionRecord("t", open_since), TransactionRecord("u", decided))
    (markers,) = shell.write_markers()
    assert (markers.transactional_id, markers.is_committed) == ("u", True)
    shell.pass_time(1_999)
    assert shell.state is TransactionState.ONGOING
    shell.pass_time(1)
    assert shell.state is TransactionState.PREPARE_ABORT


def test_markers_that_are_reported_twice_end_one_transaction() -> None:
    shell = Shell()
    producer = shell.init()
    shell.add(producer, ORDERS)
    shell.end(producer)
    shell.write_markers()
    shell.add(producer, ORDERS)
    shell.run(MarkersWrittenRequest("t", producer.producer_id, producer.producer_epoch))
    assert shell.state is TransactionState.ONGOING
    later = shell.end(producer, version=2)
    shell.run(MarkersWrittenRequest("t", producer.producer_id, producer.producer_epoch))
    shell.run(MarkersWrittenRequest("t", producer.producer_id + 1, later.producer_epoch))
    assert shell.state is TransactionState.PREPARE_COMMIT
    assert shell.run(MarkersWrittenRequest("expired", 9, 0)).error is NONE


def test_a_request_waits_for_the_markers_of_the_transaction_before() -> None:
    shell = Shell()
    producer = shell.init()
    shell.add(producer, ORDERS)
    shell.end(producer)
    request = AddPartitionsRequest("t", 500, 0, (ORDERS,), max_wait_ms=100)
    first, second = shell.run(request), shell.run(request)
    assert isinstance(first, Pending)
    shell.pass_time(99)
    assert shell.completions == []
    shell.write_markers()
    added = AddPartitionsResponse((NONE,))
    assert shell.completions == [Completion(first.request_id, added), Completion(second.request_id, added)]
    assert shell.core.transactions["t"].partitions == {ORDERS}
    shell.pass_time(1)
    assert len(shell.completions) == 2


def test_a_new_producer_waits_until_the_transaction_of_the_old_one_is_aborted() -> None:
    shell = Shell()
    old = shell.init()
    shell.add(old, ORDERS)
    waits = shell.run(InitProducerIdRequest("t", 60_000, max_wait_ms=100))
    shell.write_markers()
    assert shell.completions == [Completion(waits.request_id, ProducerIdResponse(NONE, 500, 2))]
    assert shell.end(old).error is ErrorCode.PRODUCER_FENCED


def test_a_request_that_has_waited_too_long_is_answered_and_others_wait_on() -> None:
    shell = Shell()
    producer = shell.init()
    shell.add(producer, ORDERS)
    shell.end(producer)
    for max_wait_ms in (100, 101):
        shell.run(InitProducerIdRequest("t", 1000, max_wait_ms=max_wait_ms))
    shell.pass_time(100)
    assert [completion.response.error for completion in shell.completions] == [ErrorCode.CONCURRENT_TRANSACTIONS]
    shell.write_markers()
    assert [completion.response.error for completion in shell.completions[1:]] == [NONE]


def test_verification_adds_nothing() -> None:
    shell = Shell()
    producer = shell.init()
    missing = (ErrorCode.TRANSACTION_ABORTABLE,)
    assert shell.add(producer, ORDERS, is_verify_only=True) == missing
    shell.add(producer, PAYMENTS)
    assert shell.add(producer, PAYMENTS, ORDERS, is_verify_only=True) == (NONE, *missing)
    assert shell.core.transactions["t"].partitions == {PAYMENTS}


def test_ids_without_a_transaction_expire() -> None:
    shell = Shell()
    producer = shell.init()
    shell.pass_time(6 * DAY_MS)
    assert "t" in shell.core.transactions
    shell.pass_time(DAY_MS)
    shell.pass_time(3_600_000)
    assert shell.core.transactions == {}
    assert shell.add(producer, ORDERS) == (ErrorCode.INVALID_PRODUCER_ID_MAPPING,)
    assert shell.init(producer.producer_id, producer.producer_epoch).error is NONE


def test_ids_expire_within_minutes_however_many_they_are() -> None:
    """Programs that choose a new id at each start leave more in an hour than are deleted in one step."""
    shell = Shell(*(TransactionRecord(f"t{i}", TransactionMetadata(i, 0, 60_000, 0)) for i in range(20_000)))
    shell.pass_time(8 * DAY_MS)
    for _ in range(60):
        shell.pass_time(1_000)
    assert not shell.core.transactions


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (InitProducerIdRequest("", 1000), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest("t", 0), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("t", 900_001), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("t", 1000, keeps_prepared=True), ErrorCode.UNSUPPORTED_VERSION),
        (InitProducerIdRequest("t", 1000, is_two_phase=True), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (InitProducerIdRequest("t", 1, new_producer_id=5), NONE),
        (InitProducerIdRequest("t", 900_000, new_producer_id=5), NONE),
        (EndTxnRequest("", 1, 0, True), ErrorCode.INVALID_REQUEST),
        (EndTxnRequest("t", 1, 0, True), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_requests_are_checked(request_: Any, error: ErrorCode) -> None:
    assert Shell().run(request_).error is error


@pytest.mark.parametrize(
    ("version", "commits", "meanwhile", "after"),
    [
        (0, True, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (0, False, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (2, True, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (2, False, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED),  # KAFKA-20785
    ],
)
def test_an_end_must_agree_with_the_outcome(
    version: int, commits: bool, meanwhile: ErrorCode, after: ErrorCode
) -> None:
    shell = Shell()
    producer = shell.init()
    shell.add(producer, ORDERS, transaction_version=version)
    shell.end(producer, commits, version)
    assert shell.end(producer, not commits, version).error is meanwhile
    shell.write_markers()
    assert shell.end(producer, not commits, version).error is after
    assert shell.end(producer, commits, version).error is NONE


@pytest.mark.parametrize("commits", [True, False])
def test_a_client_may_change_the_version_of_transactions_between_two_of_them(commits: bool) -> None:
    """The level of the feature was changed while it ran (KIP-890)."""
    shell = Shell()
    producer = shell.init()
    for version in (0, 2, 0):
        shell.add(producer, ORDERS, transaction_version=version)
        ended = shell.end(producer, commits, version)
        assert (ended.error, ended.producer_epoch) == (NONE, producer.producer_epoch + (version == 2))
        shell.write_markers()
        if version == 2:
            assert shell.end(producer, commits, 2) == ended
            producer = ended
        else:
            assert shell.end(producer, commits, 0) == ended
    aborted = shell.end(producer, commits=False, version=2)
    assert (aborted.error, aborted.producer_epoch) == (NONE, producer.producer_epoch + 1)


def test_a_failed_append_leaves_everything_as_it_was() -> None:
    shell = Shell()
    producer = shell.init(timeout_ms=5_000)
    who = producer.producer_id, producer.producer_epoch
    result = shell.core.add_partitions(AddPartitionsRequest("t", *who, (ORDERS,)), shell.now)
    refused = shell.core.rollback(result.step, ErrorCode.NOT_ENOUGH_REPLICAS, shell.now)
    assert refused is not None
    assert refused.response.errors == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    shell.add(producer, ORDERS)
    ended = shell.core.end_txn(EndTxnRequest("t", *who, True), shell.now)
    refused = shell.core.rollback(ended.step, ErrorCode.NOT_ENOUGH_REPLICAS, shell.now)
    assert refused is not None
    assert refused.response == ProducerIdResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    shell.ms += 5_000
    expired = shell.core.expire(shell.now)
    assert expired is not None
    assert shell.core.rollback(expired.step, ErrorCode.NOT_ENOUGH_REPLICAS, shell.now) is not None
    shell.pass_time(499)
    assert shell.state is TransactionState.ONGOING
    shell.pass_time(1)
    assert shell.state is TransactionState.PREPARE_ABORT


def test_lists_pass_filters() -> None:
    shell = Shell(TransactionRecord("idle", TransactionMetadata(9, 0, 60_000, 0)))
    shell.add(shell.init(), ORDERS)
    shell.ms += 10

    def names(**filters: Any) -> list[str]:
        listed = shell.core.list_transactions(ListTransactionsRequest(now_ms=shell.ms, **filters))
        return [one.transactional_id for one in listed.transactions]

    assert names() == ["idle", "t"]
    assert names(states=("Ongoing", "Nonsense")) == ["t"]
    assert names(states=("Nonsense",)) == []
    assert names(producer_ids=(9,)) == ["idle"]
    assert (names(duration_ms=9), names(duration_ms=10)) == (["t"], [])
    assert names(pattern="i.*") == ["idle"]
    with pytest.raises(RaykaError) as refused:
        names(pattern="(")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_no_pattern_stops_the_coordinator() -> None:
    """With backtracking this takes thousands of years."""
    shell = Shell(TransactionRecord("a" * 100, TransactionMetadata(9, 0, 60_000, 0)))
    assert shell.core.list_transactions(ListTransactionsRequest(pattern="(a|aa)+b")).transactions == ()


def test_descriptions_have_the_open_transaction() -> None:
    shell = Shell()
    shell.add(shell.init(), ORDERS)
    found = shell.core.describe_transaction(DescribeTransactionRequest("t")).transaction
    assert (found.state, found.start_ms, found.partitions) == ("Ongoing", shell.ms, (ORDERS,))
    missing = shell.core.describe_transaction(DescribeTransactionRequest("u")).transaction
    assert missing.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    nameless = shell.core.describe_transaction(DescribeTransactionRequest("")).transaction
    assert nameless.error is ErrorCode.INVALID_REQUEST
