"""The transaction coordinator and the logs of its partitions: crashes between any two steps, and what is lost or late.

Producers, coordinators and leaders send each other requests. Any of them may be lost, and come again at any time later;
an append to the coordinator's log may fail; a coordinator may die and its markers arrive after those of its successor.
Whatever happens, the records of a transaction get one outcome in all partitions, and it is one that the transaction's
own producer asked for, or an abort. Two producers never have the same epoch. Clients of transaction version 0 have one
epoch in all their transactions, so only from version 2 on (KIP-890) the outcome is safe from late requests of earlier
transactions too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rayka.coordinator.clock import Now
from rayka.coordinator.result import Completion, Pending, Result, Retry
from rayka.coordinator.transactions.coordinator import TransactionCoordinator
from rayka.coordinator.transactions.metadata import MAX_EPOCH, TransactionMetadata
from rayka.coordinator.transactions.records import TransactionRecord, decode, encode
from rayka.coordinator.transactions.requests import (
    AddPartitionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    MarkersWrittenRequest,
    ProducerIdResponse,
)
from rayka.coordinator.transactions.settings import TransactionSettings
from rayka.coordinator.transactions.spec import TRANSACTIONS
from rayka.coordinator.transactions.state import ONGOING, TransactionState
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import ErrorCode
from rayka.storage.format.batch import read_header
from rayka.storage.format.records import Record, build_batch
from rayka.types import NO_PRODUCER_ID, TopicPartition
from tests.support.scale import examples
from tests.support.transaction_log import LateBatch, PartitionLog, Transaction

NONE = ErrorCode.NONE
ID = "orders"
TIMEOUT_MS = 1000
EXPIRATION_MS = 10 * TIMEOUT_MS
WAIT_MS = 100
PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
EVENTS = (
    *("produce", "commit", "abort") * 3,
    *("produce", "marker", "again") * 2,
    *("late batch", "late marker", "init", "all markers", "crash", "time", "failing disk"),
)
RETRIABLE = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass(eq=False)
class Producer:
    """A client: it goes on from one transaction to the next until it is fenced."""

    producer_id: int
    epoch: int
    version: int
    transaction: Transaction = field(default_factory=Transaction)
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    is_alive: bool = True
    has_failed: bool = False
    unanswered: EndTxnRequest | None = None


@dataclass(eq=False)
class Writing:
    """The markers of a decided transaction, and where they are not yet known to be written."""

    markers: TransactionMarkers
    coordinator_epoch: int
    left: list[TopicPartition]


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.settings = TransactionSettings(10_000, EXPIRATION_MS, EXPIRATION_MS // 2, False)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.ms = 1_000
        self.coordinator_epoch = 0
        self.next_producer_id = 100
        self.partitions = {partition: PartitionLog() for partition in PARTITIONS}
        self.producers: list[Producer] = []
        self.sent: list[Any] = []
        self.writing: list[Writing] = []
        self.late_markers: list[tuple[TransactionMarkers, int, TopicPartition]] = []
        self.late_batches: list[LateBatch] = []
        self.waiting: dict[int, Callable[[Any], None]] = {}
        self.next_append_fails = False

    @initialize(
        versions=st.sampled_from([(0,), (2,), (0, 2)]), epoch=st.sampled_from([0, MAX_EPOCH - 4, MAX_EPOCH - 2])
    )
    def begin(self, versions: tuple[int, ...], epoch: int) -> None:
        self.versions = versions
        self.version = min(versions)
        """Where requests come late, of the version that allows the least of that."""
        self.log.append(encode(TransactionRecord(ID, TransactionMetadata(7, epoch, TIMEOUT_MS, 1))))
        self.load()
        self.init_producer(versions[-1], resumes=False, waits=False)

    @rule(data=st.data(), event=st.sampled_from(EVENTS), is_lost=st.booleans())
    def happens(self, data: Any, event: str, is_lost: bool) -> None:
        """One event. With a rule for each, Hypothesis would leave most out of a run, and nothing would commit."""
        match event:
            case "init":
                version = data.draw(st.sampled_from(self.versions))
                self.init_producer(version, resumes=data.draw(st.booleans()), waits=is_lost)
            case "again":
                self.request_comes_again(data)
            case "marker":
                self.marker_is_written(data, is_lost)
            case "late marker" if self.late_markers:
                self.write_late_marker(data.draw(st.integers(0, len(self.late_markers) - 1)))
            case "late batch" if self.late_batches:
                self.move_late_batch(data.draw(st.sampled_from(self.late_batches)))
            case "all markers":
                self.all_markers_are_written()
            case "crash":
                self.load()
            case "time":
                self.time_passes(data.draw(st.sampled_from([1, WAIT_MS, TIMEOUT_MS, EXPIRATION_MS])))
            case "failing disk":
                self.next_append_fails = True
            case "produce" | "commit" | "abort":
                self.go_on(data.draw(st.integers(0, 3)), event, data.draw(st.sampled_from(PARTITIONS)), is_lost)

    # -- the shell ------------------------------------------------------------------------------

    def load(self) -> None:
        """A new coordinator reads the log. The old one's markers may be on their way; who waited gets no response."""
        self.late_markers += [(one.markers, one.coordinator_epoch, each) for one in self.writing for each in one.left]
        waiting, self.waiting, self.writing = self.waiting, {}, []
        for answer in waiting.values():
            answer(None)
        self.coordinator_epoch += 1
        self.core = TransactionCoordinator(self.settings)
        for key, value in self.log:
            record = decode(key, value)
            assert record is not None
            self.core.replay(record)
        self.core.on_loaded(self.now)
        self.take_effects()

    @property
    def now(self) -> Now:
        return Now(self.ms, self.ms)

    def carry_out(self, result: Result[Any]) -> Any:
        """Append, or fail to; answer those who waited. Returns the response, which may have to wait."""
        if result.records and self.next_append_fails:
            self.next_append_fails = False
            result = self.core.rollback(result.step, ErrorCode.NOT_ENOUGH_REPLICAS, self.now) or result
            done: tuple[Completion, ...] = ()
        else:
            for record in result.records:
                self.log.append(encode(record))
                self.core.replay(record)
            done = self.core.commit(result.step, self.now) if result.step is not None else ()
        self.take_effects()
        for request_id, response in (*result.completions, *done):
            answer = self.waiting.pop(request_id)
            if isinstance(response, Retry):
                self.ask(response.request, answer)
            else:
                answer(response)
        return result.response

    def take_effects(self) -> None:
        self.writing += [
            Writing(markers, self.coordinator_epoch, list(markers.partitions)) for markers in self.core.take_markers()
        ]

    def ask(self, request: Any, answer: Callable[[Any], None]) -> None:
        """Have a request carried out; `answer` gets the response, perhaps later, or None if the coordinator dies."""
        result = TRANSACTIONS.commands[type(request)](self.core, request, self.now)
        if isinstance(result.response, ProducerIdResponse) and result.response.needs_producer_id:
            self.next_producer_id += 1
            self.ask(dataclasses.replace(request, new_producer_id=self.next_producer_id), answer)
            return
        if isinstance(result.response, Pending):
            self.waiting[result.response.request_id] = answer
        response = self.carry_out(result)
        if not isinstance(response, Pending):
            answer(response)

    def answer_to(self, request: Any) -> Any:
        """The response to a request that does not wait."""
        answers: list[Any] = []
        self.ask(request, answers.append)
        (answer,) = answers
        return answer

    # -- producers ------------------------------------------------------------------------------

    def init_producer(self, version: int, resumes: bool, waits: bool) -> None:
        """A producer begins; the one before it, which does not know that, goes on."""
        known = self.producers[-1] if resumes and self.producers and self.producers[-1].is_alive else None
        request = InitProducerIdRequest(
            ID, TIMEOUT_MS, known.producer_id if known else -1, known.epoch if known else -1
        )
        self.sent.append(request)

        def begun(response: ProducerIdResponse | None) -> None:
            if response is None or (known is not None and not known.is_alive):
                return
            if response.error is not NONE:
                assert response.error in (*RETRIABLE, ErrorCode.PRODUCER_FENCED), response
                return
            assert response.producer_epoch < MAX_EPOCH
            if known is not None:
                known.is_alive = False
            self.producers.append(Producer(response.producer_id, response.producer_epoch, version))

        self.ask(dataclasses.replace(request, max_wait_ms=WAIT_MS if waits else 0), begun)

    def go_on(self, index: int, step: str, partition: TopicPartition, is_lost: bool) -> None:
        """A producer takes its next step."""
        alive = [producer for producer in self.producers if producer.is_alive]
        if not alive:
            self.init_producer(self.versions[-1], resumes=False, waits=is_lost)
            return
        producer = alive[index % len(alive)]
        may_end = producer.transaction.has_records or producer.version >= 2
        if producer.unanswered is not None or producer.has_failed or (step != "produce" and may_end):
            self.end(producer, commits=step == "commit" and not producer.has_failed, is_lost=is_lost)
        else:
            self.produce(producer, partition, is_late=is_lost and self.version >= 2)

    def produce(self, producer: Producer, partition: TopicPartition, is_late: bool) -> None:
        """The leader verifies, or adds, and appends. A producer that hears nothing can only abort."""
        request = AddPartitionsRequest(
            ID, producer.producer_id, producer.epoch, (partition,), transaction_version=producer.version
        )
        if producer.version < 2:
            (error,) = self.answer_to(request).errors
            self.sent.append(request)
            if error is not NONE:
                producer.is_alive = error in RETRIABLE
                return
            request = dataclasses.replace(request, is_verify_only=True)
        data = build_batch(
            [Record(0, 0, None, b"v")],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequences.get(partition, 0),
            is_transactional=True,
        )
        batch = LateBatch(partition, producer.transaction, request, data)
        if is_late:
            producer.has_failed = True
            self.late_batches.append(batch)
            return
        while batch.error is None:
            self.move(batch, max_wait_ms=0)
        if batch.error is NONE:
            producer.sequences[partition] = producer.sequences.get(partition, 0) + 1
            producer.transaction.has_records = True
        elif batch.error not in RETRIABLE:
            producer.is_alive = False

    def move(self, batch: LateBatch, max_wait_ms: int) -> None:
        """To its leader, through the coordinator's answer, into the log."""
        partition = self.partitions[batch.partition]
        if batch.is_verified:
            batch.error = partition.append(batch)
        if batch.is_asked:
            return
        batch.is_asked = True
        header = read_header(batch.data)
        producer = header.producer_id, header.producer_epoch
        batch.verification = partition.producers.begin_verification(*producer, header.base_sequence, self.ms)
        batch.is_verified = batch.verification is None
        if not batch.is_verified:
            self.ask(dataclasses.replace(batch.request, max_wait_ms=max_wait_ms), self.verified(batch))
            self.sent.append(batch.request)

    def verified(self, batch: LateBatch) -> Callable[[Any], None]:
        def answer(response: Any) -> None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE if response is None else response.errors[0]
            batch.is_verified = error is NONE
            batch.error = None if batch.is_verified else error

        return answer

    def move_late_batch(self, batch: LateBatch) -> None:
        """One step further; it may wait at the coordinator."""
        self.move(batch, WAIT_MS)
        if batch.error is not None:
            self.late_batches.remove(batch)

    def end(self, producer: Producer, commits: bool, is_lost: bool) -> None:
        """End the transaction; a producer whose response was lost asks the same again."""
        request = producer.unanswered or EndTxnRequest(
            ID, producer.producer_id, producer.epoch, commits, producer.version
        )
        producer.transaction.asked.add(request.is_committed)
        response = self.answer_to(request)
        self.sent.append(request)
        producer.unanswered = request
        if is_lost or response.error in RETRIABLE:
            return
        producer.unanswered = None
        if response.error is not NONE:
            producer.is_alive = False
            return
        producer.transaction, producer.has_failed = Transaction(), False
        if producer.version >= 2:
            assert (response.producer_id, response.producer_epoch) != (producer.producer_id, producer.epoch)
            assert response.producer_epoch < MAX_EPOCH
            producer.producer_id, producer.epoch = response.producer_id, response.producer_epoch
            producer.sequences = {}

    def request_comes_again(self, data: Any) -> None:
        """One of another producer or epoch than the present changes nothing, except that it may give it a new id."""
        before = self.core.transactions.get(ID)
        if self.version < 2 or not self.sent or before is None:
            return
        request = data.draw(st.sampled_from(self.sent))
        self.answer_to(request)
        is_present = (request.producer_id, request.producer_epoch) == (before.producer_id, before.producer_epoch)
        may_init = isinstance(request, InitProducerIdRequest) and (
            request.producer_id == NO_PRODUCER_ID or before.state is not ONGOING
        )
        after = self.core.transactions[ID]
        if not is_present and not may_init and not is_rotated(before, request, after):
            assert after == before

    # -- what happens beside --------------------------------------------------------------------

    def marker_is_written(self, data: Any, is_lost: bool) -> None:
        """In one partition; if the answer is lost it is written there again."""
        if not self.writing:
            return
        writing = data.draw(st.sampled_from(self.writing))
        if not writing.left:
            self.report(writing)
            return
        partition = data.draw(st.sampled_from(writing.left))
        self.write_marker(writing, partition)
        if not is_lost:
            writing.left.remove(partition)
        elif self.version >= 2:
            self.late_markers.append((writing.markers, writing.coordinator_epoch, partition))

    def write_marker(self, writing: Writing, partition: TopicPartition) -> None:
        error = self.partitions[partition].write_marker(writing.markers, writing.coordinator_epoch)
        assert error is NONE, "the present coordinator ends a transaction that it has decided"

    def write_late_marker(self, index: int) -> None:
        """The leader may refuse it."""
        markers, coordinator_epoch, partition = self.late_markers.pop(index)
        self.partitions[partition].write_marker(markers, coordinator_epoch)

    def report(self, writing: Writing) -> None:
        """Until it is in the log."""
        markers = writing.markers
        done = MarkersWrittenRequest(markers.transactional_id, markers.producer_id, markers.producer_epoch)
        if self.answer_to(done).error is NONE:
            self.writing.remove(writing)

    def all_markers_are_written(self) -> None:
        while self.writing:
            writing = self.writing[-1]
            while writing.left:
                self.write_marker(writing, writing.left.pop())
            self.report(writing)

    def time_passes(self, ms: int) -> None:
        self.ms += ms
        while (result := self.core.expire(self.now)) is not None:
            self.carry_out(result)

    @invariant()
    def each_producer_has_an_epoch_of_its_own(self) -> None:
        alive = [(producer.producer_id, producer.epoch) for producer in self.producers if producer.is_alive]
        assert len(alive) == len(set(alive)), alive

    @invariant()
    def state_is_valid(self) -> None:
        if hasattr(self, "core"):
            self.core.validate_state()
        for partition in self.partitions.values():
            partition.producers.validate_state(partition.end_offset)

    def teardown(self) -> None:
        """When the time of open transactions is over everything is decided, even if no late marker arrives."""
        if not hasattr(self, "core"):
            return
        self.time_passes(WAIT_MS)
        for batch in self.late_batches:
            while batch.error is None:
                self.move(batch, max_wait_ms=0)
        for _ in range(2):  # the second time after an append that failed
            self.time_passes(2 * TIMEOUT_MS)
            self.all_markers_are_written()
        assert all(transaction.state.is_idle for transaction in self.core.transactions.values())
        assert not any(partition.undecided for partition in self.partitions.values())
        assert all(partition.producers.first_unstable_offset is None for partition in self.partitions.values())


def is_rotated(before: TransactionMetadata, request: Any, after: TransactionMetadata) -> bool:
    """The producer of the last epoch, whose transaction the coordinator has aborted, gets an id for the next one."""
    is_abort = isinstance(request, EndTxnRequest) and not request.is_committed
    last = (before.producer_id, before.producer_epoch - 1)
    if not is_abort or before.producer_epoch != MAX_EPOCH or (request.producer_id, request.producer_epoch) != last:
        return False
    states = before.state, after.state
    return states == (TransactionState.COMPLETE_ABORT, TransactionState.PREPARE_ABORT) and not after.partitions


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=examples(100), stateful_step_count=60, deadline=None)
