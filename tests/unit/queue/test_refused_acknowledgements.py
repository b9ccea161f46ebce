"""What becomes of acknowledgements of a queue that a leader refuses because the lease of one item has ended, or whose
answer is lost."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import ShareLeaders
from rayka.queue import Empty, Queue
from rayka.queue.items import pickled
from rayka.queue.reader import QueueReader
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.testing import wait_until
from rayka.types import TopicPartition

ENOUGH_S = 30.0
"""Less than a lease lasts, so that no item comes back by itself."""


class WatchedLeaders:
    """The leaders of the broker. `alone` has the numbers of items of requests that only acknowledge.

    `fail` or `answer` take the place of the second of them, and `lost` of the answer to the first. All of them wait for
    `gate`.
    """

    def __init__(self, leaders: ShareLeaders) -> None:
        self.alone: list[int] = []
        self.fail: BaseException | None = None
        self.lost: BaseException | None = None
        self.answer: ErrorCode | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self._leaders = leaders

    async def fetch(
        self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]
    ) -> tuple[int, list[ShareFetchResult]]:
        if not params.has_room:
            batches = [batch for one in partitions for batch in one.acknowledgement_batches]
            self.alone.append(sum(batch.last_offset - batch.first_offset + 1 for batch in batches))
            if len(self.alone) == 1 and self.lost is not None:
                await self._leaders.fetch(params, partitions)
            await self.gate.wait()
            if len(self.alone) == 1 and self.lost is not None:
                raise self.lost
            if len(self.alone) == 2 and self.fail is not None:
                raise self.fail
            if len(self.alone) == 2 and self.answer is not None:
                return 0, [ShareFetchResult(acknowledge_error=self.answer)] * len(partitions)
        return await self._leaders.fetch(params, partitions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leaders, name)


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[Queue]:
    queue = Queue(lease="task_done", lease_s=60)
    yield queue
    queue.shutdown()


@pytest.fixture
def leaders(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedLeaders]:
    """In front of those of the queue's broker."""
    broker = queue._here.broker
    leaders = WatchedLeaders(broker.share_leaders)
    monkeypatch.setattr(broker, "share_leaders", leaders)
    yield leaders
    queue._here.loop.call_soon(leaders.gate.set)


def get_all(queue: Queue, count: int) -> None:
    """Lease so many items; nothing is acknowledged before `let_tick`."""
    queue.put_nowait_batch(range(count))
    assert queue.get_nowait_batch(count) == [*range(count)]
    reader = queue._here.reader
    wait_until(lambda: not reader._ticking, ENOUGH_S, "nothing is left to do")
    reader._ticking = True


def let_tick(reader: QueueReader) -> None:
    reader._loop.submit(reader._settle())


def lose_lease(queue: Queue, offset: int, partition: int = 0) -> None:
    """Anybody may get the item now; the queue does not know it."""
    here = queue._here
    member_id, place = here.reader._member._member_id, TopicPartition(queue.name, partition)
    leaders = here.broker.share_leaders
    here.loop.run(leaders.give_back(queue.name, member_id, place, here.topic.topic_id, [(offset, offset)]))


@pytest.mark.parametrize("error", [OSError(), asyncio.CancelledError()], ids=["failed", "cancelled"])
def test_what_was_not_sent_again_stays_when_sending_a_part_of_it_fails(
    queue: Queue, leaders: WatchedLeaders, error: BaseException
) -> None:
    get_all(queue, 8)
    lose_lease(queue, 0)
    for _ in range(8):
        queue.task_done()
    leaders.fail = error
    let_tick(queue._here.reader)
    wait_until(lambda: queue.lag() == 1, ENOUGH_S, "all others are done")
    assert leaders.alone[:2] == [8, 4]
    assert queue.get(timeout=ENOUGH_S) == 0


