"""Rebalance callbacks of a consumer with several calls under way: each runs once."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer.consumer import WakeupError
from rayka.client.group.blocking import GroupConsumer
from rayka.client.group.consumer import AsyncGroupConsumer
from rayka.client.group.member import RebalanceCallback
from rayka.client.group.membership import MembershipState
from rayka.errors import ErrorCode, RaykaError
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.support.client_connection import LocalConnection
from tests.unit.client.grouped import write
from tests.unit.client.interrupts import WAITING, interrupted_at
from tests.unit.client.test_group_consumer import SETTINGS, broker_config, cluster, share, until

__all__ = ["broker_config", "cluster"]  # fixtures


@pytest.fixture
def others() -> Any:
    """A thread of the program's own, beside that of the test."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


def subscribed(cluster: Cluster, on_revoked: Callable[[list[TopicPartition]], object]) -> GroupConsumer:
    """A consumer with all four partitions."""
    consumer = cluster.consumer("g", **SETTINGS)
    consumer.subscribe(["events"], on_revoked=on_revoked)
    until(share(consumer), consumer)
    return consumer


def is_waiting(consumer: GroupConsumer | AsyncGroupConsumer) -> bool:
    """Whether a call waits for news."""
    core = consumer._core if isinstance(consumer, GroupConsumer) else consumer
    return core._fetcher._polls_waiting > 0


def begin_revocation(cluster: Cluster, consumer: GroupConsumer) -> None:
    """The consumer has to give up two partitions, and nobody has asked what to do yet."""
    other = cluster.consumer("g", ["events"], **SETTINGS)
    membership = consumer._core._membership
    until(lambda: membership.state is MembershipState.RECONCILING, other)


def test_close_while_a_poll_waits_revokes_once_and_in_its_own_thread(
    cluster: Cluster, others: ThreadPoolExecutor
) -> None:
    revoked: list[tuple[int, int]] = []
    consumer = subscribed(cluster, lambda partitions: revoked.append((threading.get_ident(), len(partitions))))
    polling = others.submit(consumer.poll, 60_000)
    wait_until(lambda: is_waiting(consumer), 30, "it waits for records")
    consumer.close()
    with pytest.raises(RaykaError, match="The consumer is closed"):
        polling.result(60)
    assert revoked == [(threading.get_ident(), 4)]
    assert cluster.admin().describe_group("g").members == ()


