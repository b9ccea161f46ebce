"""Records and acknowledgements of a share consumer whose leaders are slow, or whose calls are cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share import arrivals
from rayka.client.share import consumer as consumer_module
from rayka.client.share.consumer import AsyncShareConsumer
from rayka.errors import ErrorCode, RaykaError
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.testing import wait_until
from tests.unit.client.interrupts import interrupted_at
from tests.unit.client.test_share_consumer import (
    ACCEPT,
    AwayLeaders,
    cancel_under_way,
    cluster,
    configure,
    count_in_flight,
    leaders,
    take,
    write,
)
from tests.unit.client.test_share_consumer import broker_config as broker_config

__all__ = ["broker_config", "cluster", "leaders"]  # fixtures
EXPLICIT: dict[str, Any] = {"acknowledgement_mode": "explicit"}
ONE_BY_ONE: dict[str, Any] = {"max_poll_records": 1, "acquire_mode": "record_limit", **EXPLICIT}
NOT_LEADER = ShareFetchResult(acknowledge_error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
Answer = tuple[int, list[ShareFetchResult]]
Fetch = Callable[..., Coroutine[Any, Any, Answer]]


@pytest.fixture(autouse=True)
def long_locks(cluster: Cluster) -> None:
    """No lock expires by itself, unless a test has shorter ones."""
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})


def at_home(cluster: Cluster, body: Callable[[AsyncShareConsumer], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run `body` with an assigned consumer, both in the client's own event loop."""

    async def main() -> None:
        async with await cluster._share_consumer("workers", ["tasks"], options or EXPLICIT) as consumer:
            while not consumer.is_assigned:
                await asyncio.sleep(0.001)
            await body(consumer)

    cluster._connection.loop.run(asyncio.wait_for(main(), 60))


async def polled(consumer: AsyncShareConsumer) -> Any:
    """The first record of a poll that has any."""
    while not (records := await consumer.poll(timeout_ms=500)):
        pass
    return records[0]


async def held(consumer: AsyncShareConsumer, count: int) -> list[Any]:
    """So many records, none of which is acknowledged."""
    records: list[Any] = []
    while len(records) < count:
        records += await consumer.poll_more(timeout_ms=500)
    return records


def replace_fetch(leaders: AwayLeaders, replacement: Callable[[Fetch], Fetch]) -> None:
    leaders.fetch = replacement(leaders.fetch)  # type: ignore[method-assign]