def test_items_of_a_fetch_do_not_wait_for_acknowledgements_that_it_could_not_deliver(
    queue: Queue, leaders: WatchedLeaders
) -> None:
    get_all(queue, 4)
    lose_lease(queue, 0)
    for _ in range(4):
        queue.task_done()
    leaders.gate.clear()
    assert queue.get(timeout=ENOUGH_S) == 0
    let_tick(queue._here.reader)
    wait_until(lambda: leaders.alone, ENOUGH_S, "the others are sent again")
    queue._here.loop.call_soon(leaders.gate.set)
    wait_until(lambda: queue.lag() == 1, ENOUGH_S, "the others are done")


def test_what_a_fetch_could_not_deliver_is_delivered_before_a_handle_is_closed(
    queue: Queue, leaders: WatchedLeaders
) -> None:
    other: Queue = pickle.loads(pickle.dumps(queue))
    get_all(queue, 4)
    lose_lease(queue, 1)
    for _ in range(4):
        queue.task_done()
    assert queue.get(timeout=ENOUGH_S) == 1
    queue.task_done()
    queue.close()
    assert other.lag() == 0
    other.put("next")
    assert other.get(timeout=ENOUGH_S) == "next"


def test_parts_for_a_leader_that_is_away_wait_for_it_no_longer_than_one_does(
    queue: Queue, leaders: WatchedLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_all(queue, 4)
    lose_lease(queue, 0)
    for _ in range(4):
        queue.task_done()
    member, sent, fetch = queue._here.reader._member, [], leaders.fetch

    async def away(params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]) -> Any:
        sent.append(params)
        return 0, [ShareFetchResult(acknowledge_error=ErrorCode.REQUEST_TIMED_OUT)] * len(partitions)

    async def settle() -> bool:
        await member.acknowledge(queue._here.reader._leases.take_acknowledgements())
        monkeypatch.setattr(leaders, "fetch", away)
        await member.settle_refused(0)
        monkeypatch.setattr(leaders, "fetch", fetch)
        return member.has_refused

    assert not queue._here.loop.run(settle())
    assert len(sent) == 1
    let_tick(queue._here.reader)
    wait_until(lambda: queue.lag() == 1, ENOUGH_S, "the others are done")


