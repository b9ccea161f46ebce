"""How markers are sent to the leaders of partitions, until all of them have written theirs."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from rayka.actors.coordinator.transactions import TransactionLinks
from rayka.config import BrokerConfig
from rayka.coordinator.request import Request
from rayka.coordinator.transactions.requests import MarkersWrittenRequest
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition, TxnMarker

ORDERS, PAYMENTS, REFUNDS = TopicPartition("orders", 0), TopicPartition("payments", 0), TopicPartition("refunds", 0)


class Leaders:
    """Leaders that give these answers in turn (asking fails for an UNKNOWN_SERVER_ERROR), and this process' metadata.

    The first `away` attempts to catch up with the controller fail. The partition exists if `exists`; this process knows
    it from the start if `is_known`, else since it caught up.
    """

    def __init__(self, *answers: ErrorCode, is_known: bool = True, exists: bool = True, away: int = 0) -> None:
        self.answers = iter(answers)
        self.is_known, self.exists, self.away = is_known, exists, away
        self.sent: list[TxnMarker] = []
        self.caught_up = 0

    async def write_txn_marker(self, marker: TxnMarker) -> list[ErrorCode]:
        self.sent.append(marker)
        answers = [next(self.answers) for _ in marker.partitions]
        if ErrorCode.UNKNOWN_SERVER_ERROR in answers:
            raise KeyError("an error that nobody expected")
        return answers

    @property
    def asked(self) -> list[tuple[TopicPartition, ...]]:
        """The partitions of each request."""
        return [marker.partitions for marker in self.sent]

    def locate(self, partition: TopicPartition) -> tuple[str, int] | ErrorCode:
        return ("leader", 1) if self.is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def catch_up(self) -> None:
        self.caught_up += 1
        if self.caught_up <= self.away:
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT)
        self.is_known = self.exists


def write_markers(
    leaders: Leaders, partitions: tuple[TopicPartition, ...] = (ORDERS,), is_committed: bool = True
) -> Request[Any] | None:
    """Write the markers of a transaction."""
    nobody = cast(Any, None)
    links = TransactionLinks(nobody, cast(Any, leaders), lambda: BrokerConfig.parse({}), leaders.catch_up)
    markers = TransactionMarkers("t", 5, 1, is_committed, 2, partitions)
    return asyncio.run(asyncio.wait_for(links.perform(markers, 3), 60))


WRITTEN = MarkersWrittenRequest("t", 5, 1)


@pytest.mark.parametrize("error", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_coordinator_leaves_the_transaction_to_the_newer_one(error: ErrorCode) -> None:
    """It must not end a transaction whose markers it could not write, also if other partitions take them."""
    moved, done = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE
    leaders = Leaders(moved, moved, done, error)
    assert write_markers(leaders, (ORDERS, PAYMENTS)) is None
    assert len(leaders.sent) == 2


def test_markers_are_sent_until_the_leader_has_written_them() -> None:
    passing = (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    )
    leaders = Leaders(*passing, ErrorCode.NONE)
    assert write_markers(leaders) == WRITTEN
    assert len(leaders.sent) == 5
    assert leaders.caught_up == 0


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_marker_says_whose_transaction_ended_and_how(is_committed: bool) -> None:
    leaders = Leaders(ErrorCode.NONE)
    assert write_markers(leaders, is_committed=is_committed) == WRITTEN
    assert leaders.sent == [
        TxnMarker(
            producer_id=5,
            producer_epoch=1,
            coordinator_epoch=3,
            is_committed=is_committed,
            transaction_version=2,
            partitions=(ORDERS,),
        )
    ]


def test_only_what_is_not_written_is_sent_again() -> None:
    moved, done = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE
    leaders = Leaders(done, moved, moved, done, moved, done)
    assert write_markers(leaders, (ORDERS, PAYMENTS, REFUNDS)) == WRITTEN
    assert leaders.asked == [(ORDERS, PAYMENTS, REFUNDS), (PAYMENTS, REFUNDS), (REFUNDS,)]


def test_a_leader_that_is_away_for_long_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []

    async def sleep(duration_s: float) -> None:
        pauses_s.append(duration_s)

    monkeypatch.setattr("rayka.actors.coordinator.transactions.asyncio.sleep", sleep)
    assert write_markers(Leaders(*[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 9, ErrorCode.NONE)) == WRITTEN
    assert pauses_s == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


def test_a_deleted_partition_needs_no_marker() -> None:
    leaders = Leaders(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, is_known=False, exists=False)
    assert write_markers(leaders) == WRITTEN
    assert leaders.caught_up == 1


@pytest.mark.parametrize("away", [0, 3])
def test_a_partition_that_this_process_does_not_know_yet_gets_its_marker(away: int) -> None:
    """Another process may know a new topic before this one, and the controller may be away for as long as it likes."""
    unknown = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (away + 1)
    leaders = Leaders(*unknown, ErrorCode.NONE, is_known=False, away=away)
    assert write_markers(leaders) == WRITTEN
    assert len(leaders.sent) == away + 2
