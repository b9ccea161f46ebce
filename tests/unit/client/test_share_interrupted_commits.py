"""Commits of a share consumer that are cancelled, or interrupted (Ctrl-C), after a leader has refused them for now."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share.consumer import AsyncShareConsumer
from rayka.share.requests import ShareFetchParams, ShareFetchPartition
from rayka.testing import wait_until
from tests.unit.client.interrupts import WAITING, interrupt_next_answer, interrupted_at
from tests.unit.client.test_share_arrivals import (
    EXPLICIT,
    NOT_LEADER,
    ONE_BY_ONE,
    Answer,
    Fetch,
    at_home,
    held,
    long_locks,
    polled,
    replace_fetch,
)
from tests.unit.client.test_share_close import Refusing, cancel
from tests.unit.client.test_share_consumer import ACCEPT, AwayLeaders, cluster, count_in_flight, leaders, take, write
from tests.unit.client.test_share_consumer import broker_config as broker_config

__all__ = ["broker_config", "cluster", "leaders", "long_locks"]  # fixtures


@pytest.mark.parametrize("by", ["commit", "poll_more", "close"])
def test_a_commit_that_is_cancelled_after_it_was_refused_is_sent_again(
    cluster: Cluster, leaders: AwayLeaders, by: str
) -> None:
    """It still waits until what an earlier poll could not deliver has been sent again."""
    write(cluster, 2)
    waits, gate = asyncio.Event(), asyncio.Event()

    def refusing_and_waiting(fetch: Fetch) -> Fetch:
        async def fetch_later(params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any) -> Answer:
            batches = partitions[0].acknowledgement_batches
            if gate.is_set() or not batches:
                return await fetch(params, partitions)
            if batches[0].first_offset == 0:
                waits.set()
                await gate.wait()
            return 0, [NOT_LEADER] * len(partitions)

        return fetch_later

    async def body(consumer: AsyncShareConsumer) -> None:
        first, second = await held(consumer, 2)
        consumer.accept(first)
        leaders.is_away = True
        assert await consumer.poll_more(timeout_ms=0) == []
        leaders.is_away = False
        replace_fetch(leaders, refusing_and_waiting)
        consumer.accept(second)
        commit = asyncio.ensure_future(consumer.commit())
        await waits.wait()
        await cancel(commit)
        gate.set()
        if by == "commit":
            assert not any((await consumer.commit()).values())
        elif by == "poll_more":
            assert await consumer.poll_more(timeout_ms=0) == []
        else:
            await consumer.close()
        assert not consumer._leaders.has_refused

    at_home(cluster, body, **ONE_BY_ONE)
    assert count_in_flight(cluster) == 0


def test_a_commit_that_is_interrupted_as_its_refusal_comes_is_sent_again(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        take(consumer, 1, ACCEPT)
        Refusing(leaders, 1)
        interrupt_next_answer(consumer)
        with pytest.raises(KeyboardInterrupt):
            consumer.commit()
        assert list(consumer.commit().values()) == [None]
    assert count_in_flight(cluster) == 0


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Ctrl-C came before it was given to the loop
def test_an_interrupt_anywhere_in_a_commit_that_is_refused_loses_no_acknowledgement(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    refusing, interrupts = Refusing(leaders, 0), 0
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        for place in itertools.count():
            write(cluster, 1)
            take(consumer, 1, ACCEPT)
            refusing.left = 1
            try:
                was_interrupted = interrupted_at(place, ("rayka.client.share", *WAITING), consumer.commit)
            finally:
                wait_until(lambda: not consumer._core._requests, 30, "what was given to the loop has ended")
                refusing.left = 0
            if not was_interrupted:
                break
            interrupts += 1
            consumer.commit()
            assert count_in_flight(cluster) == 0, place
    assert interrupts > 10


def test_a_commit_of_another_loop_that_is_cancelled_as_its_refusal_comes_is_sent_again(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    write(cluster, 1)

    async def main() -> None:
        async with cluster.async_share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
            consumer.accept(await polled(consumer))
            refusing = Refusing(leaders, 1)
            commit = asyncio.ensure_future(consumer.commit())
            await asyncio.sleep(0)
            wait_until(lambda: not refusing.left, 30, "it is refused")
            wait_until(lambda: not consumer._requests, 30, "it has ended")  # and this loop has not heard of it
            await cancel(commit)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert count_in_flight(cluster) == 0


def test_a_commit_that_has_told_of_a_refusal_does_not_send_it_again(cluster: Cluster, leaders: AwayLeaders) -> None:
    """The program may have undone its work."""
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        take(consumer, 1, ACCEPT)
        Refusing(leaders, 1)
        assert None not in consumer.commit().values()
        assert consumer.commit() == {}
    assert count_in_flight(cluster) == 1


def test_a_refusal_of_an_interrupted_commit_does_not_count_for_the_next_delivery(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    """The record has come once more before the commit is cancelled."""
    write(cluster, 1)
    waits, gate = asyncio.Event(), asyncio.Event()

    async def body(consumer: AsyncShareConsumer) -> None:
        record = await polled(consumer)
        consumer.accept(record)
        Refusing(leaders, 1)
        acknowledged = consumer._arrivals.acknowledged

        async def acknowledged_later() -> None:
            waits.set()
            await gate.wait()
            await acknowledged()

        consumer._arrivals.acknowledged = acknowledged_later  # type: ignore[method-assign]
        commit = asyncio.ensure_future(consumer.commit())
        await waits.wait()
        await consumer._leaders.give_back({record.topic_id_partition: [(record.offset, record.offset)]})
        assert await polled(consumer) == record
        await cancel(commit)
        gate.set()
        consumer._held.given = ()
        await consumer.commit()
        assert consumer.holds(record)

    at_home(cluster, body)
    assert count_in_flight(cluster) == 1
