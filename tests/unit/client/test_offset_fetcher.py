"""Where reading begins in partitions without a position."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer.offset_fetcher import OffsetFetcher
from rayka.client.consumer.positions import AssignedPartition
from rayka.client.settings import ConsumerConfig, configure
from rayka.errors import ErrorCode, RaykaError
from rayka.types import OffsetSpec, TopicPartition
from tests.support.client_connection import LocalConnection
from tests.support.faulty_partitions import FaultyPartitions

EVENTS = TopicPartition("events", 0)


class LookUp:
    """A look-up of the start of one partition, and what came of it."""

    def __init__(self, connection: LocalConnection, auto_offset_reset: str = "earliest") -> None:
        self.state = AssignedPartition(EVENTS)
        self.settled: list[RaykaError | None] = []
        self._connection = connection
        self._config = configure(ConsumerConfig, {"auto_offset_reset": auto_offset_reset})

    def run(self, meanwhile: Callable[[OffsetFetcher], object] = lambda _: None) -> list[RaykaError | None]:
        """Look up, and do something as soon as that has begun."""
        self._connection.loop.run(asyncio.wait_for(self._run(meanwhile), 30))
        return self.settled

    async def _run(self, meanwhile: Callable[[OffsetFetcher], object]) -> None:
        loop = asyncio.get_running_loop()
        fetcher = OffsetFetcher(self._connection.broker, self._config, loop, self._settle, lambda: None)
        fetcher.find([self.state])
        searches = set(fetcher._searches)
        meanwhile(fetcher)
        if searches:
            await asyncio.wait(searches)

    def _settle(self, state: AssignedPartition, error: RaykaError | None) -> None:
        assert state is self.state
        self.settled.append(error)


@pytest.fixture(autouse=True)
def _records(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        for _ in range(3):
            producer.send("events", b"value", partition=0)


@pytest.mark.parametrize(
    ("setting", "reset", "position"),
    [
        ("earliest", None, 0),
        ("latest", None, 3),
        ("latest", OffsetSpec.EARLIEST, 0),
        ("none", OffsetSpec.LATEST, 3),
    ],
)
def test_a_seek_to_an_end_goes_before_the_setting(
    connection: LocalConnection, setting: str, reset: OffsetSpec | None, position: int
) -> None:
    look_up = LookUp(connection, setting)
    look_up.state.seek_by(reset)
    assert look_up.run() == [None]
    assert look_up.state.position == position
    assert not look_up.state.is_fetching


def test_without_a_rule_there_is_no_position(connection: LocalConnection) -> None:
    look_up = LookUp(connection, "none")
    (error,) = look_up.run()
    assert error is not None
    assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert look_up.state.position is None


def test_a_seek_meanwhile_holds(connection: LocalConnection) -> None:
    look_up = LookUp(connection)
    assert look_up.run(lambda _: look_up.state.seek(2)) == []
    assert look_up.state.position == 2


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (MemoryError(), ErrorCode.NETWORK_EXCEPTION),
        (RaykaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_a_look_up_that_fails_in_any_way_ends(
    connection: LocalConnection, faults: FaultyPartitions, failure: BaseException, code: ErrorCode
) -> None:
    faults.fail_look_ups(failure)
    look_up = LookUp(connection)
    (error,) = look_up.run()
    assert error is not None
    assert error.code is code
    assert not look_up.state.is_fetching


def test_nothing_is_settled_after_close(connection: LocalConnection) -> None:
    look_up = LookUp(connection)
    assert look_up.run(OffsetFetcher.close) == []
    assert look_up.state.position is None
