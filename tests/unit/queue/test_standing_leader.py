"""A queue of two leaders, of which one stands still: the other one's items are as if it were alone."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.gateway.ports import ShareLeaders
from rayka.metadata.values import PartitionImage
from rayka.queue import Queue
from rayka.share.requests import ShareFetchParams, ShareFetchPartition
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.unit.queue.test_refused_acknowledgements import ENOUGH_S, WatchedLeaders, lose_lease, send_to


class TwoLeaders(WatchedLeaders):
    """Each partition has a leader of its own, and that of partition 0 answers nothing but fetches.

    As the router has it, an answer comes when all leaders have answered. `returning`: partitions to which items go
    back.
    """

    def __init__(self, leaders: ShareLeaders) -> None:
        super().__init__(leaders)
        self.returning: list[int] = []

    async def give_back(self, group_id: str, member_id: str, place: TopicPartition, *rest: Any) -> None:
        self.returning.append(place.partition)
        if place.partition == 0:
            await self.gate.wait()
        await self._leaders.give_back(group_id, member_id, place, *rest)

    async def fetch(self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]) -> Any:
        answers = await asyncio.gather(*(self._ask(params, one) for one in partitions))
        return answers[0][0], [result for _, (result,) in answers]

    async def _ask(self, params: ShareFetchParams, partition: ShareFetchPartition) -> Any:
        if not params.has_room and partition.topic_partition.partition == 0:
            await self.gate.wait()
        return await self._leaders.fetch(params, [partition])


@pytest.fixture
def half_standing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Queue, TwoLeaders]]:
    """A queue whose first leader stands still. All of its items are leased: one of the first partition, and then four
    of the second one, of which the first has lost its lease."""
    monkeypatch.setattr(PartitionImage, "leader_actor", property(lambda each: f"leader of {each.partition}"))
    queue = Queue(lease="task_done", lease_s=60, partitions=2)
    here = queue._here
    for number in range(5):
        send_to(cluster, queue, min(number, 1), number)
        assert queue.get(timeout=ENOUGH_S) == number
    lose_lease(queue, 0, 1)
    wait_until(lambda: not here.reader._ticking, ENOUGH_S, "nothing is left to do")
    leaders = TwoLeaders(here.broker.share_leaders)
    leaders.gate.clear()
    with monkeypatch.context() as patch:
        patch.setattr(here.broker, "share_leaders", leaders)
        yield queue, leaders
        here.loop.call_soon(leaders.gate.set)
        queue.shutdown()


def test_a_leader_that_stands_still_does_not_delay_acknowledgements_at_others(
    half_standing: tuple[Queue, TwoLeaders],
) -> None:
    queue, leaders = half_standing
    for _ in range(4):
        queue.task_done()
    wait_until(lambda: queue.lag() == 3, ENOUGH_S, "those that were sent with a refused one are done")
    queue.task_done()
    wait_until(lambda: queue.lag() == 2, ENOUGH_S, "the one that was sent after them is done")
    queue._here.loop.call_soon(leaders.gate.set)
    wait_until(lambda: queue.lag() == 1, ENOUGH_S, "that of the other leader is done")


def test_a_leader_that_stands_still_does_not_delay_renewals_at_others(half_standing: tuple[Queue, TwoLeaders]) -> None:
    queue, _ = half_standing
    reader = queue._here.reader
    reader._loop.submit(reader._renew())
    wait_until(lambda: reader._leases._lost == {(1, 0)}, ENOUGH_S, "all others of the leader are renewed")


def test_a_leader_that_stands_still_does_not_delay_the_acknowledgements_of_a_close_at_others(
    half_standing: tuple[Queue, TwoLeaders],
) -> None:
    queue, leaders = half_standing
    other: Queue = pickle.loads(pickle.dumps(queue))
    queue._here.reader._ticking = True
    for _ in range(5):
        queue.task_done()
    ended = queue._here.loop.submit(queue._here.reader.end())
    wait_until(lambda: other.lag() == 2, ENOUGH_S, "all others of the second leader are done")
    assert not ended.done()
    queue._here.loop.call_soon(leaders.gate.set)
    ended.result(ENOUGH_S)
    assert other.lag() == 1
    other.close()


def test_a_leader_that_stands_still_does_not_keep_items_from_going_back_to_others(
    half_standing: tuple[Queue, TwoLeaders],
) -> None:
    queue, _ = half_standing
    reader, other = queue._here.reader, pickle.loads(pickle.dumps(queue))
    reader._loop.submit(reader._give_back(lambda: {0: [(0, 0)], 1: [(1, 3)]}))
    assert sorted(other.get(timeout=ENOUGH_S) for _ in range(4)) == [1, 2, 3, 4]
    other.close()


def test_items_that_go_back_to_a_leader_that_stands_still_do_not_delay_acknowledgements(
    cluster: Cluster, half_standing: tuple[Queue, TwoLeaders]
) -> None:
    queue, leaders = half_standing
    loop, topic = queue._here.loop, queue._here.topic
    send_to(cluster, queue, 0, "nobody takes it")
    loop.run(queue._here.reader.fetch(1, 0.0))
    wait_until(lambda: 0 in leaders.returning, ENOUGH_S, "it goes back")
    wait_until(lambda: loop.run(topic.count()).available == 1, ENOUGH_S, "the lost one has gone back")
    for _ in range(5):
        queue.task_done()
    wait_until(lambda: queue.lag() == 3, ENOUGH_S, "all but that, that of its leader and the lost one are done")


def test_items_that_go_back_to_a_leader_that_stands_still_do_not_delay_fetches_from_others(
    cluster: Cluster, half_standing: tuple[Queue, TwoLeaders]
) -> None:
    queue, leaders = half_standing
    send_to(cluster, queue, 0, "nobody takes it")
    queue._here.loop.run(queue._here.reader.fetch(1, 0.0))
    wait_until(lambda: 0 in leaders.returning, ENOUGH_S, "it goes back")
    send_to(cluster, queue, 1, "next")
    assert queue.get(timeout=5) in (1, "next")  # 1 has lost its lease