def test_refused_acknowledgements_are_not_sent_when_all_leases_have_ended(
    queue: Queue, leaders: WatchedLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_all(queue, 4)
    lose_lease(queue, 0)
    for _ in range(4):
        queue.task_done()
    member, now_s = queue._here.reader._member, [0.0]
    monkeypatch.setattr("rayka.queue.member.time", SimpleNamespace(monotonic=lambda: now_s[0]))

    async def settle() -> int:
        await member.acknowledge(queue._here.reader._leases.take_acknowledgements())
        assert member.has_refused
        now_s[0] = member.lease_s
        await member.settle_refused(0)
        return len(leaders.alone)

    assert queue._here.loop.run(settle()) == 1
    assert not member.has_refused


def test_a_release_whose_answer_was_lost_does_not_end_the_next_lease(queue: Queue, leaders: WatchedLeaders) -> None:
    reader, other = queue._here.reader, pickle.loads(pickle.dumps(queue))
    get_all(queue, 1)
    queue.task_failed()
    leaders.lost = OSError()
    leaders.gate.clear()
    let_tick(reader)
    assert queue.get(timeout=ENOUGH_S) == 0
    queue._here.loop.call_soon(leaders.gate.set)
    wait_until(lambda: not reader._ticking, ENOUGH_S, "nothing is left to send")
    assert other.lag() == 1
    with pytest.raises(Empty):
        other.get_nowait()
    other.close()


def send_to(cluster: Cluster, queue: Queue, partition: int, item: object) -> None:
    """Put an item into a partition of the queue."""
    with cluster.producer() as producer:
        producer.send(queue.name, pickled(item), partition=partition)


def hold_all(queue: Queue) -> Queue:
    """Finish four items, of which one has lost its lease. Returns another handle."""
    other: Queue = pickle.loads(pickle.dumps(queue))
    get_all(queue, 4)
    lose_lease(queue, 0)
    for _ in range(4):
        queue.task_done()
    return other


def test_close_sends_what_a_leader_refuses_while_it_moves(queue: Queue, leaders: WatchedLeaders) -> None:
    other = hold_all(queue)
    leaders.answer = ErrorCode.NOT_LEADER_OR_FOLLOWER
    queue.close()
    assert other.lag() == 1
    other.close()


def test_close_waits_for_the_answer_to_a_tick(queue: Queue, leaders: WatchedLeaders) -> None:
    other = hold_all(queue)
    leaders.gate.clear()
    let_tick(queue._here.reader)
    wait_until(lambda: leaders.alone, ENOUGH_S, "the tick has sent them")
    ended = queue._here.loop.submit(queue._here.reader.end())
    wait_until(lambda: queue._here.reader._leases._has_ended, ENOUGH_S, "the handle ends")
    queue._here.loop.call_soon(leaders.gate.set)
    ended.result(ENOUGH_S)
    assert other.lag() == 1
    other.close()


def test_a_second_close_returns_when_the_first_one_has_given_all_back(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: Queue = pickle.loads(pickle.dumps(queue))
    get_all(queue, 4)
    here, gate, leaving = queue._here, asyncio.Event(), threading.Event()
    leaders = here.broker.share_leaders

    class LateEnds(WatchedLeaders):
        async def end_session(self, *arguments: Any, **settings: Any) -> None:
            leaving.set()
            await gate.wait()
            await leaders.end_session(*arguments, **settings)

    monkeypatch.setattr(here.broker, "share_leaders", LateEnds(leaders))
    first = here.loop.submit(here.reader.end())
    assert leaving.wait(ENOUGH_S)
    second = here.loop.submit(here.reader.end())
    here.loop.run(asyncio.sleep(0))
    assert not second.done()
    here.loop.call_soon(gate.set)
    second.result(ENOUGH_S)
    assert first.done()
    assert other.get_nowait_batch(4) == [0, 1, 2, 3]
    other.close()


def test_close_waits_for_the_answer_to_a_fetch_in_another_thread(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    other, here = hold_all(queue), queue._here
    leaders, gate, answers = here.broker.share_leaders, asyncio.Event(), []

    class LateAnswers(WatchedLeaders):
        async def fetch(self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]) -> Any:
            answer = await leaders.fetch(params, partitions)
            if params.has_room:
                answers.append(answer)
                await gate.wait()
            return answer

    monkeypatch.setattr(here.broker, "share_leaders", LateAnswers(leaders))
    fetched = here.loop.submit(here.reader.look(1))
    wait_until(lambda: answers, ENOUGH_S, "the leader has refused them")
    ended = here.loop.submit(here.reader.end())
    wait_until(lambda: here.reader._leases._has_ended, ENOUGH_S, "the handle ends")
    here.loop.call_soon(gate.set)
    ended.result(ENOUGH_S)
    with pytest.raises(RaykaError, match="is closed"):
        fetched.result(ENOUGH_S)
    assert other.lag() == 1
    other.close()


def test_other_items_go_back_after_an_interrupted_close(queue: Queue, leaders: WatchedLeaders) -> None:
    other = hold_all(queue)
    leaders.gate.clear()
    ended = queue._here.loop.submit(queue._here.reader.end())
    wait_until(lambda: leaders.alone, ENOUGH_S, "the acknowledgements are on their way")
    ended.cancel()
    queue.close()
    assert sorted(other.get(timeout=ENOUGH_S) for _ in range(4)) == [0, 1, 2, 3]
    other.close()


def test_an_interrupted_close_waits_only_briefly_for_a_leader_that_is_silent(
    queue: Queue, leaders: WatchedLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the end of the event loop, which cancels a close and then waits for it."""
    monkeypatch.setattr("rayka.queue.member._LEAVE_S", 0.1)
    other, told = hold_all(queue), []

    async def silent(*arguments: Any, **settings: Any) -> None:
        told.append(arguments)
        await leaders.gate.wait()

    with monkeypatch.context() as patch:
        patch.setattr(leaders, "end_session", silent, raising=False)
        leaders.gate.clear()
        ended = queue._here.loop.submit(queue._here.reader.end())
        wait_until(lambda: leaders.alone, ENOUGH_S, "the acknowledgements are on their way")
        ended.cancel()
        queue._here.loop.submit(queue._here.reader.end()).result(ENOUGH_S)
    assert len(told) == 1
    other.close()


def test_no_lease_is_renewed_after_a_close(queue: Queue, leaders: WatchedLeaders) -> None:
    """The leader would keep the program for a member of the group."""
    other: Queue = pickle.loads(pickle.dumps(queue))
    get_all(queue, 4)
    lose_lease(queue, 0)
    leaders.gate.clear()
    renewed = queue._here.loop.submit(queue._here.reader._renew())
    wait_until(lambda: bool(leaders.alone), ENOUGH_S, "the renewal is on its way")
    queue._here.loop.run(queue._here.reader.end())
    queue._here.loop.call_soon(leaders.gate.set)
    renewed.result(ENOUGH_S)
    assert leaders.alone == [4]
    other.close()


def test_close_ends_though_a_leader_takes_no_acknowledgements(
    queue: Queue, leaders: WatchedLeaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rayka.queue.reader._ANSWER_S", 0.1)
    monkeypatch.setattr("rayka.queue.reader._LAST_S", 0.1)
    other = hold_all(queue)
    leaders.gate.clear()
    queue.close()
    assert "no leader takes their last acknowledgements" in caplog.text
    assert sorted(other.get(timeout=ENOUGH_S) for _ in range(4)) == [0, 1, 2, 3]
    other.close()


def test_items_that_nobody_has_got_are_not_delivered_by_a_close_whose_acknowledgements_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go back while their leases last: a lease that ends counts as a delivery."""
    queue = Queue(lease="task_done", lease_s=15, partitions=2)
    other: Queue = pickle.loads(pickle.dumps(queue))
    here, leaders = queue._here, queue._here.broker.share_leaders
    send_to(cluster, queue, 0, "done")
    assert queue.get(timeout=ENOUGH_S) == "done"
    wait_until(lambda: not here.reader._ticking, ENOUGH_S, "nothing is left to do")
    send_to(cluster, queue, 1, "fetched")
    here.loop.run(here.reader.fetch(4, 0.0))
    assert here.reader.ready_count == 1

    class Refusing(WatchedLeaders):
        async def fetch(self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]) -> Any:
            if any(one.acknowledgement_batches for one in partitions):
                return 0, [ShareFetchResult(acknowledge_error=ErrorCode.KAFKA_STORAGE_ERROR)] * len(partitions)
            return await leaders.fetch(params, partitions)

    with monkeypatch.context() as patch:
        patch.setattr(here.broker, "share_leaders", Refusing(leaders))
        queue.task_done()
        queue.close()
    items = [other.lease(timeout=ENOUGH_S) for _ in range(2)]
    assert {item.partition: item.delivery_count for item in items} == {0: 1, 1: 1}
    other.shutdown()


def test_a_leader_that_stands_still_does_not_delay_the_parts_of_other_partitions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(lease="task_done", lease_s=60, partitions=2)
    for number in range(8):
        send_to(cluster, queue, number % 2, number)
    here = queue._here
    reader, leaders, gate, standing = here.reader, here.broker.share_leaders, asyncio.Event(), []
    assert len([queue.get(timeout=ENOUGH_S) for _ in range(8)]) == 8
    wait_until(lambda: not reader._ticking, ENOUGH_S, "nothing is left to do")
    reader._ticking = True
    for number in range(2):
        lose_lease(queue, 0, number)
    for _ in range(8):
        queue.task_done()

    class Standing(WatchedLeaders):
        async def fetch(self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]) -> Any:
            if not params.has_room and [one.topic_partition.partition for one in partitions] == [0]:
                standing.append(params)
                await gate.wait()
            return await leaders.fetch(params, partitions)

    monkeypatch.setattr(here.broker, "share_leaders", Standing(leaders))
    let_tick(reader)
    wait_until(lambda: queue.lag() == 5, ENOUGH_S, "those of the other partition are done")
    assert len(standing) == 1
    here.loop.call_soon(gate.set)
    wait_until(lambda: queue.lag() == 2, ENOUGH_S, "all others are done")
    queue.shutdown()