def test_a_poll_does_not_wait_for_a_leader_that_stands_still_and_a_later_one_has_its_records(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    write(cluster, 3)
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        wait_until(lambda: consumer._core.is_assigned, 60, "it has its partition")
        while consumer._core._arrivals.is_fetching:  # one that began before that
            assert consumer.poll() == []
        leaders.gate.clear()
        begin = time.monotonic()
        assert [consumer.poll(timeout_ms=100) for _ in range(2)] == [[], []]
        assert time.monotonic() - begin < 6
        cluster._connection.loop.call_soon(leaders.gate.set)
        assert [record.delivery_count for record in take(consumer, 3, ACCEPT)] == [1, 1, 1]


def test_programs_that_poll_seldom_get_the_records_of_slow_leaders(cluster: Cluster, leaders: AwayLeaders) -> None:
    """A poll gives up before each answer, and the records are given back before the next poll."""
    configure(cluster, **{"share.record.lock.duration.ms": "1000"})
    write(cluster, 1)

    def slow(fetch: Fetch) -> Fetch:
        async def fetch_slowly(*request: Any) -> Answer:
            answer = await fetch(*request)
            await asyncio.sleep(1.2 if request[0].max_records else 0)
            return answer

        return fetch_slowly

    replace_fetch(leaders, slow)
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        wait_until(lambda: consumer._core.is_assigned, 60, "it has its partition")
        for _ in range(4):
            records = consumer.poll()
            if records:
                break
            wait_until(lambda: not consumer._core._arrivals.is_fetching, 20, "the answer came too late")
            wait_until(lambda: not consumer._core._arrivals.records, 20, "its records are given back")
        assert [record.offset for record in records] == [0]
        consumer.accept(records[0])


def test_records_that_nobody_polls_for_are_given_back_as_not_delivered(cluster: Cluster, leaders: AwayLeaders) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "20000"})
    write(cluster, 3)

    async def main() -> None:
        async with cluster.async_share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
            while not consumer.is_assigned:
                await consumer.poll_more(timeout_ms=0)
            await cancel_under_way(consumer.poll(timeout_ms=30_000), cluster, leaders)
            assert await asyncio.to_thread(others) == [1, 1, 1]
            assert not consumer._arrivals.records

    def others() -> list[int]:
        with cluster.share_consumer("workers", ["tasks"]) as other:
            return [record.delivery_count for record in take(other, 3)]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_poll_fetches_anew_what_arrived_too_long_ago_and_does_not_wait_for_its_return(
    cluster: Cluster, leaders: AwayLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cluster, 1)
    give_back, given_back = leaders._leaders.give_back, []

    async def give_back_slowly(*records: Any) -> None:
        given_back.append(records[-1])
        await give_back(*records)
        await asyncio.sleep(20)

    monkeypatch.setattr(leaders._leaders, "give_back", give_back_slowly)

    async def body(consumer: AsyncShareConsumer) -> None:
        await consumer.arrived(30_000)
        consumer._arrivals._expires_s = 0
        async with asyncio.timeout(15):
            assert (await polled(consumer)).delivery_count == 1
        assert given_back == [[(0, 0)]]
        for request in list(consumer._requests):
            request.cancel()  # or else it takes a while to close

    at_home(cluster, body)


