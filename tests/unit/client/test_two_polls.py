"""Two polls of one consumer at the same time: of two tasks, or of a program and its signal handler."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer.records import ConsumerRecord, RecordBatches
from rayka.errors import ErrorCode, RaykaError
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.unit.client.interrupts import WAITING, signalled_at

EVENTS = TopicPartition("events", 0)
CONSUMER = ("rayka.client.consumer", "rayka.client.group", *WAITING)
CALLS = ["poll", "poll_batches", "poll_table", "iteration"]
PAIRS = [pair for pair in itertools.product(CALLS, CALLS) if pair != ("iteration", "iteration")]


def fill(cluster: Cluster, count: int) -> None:
    """Write records, each in a batch of its own."""
    with cluster.producer() as producer:
        for _ in range(count):
            producer.send("events", b"value", partition=0).get(30)


def offsets(answer: Any) -> list[int]:
    """The offsets of the records that a call returned."""
    if isinstance(answer, pa.Table):
        return list(answer["offset"].to_pylist())
    if isinstance(answer, ConsumerRecord):
        return [answer.offset]
    return [offset for each in answer.get(EVENTS, ()) for offset in _offsets(each)]


def _offsets(each: ConsumerRecord | RecordBatches) -> Iterable[int]:
    return range(each.position, each.next_offset) if isinstance(each, RecordBatches) else [each.offset]


async def read(consumer: Any, call: str, timeout_ms: float = 30_000) -> list[int]:
    """The offsets of the records that this call returns."""
    return offsets(await (anext(consumer) if call == "iteration" else getattr(consumer, call)(timeout_ms)))


def read_here(consumer: Any, call: str, timeout_ms: float = 30_000) -> list[int]:
    """As `read`, for the blocking form; iteration waits for `consumer_timeout_ms`."""
    return offsets(next(consumer, {}) if call == "iteration" else getattr(consumer, call)(timeout_ms))


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_second_task_gets_an_error_and_the_first_all_records(
    cluster: Cluster, group: str | None, first: str, second: str
) -> None:
    fill(cluster, 3)

    async def main() -> list[int]:
        async with cluster.async_consumer(group, auto_offset_reset="earliest", consumer_timeout_ms=30_000) as consumer:
            await consumer.assign([EVENTS])
            polling = asyncio.ensure_future(read(consumer, first))
            await asyncio.sleep(0)
            state = consumer._fetcher.partitions[EVENTS]
            wait_until(lambda: state.position, 60, "records have come")  # and the first task has not heard of it
            with pytest.raises(RaykaError, match="This consumer is polling") as refused:
                await read(consumer, second)
            assert refused.value.code is ErrorCode.INVALID_REQUEST
            found = await polling
            while len(found) < 3:
                found += await read(consumer, second)
            return found + await read(consumer, "poll", 50)

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [0, 1, 2]


@pytest.mark.parametrize("how", ["assigned", "assigned, in a group", "subscribed"])
def test_tasks_of_one_loop_that_iterate_share_the_records(cluster: Cluster, how: str) -> None:
    """Such as a pool of workers, which iterate while others wait for records, or some end."""
    fill(cluster, 1)
    group = None if how == "assigned" else "readers"

    async def main() -> list[int]:
        found = list[int]()
        async with cluster.async_consumer(
            group, auto_offset_reset="earliest", consumer_timeout_ms=30_000, max_poll_records=3
        ) as consumer:
            if how == "subscribed":
                await consumer.subscribe(["events"])
            else:
                await consumer.assign([EVENTS])

            async def work(number: int) -> None:
                async for record in consumer:
                    found.append(record.offset)
                    await asyncio.sleep(0.001 * number)

            workers = [asyncio.create_task(work(number)) for number in range(5)]
            for number in range(4):
                await asyncio.to_thread(fill, cluster, 20)
                while len(found) < 20 * number + 21:
                    await asyncio.sleep(0.01)
                workers[number].cancel()
            await asyncio.wait(workers[:4])
            workers[4].cancel()
            await asyncio.wait(workers)
            assert all(worker.cancelled() for worker in workers)
            return found

    assert sorted(asyncio.run(asyncio.wait_for(main(), 60))) == [*range(81)]


@pytest.mark.parametrize("group", [None, "readers"])
def test_tasks_that_iterate_share_the_records_of_one_fetch(cluster: Cluster, group: str | None) -> None:
    """Also if one of them takes only its first record: the other does not wait until there are more."""
    cluster.admin().create_topic("events")

    def write() -> None:
        with cluster.producer() as producer:
            producer.send_batch("events", 0, [b"value"] * 2)

    async def main() -> list[int]:
        async with cluster.async_consumer(group, auto_offset_reset="earliest") as consumer:
            await consumer.assign([EVENTS])
            workers = [asyncio.ensure_future(anext(consumer)) for _ in range(2)]
            await asyncio.sleep(0)
            await asyncio.to_thread(write)
            return [record.offset for record in await asyncio.gather(*workers)]

    assert sorted(asyncio.run(asyncio.wait_for(main(), 20))) == [0, 1]


@pytest.mark.parametrize("group", [None, "readers"])
def test_a_task_whose_record_another_one_takes_first_looks_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    """It found that there is one; then the other task, in the thread of its loop, took it. There are more."""
    cluster.admin().create_topic("events", partitions=1)
    fill(cluster, 5)
    taken: list[int] = []

    async def main() -> int:
        async with cluster.async_consumer(group, auto_offset_reset="earliest", max_poll_records=1) as consumer:
            await consumer.assign([EVENTS])
            first = await anext(consumer)
            look = consumer.filling

            def look_too_late() -> bool:
                found = look()
                if found and not taken:
                    taken.append(consumer.pending.popleft().offset)
                return found

            monkeypatch.setattr(consumer, "filling", look_too_late)
            taken.clear()
            assert first.offset == 0
            return (await asyncio.wait_for(anext(consumer), 3)).offset

    assert asyncio.run(main()) == 2
    assert taken == [1]


def test_tasks_of_two_loops_do_not_iterate_at_once(cluster: Cluster) -> None:
    async def main() -> int:
        async with cluster.async_consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign([EVENTS])
            iterating = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)

            async def iterate() -> None:
                await anext(consumer)

            with pytest.raises(RaykaError, match="This consumer is polling"):
                await asyncio.to_thread(asyncio.run, iterate())
            await asyncio.to_thread(fill, cluster, 1)
            return (await iterating).offset

    assert asyncio.run(asyncio.wait_for(main(), 60)) == 0


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize("call", CALLS)
def test_a_poll_that_was_cancelled_is_no_longer_in_the_way(cluster: Cluster, group: str | None, call: str) -> None:
    fill(cluster, 6)

    async def main() -> list[int]:
        async with cluster.async_consumer(group, auto_offset_reset="earliest", max_poll_records=3) as consumer:
            await consumer.assign([EVENTS])
            polling = asyncio.ensure_future(read(consumer, call))
            await asyncio.sleep(0)
            polling.cancel()  # which that task does not notice before this one waits
            found = await read(consumer, call)
            with pytest.raises(asyncio.CancelledError):
                await polling
            while len(found) < 6:
                found += await read(consumer, call)
            return found

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [*range(6)]


def test_the_next_task_may_poll_while_a_table_is_made(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cluster, 1)

    async def main() -> list[int]:
        async with cluster.async_consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign([EVENTS])
            make, others = consumer.table_maker.table_of, list[int]()

            def poll_too(*arguments: Any) -> Any:
                asyncio.run_coroutine_threadsafe(poll(), loop).result(30)
                return make(*arguments)

            async def poll() -> None:
                await asyncio.to_thread(fill, cluster, 1)
                others.extend(await read(consumer, "poll"))

            loop = asyncio.get_running_loop()
            monkeypatch.setattr(consumer.table_maker, "table_of", poll_too)
            return await read(consumer, "poll_table") + others

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [0, 1]


def test_what_another_task_polled_comes_again_behind_the_records_of_a_table_that_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 1)

    async def main() -> tuple[list[int], list[int]]:
        async with cluster.async_consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign([EVENTS])
            others, again = list[int](), list[int]()

            def poll_and_fail(*_: Any) -> Any:
                asyncio.run_coroutine_threadsafe(poll(), loop).result(30)
                raise MemoryError

            async def poll() -> None:
                await asyncio.to_thread(fill, cluster, 1)
                others.extend(await read(consumer, "poll"))

            loop = asyncio.get_running_loop()
            monkeypatch.setattr(consumer.table_maker, "table_of", poll_and_fail)
            with pytest.raises(MemoryError):
                await read(consumer, "poll_table")
            while len(again) < 2:
                again += await read(consumer, "poll")
            return others, again

    assert asyncio.run(asyncio.wait_for(main(), 60)) == ([1], [0, 1])


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize("first", CALLS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a task that nobody cancelled
def test_a_task_that_a_loop_left_behind_when_it_was_closed_is_not_in_the_way(
    cluster: Cluster, group: str | None, first: str
) -> None:
    consumer = cluster.async_consumer(group, auto_offset_reset="earliest")
    left_behind: list[Any] = []

    async def begin() -> None:
        await consumer.assign([EVENTS])
        left_behind.append(asyncio.ensure_future(read(consumer, first)))
        await asyncio.wait(left_behind, timeout=0.01)

    async def read_and_close() -> list[int]:
        async with consumer:
            return await read(consumer, "poll")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    fill(cluster, 1)
    assert asyncio.run(asyncio.wait_for(read_and_close(), 60)) == [0]
    assert not left_behind[0].done()


def test_what_polls_in_a_loop_that_goes_on_is_named_so_that_it_can_be_cancelled(cluster: Cluster) -> None:
    """As after Ctrl-C in `run_until_complete(anext(consumer))`."""
    consumer = cluster.async_consumer(auto_offset_reset="earliest")
    loop = asyncio.new_event_loop()

    def interrupt() -> None:
        raise KeyboardInterrupt

    loop.run_until_complete(consumer.assign([EVENTS]))
    loop.call_later(0.01, interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(anext(consumer))
    fill(cluster, 1)
    with pytest.raises(RaykaError, match="This consumer is polling") as refused:
        loop.run_until_complete(consumer.poll(30_000))
    (waiting,) = (task for task in asyncio.all_tasks(loop) if f"If nobody waits for {task.get_name()} " in str(refused))
    waiting.cancel()
    assert offsets(loop.run_until_complete(consumer.poll(30_000))) == [0]
    loop.run_until_complete(consumer.close())
    loop.close()


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize("call", CALLS)
def test_a_task_that_went_on_after_it_was_cancelled_polls_as_others(
    cluster: Cluster, group: str | None, call: str
) -> None:
    async def main() -> list[int]:
        async with cluster.async_consumer(group, auto_offset_reset="earliest") as consumer:
            await consumer.assign([EVENTS])

            async def go_on() -> list[int]:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    return await read(consumer, call)
                return []

            polling = asyncio.create_task(go_on())
            await asyncio.sleep(0)
            polling.cancel()
            await asyncio.sleep(0)
            with pytest.raises(RaykaError, match="This consumer is polling"):
                await consumer.poll(30_000)
            await asyncio.to_thread(fill, cluster, 1)
            return await polling

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [0]


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("max_poll_records", [1, 2])
@pytest.mark.parametrize("in_handler", ["poll", "iteration", "iteration to the end"])
def test_a_signal_handler_that_polls_anywhere_in_a_poll_neither_loses_nor_repeats_records(
    cluster: Cluster, group: str | None, call: str, in_handler: str, max_poll_records: int
) -> None:
    """It gets an error, or the records before or behind those of the poll; maybe there are none."""
    fill(cluster, 6)
    config: Any = {"max_poll_records": max_poll_records, "consumer_timeout_ms": 20}
    consumer = cluster.consumer(group, auto_offset_reset="earliest", **config)
    consumer.assign([EVENTS])
    refused = 0
    for place in itertools.count():
        consumer.seek(EVENTS, 0)
        state = consumer._core._fetcher.partitions[EVENTS]
        wait_until(lambda: state.completed_fetches, 30, "records")  # noqa: B023
        found: list[int] = []

        def handler(found: list[int] = found) -> None:
            nonlocal refused
            try:
                if in_handler == "iteration to the end":
                    found.extend(record.offset for record in consumer)
                else:
                    found += read_here(consumer, in_handler, 0)
            except RaykaError as error:
                refused += error.code is ErrorCode.INVALID_REQUEST

        operation: Callable[[], None] = lambda: found.extend(read_here(consumer, call, 20))  # noqa: B023, E731
        was_signalled = signalled_at(place, CONSUMER, handler, operation)
        for _ in range(100):
            if len(found) >= 6:
                break
            found += read_here(consumer, "poll", 20)
        assert sorted(found) == [*range(6)], place
        if not was_signalled:
            break
    assert place > 10
    assert refused > 5
    consumer.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_thread_is_told_that_another_thread_polls(cluster: Cluster, call: str) -> None:
    consumer = cluster.consumer(auto_offset_reset="earliest")
    consumer.assign([EVENTS])
    with ThreadPoolExecutor(1, "rayka-other") as others:
        polling = others.submit(consumer.poll, 60_000)
        wait_until(lambda: consumer._core._fetcher._polls_waiting, 30, "it waits for records")
        with pytest.raises(RaykaError, match="Another thread is using this consumer"):
            read_here(consumer, call)
        fill(cluster, 1)
        assert offsets(polling.result(60)) == [0]
    consumer.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_poll_while_close_runs_a_callback_in_another_thread_is_told_so(cluster: Cluster, call: str) -> None:
    cluster.admin().create_topic("events", partitions=1)
    fill(cluster, 1)
    consumer = cluster.consumer("readers", auto_offset_reset="earliest")
    has_begun, may_end = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        has_begun.set()
        assert may_end.wait(60)

    consumer.subscribe(["events"], on_revoked=wait)
    assert offsets(consumer.poll(30_000)) == [0]
    with ThreadPoolExecutor(1, "rayka-other") as others:
        closing = others.submit(consumer.close)
        assert has_begun.wait(60)
        try:
            with pytest.raises(RaykaError, match="A rebalance callback runs"):
                read_here(consumer, call)
        finally:
            may_end.set()
        closing.result(60)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Ctrl-C came before it was given to the loop
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_anywhere_in_a_poll_does_not_keep_others_from_polling(cluster: Cluster, call: str) -> None:
    fill(cluster, 1)
    with cluster.consumer(auto_offset_reset="earliest", consumer_timeout_ms=30_000) as consumer:
        consumer.assign([EVENTS])

        def interrupt() -> None:
            raise KeyboardInterrupt

        for place in itertools.count():
            consumer.seek(EVENTS, 0)
            was_signalled = False
            try:
                was_signalled = signalled_at(place, CONSUMER, interrupt, lambda: read_here(consumer, call))
            except KeyboardInterrupt:
                was_signalled = True
            consumer.seek(EVENTS, 0)
            assert read_here(consumer, call) == [0]
            if not was_signalled:
                break
        assert place > 10