def test_close_runs_the_callback_that_a_poll_has_not_begun(
    cluster: Cluster, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll has heard of a revocation when another thread closes the consumer."""
    revoked: list[tuple[int, int]] = []
    consumer = subscribed(cluster, lambda partitions: revoked.append((threading.get_ident(), len(partitions))))
    begin_revocation(cluster, consumer)
    run, has_heard, go_on = consumer._run_callback, threading.Event(), threading.Event()

    def run_late(callback: RebalanceCallback) -> None:
        if threading.get_ident() != me:
            has_heard.set()
            assert go_on.wait(60)
        run(callback)

    me = threading.get_ident()
    monkeypatch.setattr(consumer, "_run_callback", run_late)
    polling = others.submit(consumer.poll, 60_000)
    assert has_heard.wait(60)
    consumer.close()
    go_on.set()
    with pytest.raises(RaykaError, match="The consumer is closed"):
        polling.result(60)
    assert revoked == [(me, 2), (me, 2)]


def test_close_waits_for_the_callback_that_a_poll_runs_and_leaves_then(
    cluster: Cluster, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have heard of a revocation, and the poll is quicker."""
    revoked: list[tuple[int, int]] = []
    has_heard, has_begun, me = threading.Event(), threading.Event(), threading.get_ident()

    def on_revoked(partitions: list[TopicPartition]) -> None:
        revoked.append((threading.get_ident(), len(partitions)))
        if not has_begun.is_set():
            has_begun.set()
            wait_until(lambda: is_waiting(consumer), 30, "close waits")

    consumer = subscribed(cluster, on_revoked)
    begin_revocation(cluster, consumer)
    run = consumer._run_callback

    def run_late(callback: RebalanceCallback) -> None:
        has_heard.set()
        assert has_begun.wait(60)
        run(callback)

    monkeypatch.setattr(consumer, "_run_callback", run_late)
    event = consumer._loop.run(consumer._core.next_event(list, None))
    assert isinstance(event, RebalanceCallback)
    closing = others.submit(consumer.close)
    assert has_heard.wait(60)
    run(event)
    closing.result(60)
    assert [(thread == me, count) for thread, count in revoked] == [(True, 2), (False, 2)]
    left = {member.member_id for member in cluster.admin().describe_group("g").members}
    assert len(left) == 1
    assert consumer._core._membership.identity.member_id not in left


def test_close_in_another_thread_waits_for_the_callback_that_runs_and_leaves_the_group(
    cluster: Cluster, others: ThreadPoolExecutor
) -> None:
    """What the callback commits counts."""
    has_begun, may_end = threading.Event(), threading.Event()
    revoked: list[int] = []

    def on_revoked(partitions: list[TopicPartition]) -> None:
        revoked.append(len(partitions))
        if not has_begun.is_set():
            has_begun.set()
            assert may_end.wait(60)
            consumer.commit({partitions[0]: 7})

    consumer = subscribed(cluster, on_revoked)
    begin_revocation(cluster, consumer)
    polling = others.submit(consumer.poll, 60_000)
    assert has_begun.wait(60)
    with ThreadPoolExecutor(1) as third:
        closing = third.submit(consumer.close)
        wait_until(lambda: closing.done() or is_waiting(consumer), 30, "close waits")
        assert not closing.done()
        may_end.set()
        closing.result(60)
    with pytest.raises(RaykaError, match="The consumer is"):
        polling.result(60)
    assert revoked == [2, 2]
    left = {member.member_id for member in cluster.admin().describe_group("g").members}
    assert len(left) == 1
    assert consumer._core._membership.identity.member_id not in left
    committed = cluster.consumer("g").committed([TopicPartition("events", number) for number in range(4)])
    assert 7 in {one.offset for one in committed.values() if one is not None}


def test_close_says_so_where_a_callback_still_runs_at_the_end_of_its_time(
    cluster: Cluster, others: ThreadPoolExecutor
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def on_assigned(_: list[TopicPartition]) -> None:
        has_begun.set()
        assert may_end.wait(60)

    consumer = cluster.consumer("g", **SETTINGS)
    consumer.subscribe(["events"], on_assigned=on_assigned)
    polling = others.submit(consumer.poll, 60_000)
    assert has_begun.wait(60)
    with pytest.raises(RaykaError, match="a rebalance callback still runs") as late:
        consumer.close(timeout_ms=50)
    assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
    may_end.set()
    with pytest.raises(RaykaError, match="The consumer is closed"):
        polling.result(60)
    consumer.close()


def test_a_close_ends_with_another_one_that_has_less_time(cluster: Cluster, others: ThreadPoolExecutor) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def on_assigned(_: list[TopicPartition]) -> None:
        has_begun.set()
        assert may_end.wait(60)

    consumer = cluster.consumer("g", **SETTINGS)
    consumer.subscribe(["events"], on_assigned=on_assigned)
    polling = others.submit(consumer.poll, 60_000)
    assert has_begun.wait(60)
    with ThreadPoolExecutor(1) as third:
        closing = third.submit(consumer.close)
        wait_until(lambda: is_waiting(consumer), 30, "close waits")
        with pytest.raises(RaykaError, match="a rebalance callback still runs"):
            consumer.close(timeout_ms=50)
        try:
            closing.result(60)
        finally:
            may_end.set()
    with pytest.raises(RaykaError, match="The consumer is closed"):
        polling.result(60)


def test_close_leaves_though_a_callback_subscribes_meanwhile(cluster: Cluster) -> None:
    def on_revoked(_: list[TopicPartition]) -> None:
        consumer.subscribe(["events"])

    consumer = subscribed(cluster, on_revoked)
    consumer.close()
    assert cluster.admin().describe_group("g").members == ()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Ctrl-C came before it was given to the loop
def test_close_leaves_though_the_callback_for_which_it_waits_is_interrupted_anywhere(
    cluster: Cluster, others: ThreadPoolExecutor
) -> None:
    """Also where the loop does not hear of the callback's end."""
    me = threading.get_ident()

    def interrupted(place: int) -> bool:
        runs: list[int] = []
        closing: list[Future[None]] = []

        def on_assigned(_: list[TopicPartition]) -> None:
            runs.append(threading.get_ident())
            if runs == [me]:
                closing.append(others.submit(consumer.close))
                wait_until(lambda: is_waiting(consumer), 30, "close waits")

        consumer = cluster.consumer("g", enable_auto_commit=False, **SETTINGS)
        consumer.subscribe(["events"], on_assigned=on_assigned)
        event = consumer._loop.run(consumer._core.next_event(list, None))
        assert isinstance(event, RebalanceCallback)
        modules = ("rayka.client.group", "rayka.client.loop")
        was_interrupted = interrupted_at(place, modules, lambda: consumer._run_callback(event))
        (closing or [others.submit(consumer.close)])[0].result(20)  # long before it gives up
        assert len(runs) == 1, place
        assert cluster.admin().describe_group("g").members == (), place
        return was_interrupted

    for place in itertools.count():
        if not interrupted(place):
            break
    assert place > 10


def test_a_task_may_close_or_unsubscribe_while_the_callback_of_another_one_runs(cluster: Cluster) -> None:
    """They wait for its end; in the callback, or a task of it, they would wait for themselves."""

    async def main(leave: Callable[[AsyncGroupConsumer], Awaitable[None]]) -> None:
        consumer = cluster.async_consumer("g", **SETTINGS)
        has_begun, may_end = asyncio.Event(), asyncio.Event()

        async def on_assigned(_: list[TopicPartition]) -> None:
            has_begun.set()
            await may_end.wait()
            for awaited in (consumer.unsubscribe(), asyncio.create_task(consumer.unsubscribe())):
                with pytest.raises(RaykaError, match="A rebalance callback runs"):
                    await awaited

        await consumer.subscribe(["events"], on_assigned=on_assigned)
        polling = asyncio.create_task(consumer.poll(60_000))
        await has_begun.wait()
        leaving = asyncio.create_task(leave(consumer))
        while not is_waiting(consumer):
            await asyncio.sleep(0.001)
            assert not leaving.done() or await leaving
        may_end.set()
        await leaving
        assert cluster.admin().describe_group("g").members == ()
        polling.cancel()
        await asyncio.wait([polling])
        await consumer.close()

    asyncio.run(asyncio.wait_for(main(AsyncGroupConsumer.close), 60))
    asyncio.run(asyncio.wait_for(main(AsyncGroupConsumer.unsubscribe), 60))


def test_a_callback_that_closes_its_consumer_gets_an_error_and_a_close_after_the_poll_leaves(cluster: Cluster) -> None:
    errors: list[ErrorCode] = []

    def on_assigned(_: list[TopicPartition]) -> None:
        for _ in range(2):
            with pytest.raises(RaykaError, match="a close or unsubscribe within it") as refused:
                consumer.close()
            errors.append(refused.value.code)

    consumer = cluster.consumer("g", **SETTINGS)
    consumer.subscribe(["events"], on_assigned=on_assigned)
    until(share(consumer), consumer)
    assert errors == [ErrorCode.INVALID_REQUEST] * 2
    assert len(cluster.admin().describe_group("g").members) == 1
    consumer.close()
    consumer.close()
    assert cluster.admin().describe_group("g").members == ()


def test_a_poll_is_woken_up_though_that_was_asked_while_another_task_left_the_group(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.async_consumer("g", enable_auto_commit=False, **SETTINGS) as consumer:

            def on_revoked(_: list[TopicPartition]) -> None:
                consumer.wakeup()

            await consumer.subscribe(["events"], on_revoked=on_revoked)
            while len(await consumer.assignment()) < 4:
                await consumer.poll(10)
            polling = asyncio.create_task(consumer.poll(60_000))
            while not is_waiting(consumer):
                await asyncio.sleep(0.001)
            await consumer.unsubscribe()
            with pytest.raises(WakeupError):
                await polling

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_callback_runs_once_though_several_tasks_iterate(cluster: Cluster) -> None:
    """The others wait until it has ended."""
    revoked: list[int] = []

    async def main() -> None:
        consumer = cluster.async_consumer("g", **SETTINGS)

        async def on_revoked(partitions: list[TopicPartition]) -> None:
            revoked.append(len(partitions))
            await asyncio.to_thread(wait_until, lambda: is_waiting(consumer), 30, "the other task waits")

        async def work() -> None:
            async for _ in consumer:
                pass

        async with consumer:
            await consumer.subscribe(["events"], on_revoked=on_revoked)
            workers = [asyncio.create_task(work()) for _ in range(2)]
            while len(await consumer.assignment()) < 4:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(take_half)
            while len(await consumer.assignment()) > 2:
                await asyncio.sleep(0.01)
            assert not any(worker.done() for worker in workers)
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
            consumer._member.listeners = {}

    def take_half() -> None:
        other = cluster.consumer("g", ["events"], **SETTINGS)
        until(lambda: len(other.assignment()) == 2, other)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert revoked == [2]


def test_a_task_that_is_cancelled_within_a_callback_is_not_in_the_way(
    cluster: Cluster, connection: LocalConnection
) -> None:
    """Nor if the client had not heard of its end."""
    go_on = threading.Event()

    async def main() -> None:
        async with cluster.async_consumer("g", **SETTINGS) as consumer:

            def on_assigned(_: list[TopicPartition]) -> None:
                task = asyncio.current_task()
                assert task is not None
                connection.loop.call_soon(go_on.wait)
                task.cancel()

            await consumer.subscribe(["events"], on_assigned=on_assigned)
            polling = asyncio.create_task(consumer.poll(60_000))
            await asyncio.wait([polling])
            assert polling.cancelled()
            go_on.set()
            await consumer.poll(10)
            assert consumer._membership.state in (MembershipState.ACKNOWLEDGING, MembershipState.STABLE)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_task_may_begin_to_iterate_while_the_callback_of_another_one_runs(cluster: Cluster) -> None:
    """It may have processed a record meanwhile. In a callback, or a task of it, it would wait for itself."""
    refused: list[ErrorCode] = []

    async def main() -> None:
        async with cluster.async_consumer("g", **SETTINGS) as consumer, cluster.async_consumer("h") as other:
            has_begun, may_end = asyncio.Event(), asyncio.Event()

            async def read() -> object:
                return await anext(consumer)

            async def on_assigned(_: list[TopicPartition]) -> None:
                await other.subscribe(["events"], on_assigned=lambda _: None)
                while len(await other.assignment()) < 4:
                    await other.poll(10)
                for awaited in (read(), asyncio.create_task(read())):
                    with pytest.raises(RaykaError, match="A rebalance callback runs") as refusal:
                        await awaited
                    refused.append(refusal.value.code)
                has_begun.set()
                await may_end.wait()

            await consumer.subscribe(["events"], on_assigned=on_assigned)
            first = asyncio.create_task(read())
            await has_begun.wait()
            second = asyncio.create_task(read())
            with pytest.raises(RaykaError, match="A rebalance callback runs"):
                await consumer.poll()
            while consumer._fetcher._polls_waiting < 1:
                await asyncio.sleep(0.001)
            may_end.set()
            await asyncio.to_thread(write, cluster, 8)
            await asyncio.wait_for(asyncio.gather(first, second), 20)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert refused == [ErrorCode.INVALID_REQUEST] * 2


def test_after_an_unsubscribe_that_was_cancelled_in_a_callback_polls_go_on(cluster: Cluster) -> None:
    """Also one that was under way."""

    async def main() -> None:
        async with cluster.async_consumer("g", enable_auto_commit=False, **SETTINGS) as consumer:
            is_slow = asyncio.Event()

            async def on_revoked(_: list[TopicPartition]) -> None:
                if not is_slow.is_set():
                    is_slow.set()
                    await asyncio.Event().wait()

            await consumer.subscribe(["events"], on_revoked=on_revoked)
            while len(await consumer.assignment()) < 4:
                await consumer.poll(10)
            polling = asyncio.create_task(consumer.poll(60_000))
            while not is_waiting(consumer):
                await asyncio.sleep(0.001)
            leaving = asyncio.create_task(consumer.unsubscribe())
            await is_slow.wait()
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            consumer.wakeup()
            with pytest.raises(WakeupError):
                await asyncio.wait_for(polling, 20)
            await consumer.subscribe(["events"])
            while len(await consumer.assignment()) < 4:
                await consumer.poll(10)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Ctrl-C came before it was given to the loop
def test_after_an_unsubscribe_that_was_interrupted_anywhere_polls_go_on(cluster: Cluster) -> None:
    calls: list[int] = []
    consumer = subscribed(cluster, lambda partitions: calls.append(len(partitions)))
    for place in itertools.count():
        calls.clear()
        was_interrupted = interrupted_at(place, ("rayka.client.group", *WAITING), consumer.unsubscribe)
        consumer.subscribe(["events"], on_revoked=lambda partitions: calls.append(len(partitions)))
        until(share(consumer), consumer)
        until(lambda: consumer._core._membership.state is MembershipState.STABLE, consumer)
        assert calls in ([4], []), place  # none where it had not begun
        if not was_interrupted:
            break
    assert place > 10


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Ctrl-C came before it was given to the loop
def test_an_interrupt_anywhere_in_a_poll_neither_skips_nor_repeats_a_callback(cluster: Cluster) -> None:
    consumer = subscribed(cluster, lambda _: None)
    calls: list[int] = []

    def interrupted(place: int) -> bool:
        """Let it assign its partitions anew, with Ctrl-C at this place of a poll."""
        calls.clear()
        consumer.unsubscribe()
        consumer.subscribe(["events"], on_assigned=lambda partitions: calls.append(len(partitions)))
        wait_until(lambda: consumer._core._membership.state is MembershipState.RECONCILING, 30, "an assignment")
        return interrupted_at(place, ("rayka.client.group", *WAITING), lambda: consumer.poll(50))

    for place in itertools.count():
        was_interrupted = interrupted(place)
        until(share(consumer), consumer)
        until(lambda: consumer._core._membership.state is not MembershipState.RECONCILING, consumer)
        assert calls == [4], place
        if not was_interrupted:
            break
    assert place > 10
