"""What becomes of records that are processed in a `with` block, and of commits that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share.blocking import ShareConsumer
from rayka.client.share.consumer import CommitResults
from rayka.coordinator.shares.requests import StateBatch
from rayka.errors import ErrorCode, RaykaError
from rayka.testing import wait_until
from tests.unit.client.test_share_consumer import broker_config as broker_config
from tests.unit.client.test_share_consumer import cluster, forget_leaders, take, write

__all__ = ["broker_config", "cluster"]  # fixtures


@pytest.fixture
def consumer(cluster: Cluster) -> Iterator[ShareConsumer]:
    """A member that acknowledges each record."""
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as member:
        yield member


def test_records_are_accepted_released_or_rejected_by_how_their_processing_ends(
    cluster: Cluster, consumer: ShareConsumer
) -> None:
    write(cluster, 5)
    passing = RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    failures = [None, ConnectionError(), ValueError(), KeyError(), passing]
    for record, failure in zip(take(consumer, 5), failures, strict=True):
        with consumer.processing(record, retriable=(ConnectionError, KeyError)):
            if failure is not None:
                raise failure
    assert list(consumer.commit().values()) == [None]
    again = take(consumer, 3)
    assert [(record.offset, record.delivery_count) for record in again] == [(1, 2), (3, 2), (4, 2)]
    for record in again:
        with consumer.processing(record):
            pass
    consumer.commit()
    assert consumer.poll(timeout_ms=1200) == []


def test_a_record_that_fails_for_now_comes_back_after_its_delay(cluster: Cluster, consumer: ShareConsumer) -> None:
    write(cluster, 1)
    (record,) = take(consumer, 1)
    with consumer.processing(record, delay_ms=60_000):
        raise TimeoutError
    consumer.commit()
    assert consumer.poll(timeout_ms=300) == []


class Unspeakable(Exception):
    """An error of which nothing can be told."""

    __module__ = "m" * 5000

    def __repr__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("error", [ValueError("caf\udce9.txt"), Unspeakable()])
def test_a_record_is_rejected_whatever_the_text_of_its_error(
    cluster: Cluster, consumer: ShareConsumer, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(
        "CRITICAL", "rayka.client.share.processing"
    )  # pytest-xdist can't send such text to its main process
    write(cluster, 1)
    with consumer.processing(take(consumer, 1)[0]):
        raise error
    assert list(consumer.commit().values()) == [None]


def test_an_acknowledgement_inside_of_the_block_counts(cluster: Cluster, consumer: ShareConsumer) -> None:
    write(cluster, 2)
    first, second = take(consumer, 2)
    with consumer.processing(first):
        consumer.release(first)
    with consumer.processing(second):
        consumer.accept(second)
        raise ValueError("too late")
    consumer.commit()
    assert [record.offset for record in take(consumer, 1)] == [first.offset]


def test_an_interrupt_releases_the_record_and_ends_the_program(cluster: Cluster, consumer: ShareConsumer) -> None:
    write(cluster, 1)
    (record,) = take(consumer, 1)
    with pytest.raises(KeyboardInterrupt), consumer.processing(record):
        raise KeyboardInterrupt
    consumer.commit()
    assert take(consumer, 1)[0].delivery_count == 2


def test_a_commit_tells_its_results_later(cluster: Cluster, consumer: ShareConsumer) -> None:
    write(cluster, 2)
    told: list[tuple[CommitResults | None, BaseException | None]] = []
    is_told = threading.Event()

    def tell(results: CommitResults | None, error: BaseException | None) -> None:
        told.append((results, error))
        is_told.set()

    for record in take(consumer, 2):
        consumer.accept(record)
    future = consumer.commit_async(tell)
    assert list(future.result(60).values()) == [None]
    assert is_told.wait(20)
    assert told == [(future.result(), None)]


def test_closing_waits_for_commits(cluster: Cluster) -> None:
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as leaving:
        leaving.accept(take(leaving, 1)[0])
        future = leaving.commit_async()
    assert future.done()
    assert list(future.result().values()) == [None]


def test_an_error_that_will_not_pass_ends_a_poll(cluster: Cluster, consumer: ShareConsumer) -> None:
    write(cluster, 1)
    consumer.release(take(consumer, 1)[0])
    consumer.commit()
    states = cluster._connection.broker.shares.core.states  # type: ignore[attr-defined]
    for key, state in states.items():
        states[key] = replace(state, state_batches=(StateBatch(0, 5, 0, 1), StateBatch(3, 4, 0, 1)))
    forget_leaders(cluster)
    with pytest.raises(RaykaError, match=r"the persisted state .* is damaged") as raised:
        take(consumer, 1)
    assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_poll_of_another_kind_of_group_is_refused(cluster: Cluster) -> None:
    with cluster.consumer("billing", ["tasks"]) as other:
        wait_until(lambda: other.poll(timeout_ms=20) == {} and other.assignment() != set(), 60, "it is a member")
        with (
            cluster.share_consumer("billing", ["tasks"]) as consumer,
            pytest.raises(RaykaError, match="not a share group"),
        ):
            take(consumer, 1)
