"""The transaction coordinator against a model: crashes between any two steps, lost responses, requests that come again.

Partitions are modelled by what they hold of each producer: its epoch and the transactions whose records are undecided.
Whatever happens, the records of a transaction get one outcome in all partitions, and it is one that the transaction's
own producer asked for, or an abort. With transaction version 2 that is so although every request of every earlier
transaction may come again at any time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rayka.coordinator.clock import Now
from rayka.coordinator.result import Completion, Pending
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
from rayka.coordinator.transactions.state import ONGOING
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import ErrorCode
from rayka.types import NO_PRODUCER_ID, TopicPartition
from tests.support.scale import examples

NONE = ErrorCode.NONE
ID = "orders"
TIMEOUT_MS = 1000
PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
EVENTS = (
    *("produce", "commit", "abort") * 3,
    *("produce", "marker", "again") * 2,
    *("init", "all markers", "crash", "time"),
)
RETRIABLE = (ErrorCode.CONCURRENT_TRANSACTIONS,)


@dataclass(eq=False)
class Transaction:
    """What one producer did between two ends. `asked` are the outcomes that it asked for."""

    has_records: bool = False
    asked: set[bool] = field(default_factory=set)
    outcome: bool | None = None


@dataclass
class Held:
    """What a partition holds of one producer id."""

    epoch: int = -1
    undecided: list[Transaction] = field(default_factory=list)


@dataclass(eq=False)
class Producer:
    """A client: it goes on from one transaction to the next until it is fenced."""

    producer_id: int
    epoch: int
    transaction: Transaction = field(default_factory=Transaction)
    is_alive: bool = True
    unanswered: EndTxnRequest | None = None


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.settings = TransactionSettings(10_000, 1 << 40, 1 << 40, False)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.ms = 1_000
        self.next_producer_id = 100
        self.partitions: dict[tuple[TopicPartition, int], Held] = {}
        self.producers: list[Producer] = []
        self.sent: list[Any] = []
        self.effects: list[tuple[TransactionMarkers, list[TopicPartition]]] = []

    @initialize(version=st.sampled_from([0, 2]), epoch=st.sampled_from([0, MAX_EPOCH - 4]))
    def begin(self, version: int, epoch: int) -> None:
        self.version = version
        self.log.append(encode(TransactionRecord(ID, TransactionMetadata(7, epoch, TIMEOUT_MS, 1))))
        self.load()
        self.init_producer(resumes=False)

    @rule(data=st.data(), event=st.sampled_from(EVENTS), is_lost=st.booleans())
    def happens(self, data: Any, event: str, is_lost: bool) -> None:
        """One event. With a rule for each, Hypothesis would leave most out of a run, and nothing would commit."""
        match event:
            case "init":
                self.init_producer(resumes=data.draw(st.booleans()))
            case "again":
                self.request_comes_again(data)
            case "marker":
                self.marker_is_written(data, is_lost)
            case "all markers":
                self.all_markers_are_written()
            case "crash":
                self.load()
            case "time":
                self.time_passes(data.draw(st.sampled_from([1, TIMEOUT_MS // 8, TIMEOUT_MS])))
            case _:
                self.go_on(data.draw(st.integers(0, 3)), event, data.draw(st.sampled_from(PARTITIONS)), is_lost)

    # -- the shell ------------------------------------------------------------------------------

    def load(self) -> None:
        """A new coordinator reads the log; what the old one was doing is forgotten."""
        self.core = TransactionCoordinator(self.settings)
        for key, value in self.log:
            record = decode(key, value)
            assert record is not None
            self.core.replay(record)
        self.core.on_loaded(self.now)
        self.effects = []
        self.take_effects()

    @property
    def now(self) -> Now:
        return Now(self.ms, self.ms)

    def carry_out(self, result: Any) -> tuple[Completion, ...]:
        for record in result.records:
            self.log.append(encode(record))
            self.core.replay(record)
        done = self.core.commit(result.step, self.now) if result.step is not None else ()
        self.take_effects()
        return (*result.completions, *done)

    def take_effects(self) -> None:
        self.effects += [(markers, list(markers.partitions)) for markers in self.core.take_markers()]

    def execute(self, request: Any) -> Any:
        result = TRANSACTIONS.commands[type(request)](self.core, request, self.now)
        if isinstance(result.response, ProducerIdResponse) and result.response.needs_producer_id:
            self.next_producer_id += 1
            return self.execute(dataclasses.replace(request, new_producer_id=self.next_producer_id))
        self.carry_out(result)
        assert not isinstance(result.response, Pending)
        return result.response

    # -- partitions -----------------------------------------------------------------------------

    def held(self, partition: TopicPartition, producer_id: int) -> Held:
        return self.partitions.setdefault((partition, producer_id), Held())

    def write_marker(self, markers: TransactionMarkers, partition: TopicPartition) -> None:
        held = self.held(partition, markers.producer_id)
        is_old = markers.transaction_version >= 2 and bool(held.undecided)
        assert markers.producer_epoch >= held.epoch + is_old, "a marker came after a later transaction had begun"
        held.epoch = markers.producer_epoch
        for transaction in held.undecided:
            assert not markers.is_committed or True in transaction.asked, "nobody asked for this commit"
            assert transaction.outcome in (None, markers.is_committed), "half of a transaction was committed"
            transaction.outcome = markers.is_committed
        held.undecided = []

    # -- producers ------------------------------------------------------------------------------

    def init_producer(self, resumes: bool) -> None:
        """A producer begins; the one before it, which does not know that, goes on."""
        known = self.producers[-1] if resumes and self.producers and self.producers[-1].is_alive else None
        request = InitProducerIdRequest(
            ID, TIMEOUT_MS, known.producer_id if known else -1, known.epoch if known else -1
        )
        response = self.execute(request)
        self.sent.append(request)
        if response.error is NONE:
            assert response.producer_epoch < MAX_EPOCH
            if known is not None:
                known.is_alive = False
            self.producers.append(Producer(response.producer_id, response.producer_epoch))
        else:
            assert response.error in (*RETRIABLE, ErrorCode.PRODUCER_FENCED), response

    def alive(self, index: int) -> Producer | None:
        alive = [producer for producer in self.producers if producer.is_alive]
        return alive[index % len(alive)] if alive else None

    def go_on(self, index: int, step: str, partition: TopicPartition, is_lost: bool) -> None:
        """A producer takes its next step."""
        producer = self.alive(index)
        if producer is None:
            self.init_producer(resumes=False)
        elif producer.unanswered is not None or (step != "produce" and self.may_end(producer)):
            self.end(producer, commits=step == "commit", is_lost=is_lost)
        else:
            self.produce(producer, partition)

    def may_end(self, producer: Producer) -> bool:
        return producer.transaction.has_records or self.version >= 2

    def produce(self, producer: Producer, partition: TopicPartition) -> None:
        """The leader verifies, or adds, and appends."""
        request = AddPartitionsRequest(
            ID, producer.producer_id, producer.epoch, (partition,), transaction_version=self.version
        )
        (error,) = self.execute(request).errors
        self.sent.append(request)
        held = self.held(partition, producer.producer_id)
        if error is NONE:
            assert producer.epoch >= held.epoch, "a verified batch is refused"
            held.epoch = producer.epoch
            producer.transaction.has_records = True
            if producer.transaction not in held.undecided:
                held.undecided.append(producer.transaction)
        elif error not in RETRIABLE:
            producer.is_alive = False

    def end(self, producer: Producer, commits: bool, is_lost: bool) -> None:
        """End the transaction; a producer whose response was lost asks the same again."""
        request = producer.unanswered or EndTxnRequest(ID, producer.producer_id, producer.epoch, commits, self.version)
        producer.transaction.asked.add(request.is_committed)
        response = self.execute(request)
        self.sent.append(request)
        producer.unanswered = request
        if is_lost or response.error in RETRIABLE:
            return
        producer.unanswered = None
        if response.error is NONE:
            producer.transaction = Transaction()
            if self.version >= 2:
                assert (response.producer_id, response.producer_epoch) != (producer.producer_id, producer.epoch)
                assert response.producer_epoch < MAX_EPOCH
                producer.producer_id, producer.epoch = response.producer_id, response.producer_epoch
        else:
            producer.is_alive = False

    def request_comes_again(self, data: Any) -> None:
        """One of another producer or epoch than the present changes nothing."""
        if self.version < 2 or not self.sent:
            return
        request = data.draw(st.sampled_from(self.sent))
        before = self.core.transactions[ID]
        self.execute(request)
        is_present = (request.producer_id, request.producer_epoch) == (before.producer_id, before.producer_epoch)
        may_init = isinstance(request, InitProducerIdRequest) and (
            request.producer_id == NO_PRODUCER_ID or before.state is not ONGOING
        )
        if not is_present and not may_init:
            assert self.core.transactions[ID] == before

    # -- what happens beside --------------------------------------------------------------------

    def marker_is_written(self, data: Any, is_lost: bool) -> None:
        """In one partition; if the answer is lost it is written there again."""
        if not self.effects:
            return
        markers, left = data.draw(st.sampled_from(self.effects))
        if left:
            partition = data.draw(st.sampled_from(left))
            self.write_marker(markers, partition)
            if not is_lost:
                left.remove(partition)
        else:
            self.effects.remove((markers, left))
            done = MarkersWrittenRequest(markers.transactional_id, markers.producer_id, markers.producer_epoch)
            assert self.execute(done).error is NONE

    def all_markers_are_written(self) -> None:
        while self.effects:
            markers, left = self.effects.pop()
            for partition in left:
                self.write_marker(markers, partition)
            self.execute(MarkersWrittenRequest(markers.transactional_id, markers.producer_id, markers.producer_epoch))

    def time_passes(self, ms: int) -> None:
        self.ms += ms
        while (result := self.core.expire(self.now)) is not None:
            self.carry_out(result)

    @invariant()
    def state_is_valid(self) -> None:
        if hasattr(self, "core"):
            self.core.validate_state()

    def teardown(self) -> None:
        """When all markers are written and the time of open transactions is over, everything is decided."""
        if not hasattr(self, "core"):
            return
        self.time_passes(2 * TIMEOUT_MS)
        self.all_markers_are_written()
        assert not any(held.undecided for held in self.partitions.values())


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
