"""How much a group has to do in a partition, and records that come back without having been delivered."""

from __future__ import annotations

from rayka.share.record_state import AcknowledgeType
from tests.unit.share.group import Group

LOG_END = 10


def depth(group: Group) -> tuple[int, int, int]:
    return tuple(group.partition.depth(LOG_END))  # type: ignore[return-value]


def test_the_depth_counts_what_can_be_acquired_and_what_is_held() -> None:
    group = Group([(0, 4), (5, 9)])
    assert depth(group) == (10, 0, 0)
    group.acquire(max_records=4, mode="records")
    assert depth(group) == (6, 4, 0)
    group.accept(0, 1)
    group.release(2, 2)
    assert depth(group) == (7, 1, 2)


def test_records_that_are_delayed_or_change_their_state_can_not_be_acquired() -> None:
    group = Group([(0, 9)])
    group.acquire(max_records=2, mode="records")
    group.say(AcknowledgeType.RELEASE, 0, 0)
    assert depth(group)[0] == 8
    group.persist()
    assert depth(group)[0] == 9


def test_records_that_were_fetched_ahead_come_back_without_a_delivery_and_the_rest_stays_held() -> None:
    group = Group([(0, 9)])
    group.acquire(max_records=6, mode="records")
    group.partition.release("m", were_delivered=False, offsets=[(1, 2), (5, 20)])
    group.partition.release("another", were_delivered=False, offsets=[(0, 9)])
    group.persist()
    assert depth(group) == (7, 3, 0)
    assert [tuple(one) for one in group.acquire("n", mode="records")][:2] == [(1, 2, 1), (5, 9, 1)]
    group.accept(3, 4)


def test_no_more_can_be_acquired_than_may_be_in_flight() -> None:
    group = Group([(0, 299)], locks=100)
    assert group.partition.acquirable_count(300) == 100
    group.acquire(max_records=70, mode="records")
    assert group.partition.acquirable_count(300) == 30
    group.accept(0, 9)
    assert group.partition.acquirable_count(300) == 40
    group.release(10, 19)
    assert group.partition.acquirable_count(300) == 50
