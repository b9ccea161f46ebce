"""Whatever happens on the way: what is acknowledged is in the log once, at its offset, in the order it was sent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from rayka.client.cluster import Cluster
from rayka.client.producer.batch import RecordFuture
from rayka.errors import ErrorCode, RaykaError
from rayka.types import AppendRequest
from tests.support.client_connection import LocalConnection
from tests.support.faulty_partitions import (
    ANSWER_LOST,
    LATE,
    NO_LEADER,
    PASS,
    REFUSED,
    REQUEST_LOST,
    TEMPORARY,
    TWICE,
    Fault,
    FaultyPartitions,
)
from tests.unit.client.reading import read_all, values

pytestmark = pytest.mark.usefixtures("way_to_fill")

SMALL_BATCHES = {"batch_size": 150, "retry_backoff_ms": 1}


def send(cluster: Cluster, count: int, **config: object) -> list[RecordFuture]:
    """Send numbered records in small batches and wait until each has an outcome."""
    with cluster.producer(**{**SMALL_BATCHES, **config}) as producer:
        futures = [producer.send("events", b"%06d" % number, partition=0) for number in range(count)]
        producer.flush(timeout_ms=30_000)
    return futures


def require_exactly_once(cluster: Cluster, futures: list[RecordFuture]) -> None:
    """Acknowledged records are there once, at their offsets, in order; none else but those in doubt."""
    records = read_all(cluster, "events")
    assert [record.value for record in records] == sorted({record.value for record in records})
    offsets = {record.value: record.offset for record in records}
    for number, future in enumerate(futures):
        if future.succeeded():
            assert offsets[b"%06d" % number] == future.get().offset


@pytest.mark.parametrize("fault", TEMPORARY)
def test_one_fault_neither_loses_nor_repeats_records(cluster: Cluster, faults: FaultyPartitions, fault: Fault) -> None:
    faults.fail_appends(PASS, PASS, fault)
    futures = send(cluster, 100)
    assert all(future.succeeded() for future in futures)
    assert values(cluster, "events") == [b"%06d" % number for number in range(100)]
    require_exactly_once(cluster, futures)


@pytest.mark.parametrize("first", TEMPORARY)
@pytest.mark.parametrize("second", TEMPORARY)
def test_a_fault_meets_another(cluster: Cluster, faults: FaultyPartitions, first: Fault, second: Fault) -> None:
    faults.fail_appends(PASS, first, PASS, second, first, second, PASS, second)
    futures = send(cluster, 100)
    assert all(future.succeeded() for future in futures)
    require_exactly_once(cluster, futures)


@pytest.mark.parametrize("seed", range(20))
def test_random_faults(cluster: Cluster, faults: FaultyPartitions, seed: int) -> None:
    faults.fail_at_random(seed, share=0.3)
    futures = send(cluster, 400)
    assert all(future.succeeded() for future in futures)
    require_exactly_once(cluster, futures)


@pytest.mark.parametrize("seed", range(20))
def test_random_faults_with_refusals(cluster: Cluster, faults: FaultyPartitions, seed: int) -> None:
    """A batch that is refused for good leaves a gap in the sequences, which must not cost the batches behind it."""
    faults.fail_at_random(seed, share=0.4, faults=(*TEMPORARY, REFUSED))
    futures = send(cluster, 400)
    failures = [future.exception for future in futures if future.failed()]
    assert {failure.code for failure in failures if failure} == {ErrorCode.MESSAGE_TOO_LARGE}
    require_exactly_once(cluster, futures)
    assert len(values(cluster, "events")) >= sum(future.succeeded() for future in futures)


@pytest.mark.parametrize("seed", range(20))
def test_giving_up_after_the_delivery_timeout(cluster: Cluster, faults: FaultyPartitions, seed: int) -> None:
    """Batches that run out of time are in doubt: each is there whole, once, or not at all."""
    faults.fail_at_random(seed, share=0.8, faults=(ANSWER_LOST, REQUEST_LOST, NO_LEADER))
    futures = send(cluster, 300, delivery_timeout_ms=15)
    assert all(future.is_done for future in futures)
    require_exactly_once(cluster, futures)
    faults.fail_appends()
    with cluster.producer() as producer:
        producer.send("events", b"999999").get(10)
    assert values(cluster, "events")[-1] == b"999999"


def test_records_after_a_refused_batch_arrive(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.fail_appends(PASS, REFUSED, PASS, PASS, PASS)
    futures = send(cluster, 30)
    refused = [number for number, future in enumerate(futures) if future.failed()]
    assert refused
    assert values(cluster, "events") == [b"%06d" % number for number in range(30) if number not in refused]
    with pytest.raises(RaykaError, match="events-0 were refused"):
        futures[refused[0]].get()


def test_a_leader_that_is_away_for_a_while(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.fail_appends(*[NO_LEADER] * 50)
    futures = send(cluster, 50)
    assert all(future.succeeded() for future in futures)
    require_exactly_once(cluster, futures)


def test_one_partition_in_trouble_does_not_hold_up_the_others(cluster: Cluster, faults: FaultyPartitions) -> None:
    cluster.admin().create_topic("events", partitions=2)

    def first_is_dead(request: AppendRequest) -> Fault:
        return NO_LEADER if request.topic_partition.partition == 0 else PASS

    faults.on_append = first_is_dead
    producer = cluster.producer(retry_backoff_ms=1)
    stuck = producer.send("events", b"stuck", partition=0)
    assert [producer.send("events", b"%d" % number, partition=1).get(5).offset for number in range(20)] == [*range(20)]
    assert not stuck.is_done
    faults.fail_appends()
    assert stuck.get(5).offset == 0
    producer.close()


def test_the_delivery_timeout_names_the_last_answer(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda _: NO_LEADER
    futures = send(cluster, 1, delivery_timeout_ms=300)
    with pytest.raises(RaykaError, match=r"1 records for events-0 .* NOT_LEADER_OR_FOLLOWER") as caught:
        futures[0].get()
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_retries_are_bounded(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda _: NO_LEADER
    futures = send(cluster, 1, retries=3)
    assert futures[0].failed()
    assert faults.appends == 4


def test_without_idempotence_a_lost_answer_may_write_twice(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.fail_appends(ANSWER_LOST)
    send(cluster, 1, enable_idempotence=False)
    assert values(cluster, "events") == [b"000000", b"000000"]


def test_acks_0_does_not_wait_for_an_offset(cluster: Cluster, faults: FaultyPartitions) -> None:
    assert send(cluster, 3, acks=0)[0].succeeded()
    assert len(values(cluster, "events")) == 3


def test_a_request_delivered_twice_is_appended_once(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda _: TWICE
    futures = send(cluster, 60)
    assert all(future.succeeded() for future in futures)
    require_exactly_once(cluster, futures)
    assert len(values(cluster, "events")) == 60


def test_answers_that_overtake_each_other(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.fail_appends(*[LATE, PASS] * 10)
    futures = send(cluster, 60)
    assert all(future.succeeded() for future in futures)
    require_exactly_once(cluster, futures)


@pytest.mark.parametrize("delivery_timeout_ms", [20, 10_000])
def test_a_leader_that_sleeps_and_wakes_up(
    cluster: Cluster, connection: LocalConnection, faults: FaultyPartitions, delivery_timeout_ms: int
) -> None:
    """What it finds in its queue when it wakes may be older than the retries, even older than the giving up."""
    producer = cluster.producer(
        **SMALL_BATCHES, request_timeout_ms=5, delivery_timeout_ms=delivery_timeout_ms, linger_ms=1
    )
    futures = []
    for round_ in range(10):
        if round_ % 2:
            faults.stall()
        futures += [producer.send("events", b"%06d" % (round_ * 30 + number), partition=0) for number in range(30)]
        if round_ % 2:
            with contextlib.suppress(RaykaError):
                futures[-30].get(0.03)
            connection.loop.run(as_coroutine(faults.go_on))
    producer.flush(timeout_ms=30_000)
    assert delivery_timeout_ms == 20 or all(future.succeeded() for future in futures)
    require_exactly_once(cluster, futures)
    producer.close()


async def as_coroutine(function: Callable[[], None]) -> None:
    """Run in the loop."""
    function()
