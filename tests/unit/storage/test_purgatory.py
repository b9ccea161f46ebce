"""Delayed fetches and produces are released when, and only when, their partition got on far enough."""

from __future__ import annotations

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


def test_one_partition_releases_all_who_wait_for_it() -> None:
    purgatory = Purgatory()
    first, second, other = fetch("1", 1, A), fetch("2", 500, A, B), fetch("3", 1, B)
    for waiting in (first, second, other):
        purgatory.add_fetch(waiting)
    assert purgatory.more_bytes(A, 10) == [first]
    assert purgatory.take_fetches_of(A) == [second]
    assert purgatory.more_bytes(B, 10) == [other]


def test_a_produce_waits_for_each_of_its_partitions() -> None:
    purgatory = Purgatory()
    both = DelayedProduce(print, [AppendResult(0)], {A: 10, B: 5})
    one = DelayedProduce(print, [AppendResult(0)], {A: 20})
    purgatory.add_produce(both)
    purgatory.add_produce(one)
    assert purgatory.high_watermark_at(A, 9) == []
    assert purgatory.high_watermark_at(A, 10) == []
    assert purgatory.high_watermark_at(B, 5) == [both]
    assert purgatory.high_watermark_at(A, 25) == [one]
    assert purgatory.high_watermark_at(A, 30) == []
