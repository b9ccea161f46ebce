"""The last acknowledgements of a share consumer, what it gives back, and how it leaves, if leaders refuse for now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share import consumer as consumer_module
from rayka.client.share.consumer import AsyncShareConsumer
from rayka.share.requests import ShareFetchParams, ShareFetchPartition
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
from tests.unit.client.test_share_consumer import ACCEPT, AwayLeaders, cluster, count_in_flight, leaders, take, write
from tests.unit.client.test_share_consumer import broker_config as broker_config

__all__ = ["broker_config", "cluster", "leaders", "long_locks"]  # fixtures


class Refusing:
    """Leaders that refuse the next `count` requests with acknowledgements for now, the first after `delay_s`."""

    def __init__(self, leaders: AwayLeaders, count: float = float("inf"), delay_s: float = 0.0) -> None:
        self.left, self._delay_s = count, delay_s
        self.asked = asyncio.Event()
        replace_fetch(leaders, self._replacement)

    def _replacement(self, fetch: Fetch) -> Fetch:
        async def fetch_or_refuse(
            params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any
        ) -> Answer:
            if not self.left or not any(partition.acknowledgement_batches for partition in partitions):
                return await fetch(params, partitions)
            self.left -= 1
            self.asked.set()
            delay_s, self._delay_s = self._delay_s, 0.0
            await asyncio.sleep(delay_s)
            return 0, [NOT_LEADER] * len(partitions)

        return fetch_or_refuse


async def cancel(task: asyncio.Future[Any]) -> None:
    """Interrupt a call."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def close(consumer: AsyncShareConsumer) -> None:
    async with asyncio.timeout(20):
        await consumer.close()


def test_close_sends_again_what_a_poll_had_set_aside(cluster: Cluster, leaders: AwayLeaders) -> None:
    """The fetch of that poll was still waiting for earlier acknowledgements to be sent again."""
    write(cluster, 2)

    async def body(consumer: AsyncShareConsumer) -> None:
        first, second = await held(consumer, 2)
        consumer.accept(first)
        refusing = Refusing(leaders)
        assert await consumer.poll_more(timeout_ms=0) == []
        refusing.left, refusing._delay_s = 3, 0.3
        refusing.asked.clear()
        consumer.accept(second)
        polling = asyncio.ensure_future(consumer.poll_more(timeout_ms=5000))
        await refusing.asked.wait()
        await close(consumer)
        await asyncio.gather(polling, return_exceptions=True)

    at_home(cluster, body, **ONE_BY_ONE)
    assert count_in_flight(cluster) == 0


@pytest.mark.parametrize("has_begun", [True, False])
def test_close_sends_again_what_an_interrupted_commit_was_refused(
    cluster: Cluster, leaders: AwayLeaders, has_begun: bool
) -> None:
    write(cluster, 1)

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        refusing = Refusing(leaders, 2, 0.1)
        commit = asyncio.ensure_future(consumer.commit())
        if has_begun:
            await refusing.asked.wait()
        await cancel(commit)
        await close(consumer)

    at_home(cluster, body)
    assert count_in_flight(cluster) == 0


def test_close_does_not_send_again_what_a_commit_was_told_is_refused(cluster: Cluster, leaders: AwayLeaders) -> None:
    """The program may have undone its work, and expects the record once more."""
    write(cluster, 1)

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        refusing = Refusing(leaders, 1, 0.1)
        commit = asyncio.ensure_future(consumer.commit())
        await refusing.asked.wait()
        await close(consumer)
        assert None not in (await commit).values()

    at_home(cluster, body)
    assert count_in_flight(cluster) == 1


