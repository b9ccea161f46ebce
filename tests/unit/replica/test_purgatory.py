"""Delayed fetches and produces are released when, and only when, their partition got on far enough."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rayka.errors import ErrorCode
from rayka.replica.partition import Appended
from rayka.replica.purgatory import DelayedFetch, DelayedProduce, Purgatory
from rayka.types import AppendResult, FetchPartition, IsolationLevel, TopicPartition

A = TopicPartition("a", 0)
B = TopicPartition("b", 1)


def fetch(key: str, missing: int, *partitions: TopicPartition) -> DelayedFetch:
    wanted = [FetchPartition(partition, 0, 1000) for partition in partitions]
    return DelayedFetch(key, print, wanted, 1000, IsolationLevel.READ_UNCOMMITTED, missing)


def test_a_fetch_is_ready_when_all_partitions_together_have_enough() -> None:
    purgatory = Purgatory()
    waiting = fetch("f", 100, A, B)
    purgatory.add_fetch(waiting)
    assert purgatory.more_bytes(A, 60) == []
    assert purgatory.more_bytes(B, 60) == [waiting]
    assert purgatory.more_bytes(A, 60) == []


def test_a_taken_fetch_is_gone_from_every_partition() -> None:
    purgatory = Purgatory()
    waiting = fetch("f", 1, A, B)
    purgatory.add_fetch(waiting)
    assert purgatory.take_fetch("f") is waiting
    assert purgatory.take_fetch("f") is None
    assert purgatory.more_bytes(A, 10) == []
    assert purgatory.take_fetches_of(B) == []


def test_a_partition_completes_all_fetches_that_wait_for_it() -> None:
    purgatory = Purgatory()
    first, second, other = fetch("1", 1, A), fetch("2", 500, A, B), fetch("3", 1, B)
    for waiting in (first, second, other):
        purgatory.add_fetch(waiting)
    assert purgatory.more_bytes(A, 10) == [first]
    assert purgatory.take_fetches_of(A) == [second]
    assert purgatory.more_bytes(B, 10) == [other]


def produce(answers: list[list[AppendResult]], **required: int) -> DelayedProduce:
    """Appends to these partitions, a and b; `answers` gets what is responded."""
    names = {"a": A, "b": B}
    appended = [Appended(AppendResult(0, 7), offset, is_visible=False) for offset in required.values()]
    return DelayedProduce.of(answers.append, [names[name] for name in required], appended)


def test_a_produce_waits_for_each_of_its_partitions() -> None:
    purgatory = Purgatory()
    both, one = produce([], a=10, b=5), produce([], a=20)
    purgatory.add_produce(both)
    purgatory.add_produce(one)
    assert purgatory.high_watermark_at(A, 9) == []
    assert purgatory.high_watermark_at(A, 10) == []
    assert purgatory.high_watermark_at(B, 5) == [both]
    assert purgatory.high_watermark_at(A, 25) == [one]
    assert purgatory.high_watermark_at(A, 30) == []
    purgatory.validate_state()


def test_a_partition_that_fails_fails_only_its_own_appends() -> None:
    purgatory, answers = Purgatory(), list[list[AppendResult]]()
    both, one = produce(answers, a=10, b=5), produce(answers, a=20)
    purgatory.add_produce(both)
    purgatory.add_produce(one)
    assert purgatory.fail_produces_of(A, ErrorCode.NOT_LEADER_OR_FOLLOWER) == [one]
    purgatory.validate_state()
    assert purgatory.high_watermark_at(B, 5) == [both]
    for produce_ in (one, both):
        produce_.answer()
    assert [[result.error for result in results] for results in answers] == [[6], [6, 0]]


def test_a_late_produce_fails_for_partitions_that_are_not_visible_yet() -> None:
    purgatory, answers = Purgatory(), list[list[AppendResult]]()
    both = produce(answers, a=10, b=5)
    purgatory.add_produce(both)
    assert purgatory.high_watermark_at(A, 10) == []
    purgatory.time_out_produce(both)
    both.answer()
    assert answers == [[AppendResult(0, 7), AppendResult(ErrorCode.REQUEST_TIMED_OUT)]]
    assert purgatory.high_watermark_at(B, 5) == []
    purgatory.validate_state()


class PurgatoryMachine(RuleBasedStateMachine):
    """Whatever comes in which order, every produce is answered once, and nothing is held that waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.purgatory = Purgatory()
        self.marks = {A: 0, B: 0}
        self.waiting: list[DelayedProduce] = []
        self.keys = 0

    @rule(a=st.integers(1, 5), b=st.integers(0, 5))
    def add_produce(self, a: int, b: int) -> None:
        required = {"a": self.marks[A] + a} | ({"b": self.marks[B] + b} if b else {})
        delayed = produce([], **required)
        self.purgatory.add_produce(delayed)
        self.waiting.append(delayed)

    @rule(of=st.sampled_from([A, B]), by=st.integers(1, 5))
    def advance(self, of: TopicPartition, by: int) -> None:
        self.marks[of] += by
        self.done(self.purgatory.high_watermark_at(of, self.marks[of]))

    @rule(of=st.sampled_from([A, B]))
    def fail(self, of: TopicPartition) -> None:
        self.done(self.purgatory.fail_produces_of(of, ErrorCode.KAFKA_STORAGE_ERROR))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def time_out(self, data: st.DataObject) -> None:
        late = data.draw(st.sampled_from(self.waiting))
        self.purgatory.time_out_produce(late)
        self.done([late])

    @rule(missing=st.integers(1, 100), of=st.sampled_from([(A,), (B,), (A, B)]))
    def add_fetch(self, missing: int, of: tuple[TopicPartition, ...]) -> None:
        self.keys += 1
        self.purgatory.add_fetch(fetch(str(self.keys), missing, *of))

    @rule(of=st.sampled_from([A, B]), size=st.integers(1, 100))
    def more_bytes(self, of: TopicPartition, size: int) -> None:
        assert all(one.missing_bytes <= 0 for one in self.purgatory.more_bytes(of, size))

    @rule(key=st.integers(1, 20))
    def cancel(self, key: int) -> None:
        self.purgatory.take_fetch(str(key))

    def done(self, complete: list[DelayedProduce]) -> None:
        for one in complete:
            self.waiting.remove(one)

    @invariant()
    def those_that_wait_are_those_that_must(self) -> None:
        self.purgatory.validate_state()
        for one in self.waiting:
            assert one.required_offsets
            assert all(offset > self.marks[name] for name, offset in one.required_offsets.items())


TestPurgatory = PurgatoryMachine.TestCase
