"""What is taken for a program, and what the program has received."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer import fetch_collector
from rayka.client.consumer.fetch_collector import FetchCollector
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.positions import AssignedPartition
from rayka.client.settings import ConsumerConfig, configure
from rayka.types import TopicPartition
from tests.support.client_connection import LocalConnection

EVENTS = TopicPartition("events", 0)
COUNT = 10


class Collecting:
    """A collector of one partition, all of whose records are in one answer."""

    def __init__(self, connection: LocalConnection) -> None:
        config = configure(ConsumerConfig, {"auto_offset_reset": "earliest"})
        self.fetcher = Fetcher(connection.broker, config, asyncio.get_running_loop())
        self.collector = FetchCollector(self.fetcher, max_poll_records=2, max_fill_records=4)
        self.fetcher.assign([EVENTS])

    @property
    def state(self) -> AssignedPartition:
        """The partition."""
        return self.fetcher.partitions[EVENTS]

    @property
    def received(self) -> int | None:
        """Behind what the program has received."""
        return self.collector.received(self.state)

    async def taken(self, take: Callable[[], dict[TopicPartition, Any]]) -> dict[TopicPartition, Any]:
        """What `take` takes as soon as that is something."""
        while not (taken := take()):
            assert await self.fetcher.wait(30)
        return taken

    async def poll(self, limit: int) -> dict[TopicPartition, Any]:
        """What a poll takes, which nobody has received yet."""
        return await self.taken(partial(self.collector.collect, partial(self.collector.take, limit)))

    async def poll_batches(self) -> dict[TopicPartition, Any]:
        """The same for batches."""
        return await self.taken(partial(self.collector.collect, self.collector.take_batches))


def offsets(polled: dict[TopicPartition, Any]) -> list[int]:
    """The offsets of records."""
    return [record.offset for record in polled[EVENTS]]


Test = Callable[[Collecting], Coroutine[Any, Any, None]]


@pytest.fixture
def run(connection: LocalConnection, cluster: Cluster) -> Callable[[Test], None]:
    """Runs a test in the client's loop."""
    with cluster.producer() as producer:
        producer.send_many("events", [b"value"] * COUNT, partition=0)

    async def main(test: Test) -> None:
        here = Collecting(connection)
        try:
            await test(here)
        finally:
            here.collector.close()

    return lambda test: connection.loop.run(asyncio.wait_for(main(test), 60))


def test_what_a_poll_took_comes_again_until_its_caller_has_it(run: Callable[[Test], None]) -> None:
    async def test(here: Collecting) -> None:
        assert offsets(await here.poll(2)) == [0, 1]
        assert (here.state.position, here.received) == (2, 0)
        polled = await here.poll(3)
        assert offsets(polled) == [0, 1, 2]
        here.collector.pending.end_delivery(polled)
        assert here.received == 3
        assert offsets(await here.poll(2)) == [3, 4]

    run(test)


def test_records_are_not_received_while_a_table_is_made_of_them(run: Callable[[Test], None]) -> None:
    async def test(here: Collecting) -> None:
        collector, polled = here.collector, await here.poll_batches()
        begun = collector.begin_table(polled)
        collector.pending.end_delivery(polled)
        assert (collector.position(here.state), here.received) == (COUNT, 0)
        collector.tables_being_made.end(begun)
        assert here.received == COUNT

    run(test)


def test_batches_of_which_no_table_was_made_come_again(run: Callable[[Test], None]) -> None:
    async def test(here: Collecting) -> None:
        collector, polled = here.collector, await here.poll_batches()
        begun = collector.begin_table(polled)
        collector.pending.end_delivery(polled)
        collector.give_back(polled, begun)
        assert here.state.position == 0
        assert offsets(await here.poll(1)) == [0]

    run(test)


@pytest.mark.parametrize("meanwhile", ["sought", "given up"])
def test_batches_do_not_come_again_where_the_program_has_said_otherwise(
    run: Callable[[Test], None], meanwhile: str
) -> None:
    async def test(here: Collecting) -> None:
        collector, polled, state = here.collector, await here.poll_batches(), here.state
        begun = collector.begin_table(polled)
        collector.pending.end_delivery(polled)
        if meanwhile == "sought":
            collector.seek(state, partial(state.seek, 7))
        else:
            here.fetcher.assign(())
            collector.forget_unassigned()
        collector.give_back(polled, begun)
        assert state.position == (7 if meanwhile == "sought" else COUNT)

    run(test)


@pytest.mark.parametrize(("quick_s", "sizes"), [(inf, [2, 4, 4]), (0.0, [2, 2, 2, 2, 2])])
def test_iteration_gets_more_records_at_a_time_while_the_program_is_quick(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch, quick_s: float, sizes: list[int]
) -> None:
    monkeypatch.setattr(fetch_collector, "_QUICK_S", quick_s)

    async def test(here: Collecting) -> None:
        taken = [await here.taken(here.collector.fill) for _ in sizes]
        assert [len(each[EVENTS]) for each in taken] == sizes
        pending = here.collector.pending
        assert [pending.popleft().offset for _ in range(COUNT)] == [*range(COUNT)]

    run(test)


def test_records_that_iteration_has_not_given_out_return_when_their_partition_is_paused(
    run: Callable[[Test], None],
) -> None:
    async def test(here: Collecting) -> None:
        await here.taken(here.collector.fill)
        assert here.collector.pending.popleft().offset == 0
        here.collector.pause([here.state])
        assert not here.collector.pending
        assert here.state.position == here.received == 1
        assert here.collector.fill() == {}
        here.fetcher.resume(here.state)
        assert offsets(await here.poll(1)) == [1]

    run(test)


def test_records_of_a_partition_that_is_given_up_are_dropped(run: Callable[[Test], None]) -> None:
    async def test(here: Collecting) -> None:
        await here.taken(here.collector.fill)
        here.fetcher.assign(())
        here.collector.forget_unassigned()
        assert not here.collector.pending

    run(test)


def test_the_positions_of_a_closed_collector_are_behind_what_was_received(run: Callable[[Test], None]) -> None:
    async def test(here: Collecting) -> None:
        await here.taken(here.collector.fill)
        here.collector.pending.popleft()
        here.collector.close()
        assert here.received == 1

    run(test)