def test_other_records_are_given_back_while_close_sends_acknowledgements_again(
    cluster: Cluster, leaders: AwayLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_TO_RESEND_S", 60.0)
    write(cluster, 2)

    def others() -> list[tuple[int, int]]:
        with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as other:
            return [(record.offset, record.delivery_count) for record in take(other, 1)]

    async def body(consumer: AsyncShareConsumer) -> None:
        first, second = await held(consumer, 2)
        consumer.accept(first)
        refusing = Refusing(leaders)
        closing = asyncio.ensure_future(consumer.close())
        assert await asyncio.to_thread(others) == [(second.offset, 1)]
        assert not closing.done()
        refusing.left = 0
        await closing

    at_home(cluster, body, **ONE_BY_ONE)
    assert count_in_flight(cluster) == 1


def test_the_time_to_send_again_begins_with_the_first_answer(
    cluster: Cluster, leaders: AwayLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_TO_RESEND_S", 0.5)
    write(cluster, 1)
    consumer = cluster.share_consumer("workers", ["tasks"], **EXPLICIT)
    take(consumer, 1, ACCEPT)
    Refusing(leaders, 1, 0.6)
    consumer.close()
    assert count_in_flight(cluster) == 0


def test_a_leader_that_does_not_answer_the_second_time_holds_up_close_no_longer_than_one_that_refuses(
    cluster: Cluster, leaders: AwayLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_TO_RESEND_S", 0.3)
    write(cluster, 1)

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        refusing = Refusing(leaders, delay_s=0.01)
        closing = asyncio.ensure_future(close(consumer))
        await refusing.asked.wait()
        refusing._delay_s = 60.0
        await closing

    at_home(cluster, body)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_close_does_not_wait_for_acknowledgements_of_a_deleted_topic(
    cluster: Cluster, leaders: AwayLeaders, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    monkeypatch.setattr(consumer_module, "_TO_RESEND_S", 60.0)
    write(cluster, 1)

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        await asyncio.to_thread(cluster.admin().delete_topic, "tasks")
        if is_made_again:
            await asyncio.to_thread(cluster.admin().create_topic, "tasks")
        await close(consumer)

    at_home(cluster, body)


def test_a_second_close_waits_until_the_consumer_has_left(
    cluster: Cluster, leaders: AwayLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cluster, 1)
    has_left: list[bool] = []

    async def body(consumer: AsyncShareConsumer) -> None:
        await polled(consumer)
        leave = consumer._member.leave

        async def leave_slowly() -> None:
            await asyncio.sleep(0.3)
            await leave()
            has_left.append(True)

        monkeypatch.setattr(consumer._member, "leave", leave_slowly)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.sleep(0)
        await close(consumer)
        assert has_left == [True]
        await cancel(closing)

    at_home(cluster, body)


def test_an_error_of_an_interrupted_close_is_logged_and_the_records_are_given_back(
    cluster: Cluster, leaders: AwayLeaders, caplog: pytest.LogCaptureFixture
) -> None:
    write(cluster, 1)

    def failing(fetch: Fetch) -> Fetch:
        async def fail(*_: object) -> Answer:
            await asyncio.sleep(0.1)
            raise RuntimeError("no way to the leader")

        return fail

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        before = leaders.fetch
        replace_fetch(leaders, failing)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        await cancel(closing)
        await close(consumer)
        leaders.fetch = before  # type: ignore[method-assign]

    at_home(cluster, body)
    assert "closing failed: RuntimeError('no way to the leader')" in caplog.text
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        assert [record.delivery_count for record in take(consumer, 1, ACCEPT)] == [1]


def test_a_cluster_closes_its_share_consumers_together(
    cluster: Cluster, leaders: AwayLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take seconds to send its last acknowledgements."""
    monkeypatch.setattr(consumer_module, "_TO_RESEND_S", 10.0)
    write(cluster, 3)
    consumers = [cluster.share_consumer("workers", ["tasks"], **ONE_BY_ONE) for _ in range(3)]
    for consumer in consumers:
        take(consumer, 1, ACCEPT)
    closing: set[str] = set()

    def refusing_until_all_close(fetch: Fetch) -> Fetch:
        async def fetch_or_refuse(
            params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any
        ) -> Answer:
            closing.add(params.member_id)
            return await fetch(params, partitions) if len(closing) == 3 else (0, [NOT_LEADER] * len(partitions))

        return fetch_or_refuse

    replace_fetch(leaders, refusing_until_all_close)
    cluster._close_clients()
    assert count_in_flight(cluster) == 0