def test_records_of_a_poll_that_another_loop_has_cancelled_are_returned_by_the_next(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.async_share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
            while not consumer.is_assigned:
                await consumer.poll_more(timeout_ms=100)
            cancelled = asyncio.ensure_future(consumer.poll_more(timeout_ms=30_000))
            await asyncio.sleep(0)
            write(cluster, 3)
            wait_until(lambda: consumer._arrivals.records, 30, "records have come")  # and this loop has not heard of it
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert [record.delivery_count for record in await consumer.poll(timeout_ms=5000)] == [1, 1, 1]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_error_that_came_after_its_poll_is_raised_by_the_next(cluster: Cluster, leaders: AwayLeaders) -> None:
    async def body(consumer: AsyncShareConsumer) -> None:
        leaders.gate.clear()
        leaders.away, leaders.is_away = ErrorCode.GROUP_AUTHORIZATION_FAILED, True
        assert await consumer.poll() == []
        leaders.gate.set()
        while consumer._arrivals.is_fetching:
            await asyncio.sleep(0)
        leaders.is_away = False
        with pytest.raises(RaykaError, match="GROUP_AUTHORIZATION_FAILED"):
            await consumer.poll(timeout_ms=5000)

    at_home(cluster, body)


def test_a_commit_waits_for_the_acknowledgements_that_a_poll_did_not_wait_for(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    write(cluster, 2)
    with cluster.share_consumer("workers", ["tasks"], **ONE_BY_ONE) as consumer:
        take(consumer, 1, ACCEPT)
        leaders.gate.clear()
        assert consumer.poll() == []
        committed = consumer.commit_async()
        with pytest.raises(TimeoutError):
            committed.result(timeout=0.2)
        cluster._connection.loop.call_soon(leaders.gate.set)
        committed.result(timeout=60)
        assert count_in_flight(cluster) == 1


def test_acknowledgements_during_a_late_fetch_are_sent_beside_it_and_a_commit_waits_for_them(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    write(cluster, 1)
    sent: list[bool] = []

    def seen(fetch: Fetch) -> Fetch:
        async def fetch_seen(*request: Any) -> Answer:
            sent.append(any(partition.acknowledgement_batches for partition in request[1]))
            return await fetch(*request)

        return fetch_seen

    async def body(consumer: AsyncShareConsumer) -> None:
        (record,) = await consumer.poll_more(timeout_ms=30_000)
        leaders.gate.clear()
        replace_fetch(leaders, seen)
        assert await consumer.poll_more(timeout_ms=0) == []
        consumer.accept(record)
        assert await consumer.poll_more(timeout_ms=0) == []
        assert sent == [False, True]
        commit = asyncio.ensure_future(consumer.commit())
        assert not (await asyncio.wait([commit], timeout=0.2))[0]
        leaders.gate.set()
        await commit

    at_home(cluster, body)
    assert count_in_flight(cluster) == 0


def test_a_poll_that_returns_late_records_sends_the_acknowledgements_of_the_ones_before(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    """Their locks may expire before the next fetch."""
    write(cluster, 2)

    async def body(consumer: AsyncShareConsumer) -> None:
        (first,) = await consumer.poll_more(timeout_ms=30_000)
        leaders.gate.clear()
        assert await consumer.poll_more(timeout_ms=0) == []
        leaders.gate.set()
        while not consumer._arrivals.records:
            await asyncio.sleep(0.001)
        consumer.accept(first)
        assert len(await consumer.poll_more(timeout_ms=0)) == 1
        await asyncio.to_thread(wait_until, lambda: count_in_flight(cluster) == 1, 30, "the first is accepted")

    at_home(cluster, body, **ONE_BY_ONE)


def test_a_commit_that_is_cancelled_before_it_begins_is_made_up_for_by_the_next(cluster: Cluster) -> None:
    write(cluster, 1)

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        commit = asyncio.ensure_future(consumer.commit())
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert list((await consumer.commit()).values()) == [None]

    at_home(cluster, body)
    assert count_in_flight(cluster) == 0


@pytest.mark.parametrize("steps", range(6))
def test_a_consumer_that_is_closed_when_its_fetch_begins_sends_the_acknowledgements(
    cluster: Cluster, steps: int
) -> None:
    write(cluster, 1)

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        polling = asyncio.ensure_future(consumer.poll(timeout_ms=5000))
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await consumer.close()
        with pytest.raises(RaykaError, match="closed"):
            await polling

    at_home(cluster, body)
    assert count_in_flight(cluster) == 0


def test_a_consumer_that_is_closed_while_earlier_acknowledgements_are_sent_again_sends_all(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    write(cluster, 2)

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        leaders.is_away = True
        assert await consumer.poll() == []
        leaders.is_away = False
        refused = consumer._leaders._refused.popleft()
        consumer.accept(await polled(consumer))
        consumer._leaders._refused.append(refused)
        leaders.gate.clear()
        polling = asyncio.ensure_future(consumer.poll(timeout_ms=5000))
        while consumer._arrivals._resending is None:
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        leaders.gate.set()
        await closing
        with pytest.raises(RaykaError, match="closed"):
            await polling

    at_home(cluster, body, **ONE_BY_ONE)
    assert count_in_flight(cluster) == 0


def test_acknowledgements_that_no_leader_takes_are_given_up_when_the_locks_have_expired(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    """As those of a topic that was deleted."""
    configure(cluster, **{"share.record.lock.duration.ms": "2000"})
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        take(consumer, 1, ACCEPT)
        leaders.away, leaders.is_away = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True
        errors: list[ErrorCode] = []

        def is_given_up() -> bool:
            errors.extend(error.code for error in consumer.commit().values() if error is not None)
            return not consumer._core._leaders.has_refused

        assert consumer.poll() == []
        wait_until(is_given_up, 60, "they are given up")
        assert {*errors[:-1]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert errors[-1] is ErrorCode.INVALID_RECORD_STATE


def test_what_was_said_of_a_delivery_and_could_not_be_sent_does_not_count_for_the_next_one(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    """It is sent again while a fetch brings the record once more, and then fails."""
    configure(cluster, **{"share.record.lock.duration.ms": "1000"})
    write(cluster, 1)
    is_open = asyncio.Event()

    def unanswered(fetch: Fetch) -> Fetch:
        async def fetch_only(params: Any, partitions: Any, *_: Any) -> Answer:
            if params.max_records:
                return await fetch(params, partitions)
            await is_open.wait()
            return 0, [ShareFetchResult(acknowledge_error=ErrorCode.REQUEST_TIMED_OUT)] * len(partitions)

        return fetch_only

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.release(await polled(consumer), delay_ms=0)
        leaders.is_away = True
        assert await consumer.poll() == []
        leaders.is_away = False
        consumer._leaders._refused[0] = consumer._leaders._refused[0]._replace(until_s=float("inf"))
        before = leaders.fetch
        replace_fetch(leaders, unanswered)
        record = await polled(consumer)
        assert record.delivery_count == 2
        is_open.set()
        leaders.fetch = before  # type: ignore[method-assign]
        assert not any((await consumer.commit()).values())
        await consumer.renew(record)
        consumer.accept(record)
        assert list((await consumer.commit()).values()) == [None]

    at_home(cluster, body)
    assert count_in_flight(cluster) == 0


def test_an_interrupt_while_a_record_is_acknowledged_leaves_it_held_or_acknowledged(cluster: Cluster) -> None:
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        for number in range(50):
            write(cluster, 1)
            (record,) = take(consumer, 1)

            def accept(record: Any = record) -> None:
                consumer.accept(record)

            was_interrupted = interrupted_at(number, ("rayka.client.share",), accept)
            if consumer.holds(record):
                consumer.accept(record)
            consumer.commit()
            assert count_in_flight(cluster) == 0, f"interrupted at {number}"
            if not was_interrupted:
                break
        assert number > 3


def test_commits_one_after_the_other_all_end_with_their_own_results(cluster: Cluster) -> None:
    write(cluster, 50)
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        commits = []
        for record in take(consumer, 50):
            consumer.accept(record)
            commits.append(consumer.commit_async())
        results = [list(commit.result(timeout=30).values()) for commit in commits]
        assert results == [[None]] * 50
    assert count_in_flight(cluster) == 0


def refusing(offset: int) -> Callable[[Fetch], Fetch]:
    """Requests that acknowledge this offset are refused, with all that they acknowledge."""

    def replacement(fetch: Fetch) -> Fetch:
        async def fetch_or_refuse(
            params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any
        ) -> Answer:
            batches = [batch for partition in partitions for batch in partition.acknowledgement_batches]
            if any(batch.first_offset <= offset <= batch.last_offset for batch in batches):
                error = ShareFetchResult(acknowledge_error=ErrorCode.INVALID_RECORD_STATE)
                return 0, [error] * len(partitions)
            return await fetch(params, partitions)

        return fetch_or_refuse

    return replacement


def test_a_commit_that_is_refused_does_not_concern_the_next_one(cluster: Cluster, leaders: AwayLeaders) -> None:
    write(cluster, 2)
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        first, second = take(consumer, 2)
        replace_fetch(leaders, refusing(first.offset))
        consumer.accept(first)
        refused = consumer.commit_async()
        consumer.accept(second)
        assert list(consumer.commit().values()) == [None]
        (error,) = refused.result(timeout=30).values()
        assert error is not None
        assert error.code is ErrorCode.INVALID_RECORD_STATE


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_commit_whose_acknowledgements_a_poll_has_taken_has_their_result(
    cluster: Cluster, leaders: AwayLeaders, is_refused: bool
) -> None:
    write(cluster, 1)

    async def body(consumer: AsyncShareConsumer) -> None:
        record = await polled(consumer)
        if is_refused:
            replace_fetch(leaders, refusing(record.offset))
        consumer.accept(record)
        commit = consumer.commit()
        await consumer.poll()  # before the commit begins
        (error,) = (await commit).values()
        assert (error and error.code) is (ErrorCode.INVALID_RECORD_STATE if is_refused else None)

    at_home(cluster, body)


def test_a_commit_goes_on_when_close_is_cancelled(cluster: Cluster, leaders: AwayLeaders) -> None:
    write(cluster, 1)

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        leaders.gate.clear()
        commit = asyncio.ensure_future(consumer.commit())
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        leaders.gate.set()
        assert list((await commit).values()) == [None]

    at_home(cluster, body)
    assert count_in_flight(cluster) == 0


def test_records_that_an_interrupted_poll_did_not_give_are_given_back_in_time(cluster: Cluster) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "4000"})
    write(cluster, 3)

    async def body(consumer: AsyncShareConsumer) -> None:
        while not await consumer.arrived(500):  # and the program never gets them
            pass
        assert await asyncio.to_thread(others) == [1, 1, 1]

    def others() -> list[int]:
        with cluster.share_consumer("workers", ["tasks"]) as other:
            return [record.delivery_count for record in take(other, 3)]

    async def main() -> None:
        async with cluster.async_share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
            await body(consumer)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_commit_that_is_refused_for_now_says_so_though_earlier_acknowledgements_are_taken(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    """Nobody sends its own again, so the program must know."""
    write(cluster, 2)

    def refusing_second(offset: int) -> Callable[[Fetch], Fetch]:
        def replacement(fetch: Fetch) -> Fetch:
            async def fetch_or_refuse(*request: Any) -> Answer:
                batches = [batch for partition in request[1] for batch in partition.acknowledgement_batches]
                leaders.is_away = any(batch.first_offset == offset for batch in batches)
                return await fetch(*request)

            return fetch_or_refuse

        return replacement

    with cluster.share_consumer("workers", ["tasks"], **ONE_BY_ONE) as consumer:
        take(consumer, 1, ACCEPT)
        leaders.is_away = True
        assert consumer.poll() == []
        leaders.is_away = False
        kept = list(consumer._core._leaders._refused)
        consumer._core._leaders._refused.clear()
        (second,) = take(consumer, 1, ACCEPT)
        consumer._core._leaders._refused.extend(kept)
        replace_fetch(leaders, refusing_second(second.offset))
        (error,) = consumer.commit().values()
        assert error is not None
        assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert count_in_flight(cluster) == 1


def test_a_commit_without_acknowledgements_waits_for_the_one_in_progress(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        take(consumer, 1, ACCEPT)
        leaders.gate.clear()
        commits = [consumer.commit_async() for _ in range(2)]
        for commit in commits:
            with pytest.raises(TimeoutError):
                commit.result(timeout=0.2)
        cluster._connection.loop.call_soon(leaders.gate.set)
        for commit in commits:
            commit.result(timeout=30)
        assert count_in_flight(cluster) == 0


@pytest.mark.parametrize("steps", range(5))
def test_acknowledgements_are_sent_though_close_is_cancelled(cluster: Cluster, steps: int) -> None:
    write(cluster, 1)

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        polling = asyncio.ensure_future(consumer.poll(timeout_ms=5000))
        for _ in range(steps):
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(RaykaError, match="closed"):
            await polling
        await asyncio.to_thread(wait_until, lambda: count_in_flight(cluster) == 0, 30, "it is accepted")

    at_home(cluster, body)


def acknowledging(sent: list[int]) -> Callable[[Fetch], Fetch]:
    """Notes the first offset of each acknowledgement when it is sent."""

    def replacement(fetch: Fetch) -> Fetch:
        async def fetch_noted(params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any) -> Answer:
            batches = [batch for partition in partitions for batch in partition.acknowledgement_batches]
            sent.extend(batch.first_offset for batch in batches)
            return await fetch(params, partitions)

        return fetch_noted

    return replacement


def test_close_lets_a_fetch_end_that_acknowledges(cluster: Cluster, leaders: AwayLeaders) -> None:
    """What is sent twice is refused, and a released record that the fetch has got again would count as delivered."""
    write(cluster, 1)
    sent: list[int] = []

    async def body(consumer: AsyncShareConsumer) -> None:
        record = await polled(consumer)
        replace_fetch(leaders, acknowledging(sent))
        consumer.release(record, delay_ms=0)
        polling = asyncio.ensure_future(consumer.poll(timeout_ms=5000))
        while not sent:
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await consumer.close()
        with pytest.raises(RaykaError, match="closed"):
            await polling

    at_home(cluster, body)
    assert sent == [0]
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        assert [record.delivery_count for record in take(consumer, 1, ACCEPT)] == [2]


def test_close_sends_again_what_a_fetch_has_no_answer_for(
    cluster: Cluster, leaders: AwayLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_TO_END_S", 0.1)
    write(cluster, 1)
    lost: list[object] = []

    def losing_first(fetch: Fetch) -> Fetch:
        async def fetch_or_lose(*request: Any) -> Answer:
            if not lost:
                lost.append(request)
                await asyncio.Event().wait()
            return await fetch(*request)

        return fetch_or_lose

    async def body(consumer: AsyncShareConsumer) -> None:
        consumer.accept(await polled(consumer))
        replace_fetch(leaders, losing_first)
        polling = asyncio.ensure_future(consumer.poll(timeout_ms=5000))
        while not lost:
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await consumer.close()
        with pytest.raises(RaykaError, match="closed"):
            await polling

    at_home(cluster, body)
    assert count_in_flight(cluster) == 0


def test_a_commit_waits_for_no_later_one(cluster: Cluster, leaders: AwayLeaders) -> None:
    write(cluster, 2)
    gates = [asyncio.Event(), asyncio.Event()]
    left = iter(gates)

    def gated(fetch: Fetch) -> Fetch:
        async def fetch_later(*request: Any) -> Answer:
            await next(left).wait()
            return await fetch(*request)

        return fetch_later

    async def body(consumer: AsyncShareConsumer) -> None:
        records = await held(consumer, 2)
        before = leaders.fetch
        replace_fetch(leaders, gated)
        commits = []
        for record in records:
            consumer.accept(record)
            commits.append(asyncio.ensure_future(consumer.commit()))
            await asyncio.sleep(0.01)
        gates[0].set()
        async with asyncio.timeout(10):
            assert list((await commits[0]).values()) == [None]
        assert not commits[1].done()
        leaders.fetch = before  # type: ignore[method-assign]
        gates[1].set()
        assert list((await commits[1]).values()) == [None]

    at_home(cluster, body)


def test_a_commit_does_not_take_the_answer_of_another_partition_for_records_that_were_delivered_anew(
    cluster: Cluster, leaders: AwayLeaders
) -> None:
    """The rest of the request is sent again without them."""
    cluster.admin().create_partitions({"tasks": 2})
    with cluster.producer() as producer:
        for number in (0, 1):
            producer.send("tasks", b"task", partition=number)

    def away_for_acknowledgements(fetch: Fetch) -> Fetch:
        async def fetch_only(params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any) -> Answer:
            if params.max_records:
                return await fetch(params, partitions)
            return 0, [NOT_LEADER] * len(partitions)

        return fetch_only

    async def body(consumer: AsyncShareConsumer) -> None:
        first, second = await held(consumer, 2)
        consumer.accept(first)
        consumer.accept(second)
        commit = consumer.commit()
        leaders.is_away = True
        assert await consumer.poll_more(timeout_ms=0) == []  # it takes what the commit should send
        leaders.is_away = False
        before = leaders.fetch
        replace_fetch(leaders, away_for_acknowledgements)
        await consumer._leaders.give_back({first.topic_id_partition: [(first.offset, first.offset)]})
        (again,) = await held(consumer, 1)
        assert again == first
        leaders.fetch = before  # type: ignore[method-assign]
        results = await commit
        assert results[second.topic_partition] is None
        error = results[first.topic_partition]
        assert error is not None
        assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    at_home(cluster, body, **ONE_BY_ONE)


def test_acknowledgements_of_an_interrupted_close_outlast_another_close(cluster: Cluster, leaders: AwayLeaders) -> None:
    """Such as that of the cluster, which ends what is still under way."""
    write(cluster, 2)

    async def body(consumer: AsyncShareConsumer) -> None:
        first, second = await held(consumer, 2)
        consumer.accept(first)
        leaders.gate.clear()
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        closing = asyncio.ensure_future(consumer.close())
        assert not (await asyncio.wait([closing], timeout=0.2))[0]
        leaders.gate.set()
        async with asyncio.timeout(20):
            await closing
        assert await asyncio.to_thread(others) == [(second.offset, 1)]

    def others() -> list[tuple[int, int]]:
        with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as other:
            return [(record.offset, record.delivery_count) for record in take(other, 1, ACCEPT)]

    at_home(cluster, body, **ONE_BY_ONE)


def test_a_partition_with_many_records_holds_up_no_other(cluster: Cluster) -> None:
    cluster.admin().create_partitions({"tasks": 2})
    with cluster.producer() as producer:
        for number in (0, 0, 0, 0, 1, 1):
            producer.send("tasks", b"task", partition=number)
    with cluster.share_consumer("workers", ["tasks"], **ONE_BY_ONE) as consumer:
        wait_until(lambda: len(consumer._core._member.assignment) == 2, 60, "it has both partitions")
        assert sorted(record.partition for record in take(consumer, 4, ACCEPT)) == [0, 0, 1, 1]


@pytest.mark.parametrize("is_more", [True, False])
def test_a_program_that_is_slow_to_take_records_does_not_get_those_that_were_given_back(
    cluster: Cluster, is_more: bool
) -> None:
    """Its event loop stands still for longer than half of their lock; others may have them by then."""
    configure(cluster, **{"share.record.lock.duration.ms": "1000"})

    async def main() -> None:
        async with cluster.async_share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
            while not consumer.is_assigned:
                await consumer.poll_more(timeout_ms=100)
            polling = asyncio.ensure_future((consumer.poll_more if is_more else consumer.poll)(timeout_ms=30_000))
            await asyncio.sleep(0)
            write(cluster, 1)
            wait_until(lambda: bool(consumer._arrivals.records), 30, "records have come")
            wait_until(lambda: not consumer._arrivals.records, 30, "they are given back")
            assert await polling == []
            (record,) = await consumer.poll(timeout_ms=30_000)
            consumer.accept(record)
            assert list((await consumer.commit()).values()) == [None]

    asyncio.run(asyncio.wait_for(main(), 60))


def away_for_two_requests(fetch: Fetch) -> Fetch:
    left = [NOT_LEADER, NOT_LEADER]

    async def fetch_or_refuse(params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any) -> Answer:
        return (0, [left.pop()] * len(partitions)) if left else await fetch(params, partitions)

    return fetch_or_refuse


def test_close_sends_acknowledgements_again_that_were_refused_for_now(cluster: Cluster, leaders: AwayLeaders) -> None:
    """Nobody else would, and the record would be processed twice."""
    write(cluster, 1)
    with cluster.share_consumer("workers", ["tasks"], **EXPLICIT) as consumer:
        take(consumer, 1, ACCEPT)
        replace_fetch(leaders, away_for_two_requests)
    assert count_in_flight(cluster) == 0


def test_close_gives_up_acknowledgements_that_no_leader_takes(
    cluster: Cluster, leaders: AwayLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_TO_RESEND_S", 0.3)
    write(cluster, 1)
    consumer = cluster.share_consumer("workers", ["tasks"], **EXPLICIT)
    take(consumer, 1, ACCEPT)
    leaders.is_away = True
    consumer.close()
    assert count_in_flight(cluster) == 1
