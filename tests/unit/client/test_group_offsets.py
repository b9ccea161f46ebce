"""Lag, and where a reset leads."""

from __future__ import annotations

import pytest

from rayka.client.admin.group_offsets import Bounds, GroupOffset, MemberDescription, OffsetReset, offsets_of
from rayka.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def member(name: str, *assignment: TopicPartition) -> MemberDescription:
    return MemberDescription(name, None, "client", "/127.0.0.1", assignment)


def test_every_partition_that_is_committed_or_assigned_has_a_row() -> None:
    first, second = member("first", A1), member("second", B0)
    assert offsets_of([first, second], {A0: 4, A1: 7}, {A0: 10, B0: 3}) == (
        GroupOffset(A0, 4, 10, None),
        GroupOffset(A1, 7, None, first),
        GroupOffset(B0, None, 3, second),
    )


def test_a_partition_that_changes_hands_is_there_for_both() -> None:
    old, new = member("old", A0), member("new", A0)
    assert [one.member for one in offsets_of([old, new], {A0: 1}, {A0: 1})] == [old, new]


@pytest.mark.parametrize(("current", "end", "lag"), [(4, 10, 6), (0, 0, 0), (None, 10, None), (4, None, None)])
def test_lag_is_what_is_left_to_read(current: int | None, end: int | None, lag: int | None) -> None:
    assert GroupOffset(A0, current, end).lag == lag


@pytest.mark.parametrize(
    ("reset", "committed", "found", "target"),
    [
        (OffsetReset.to_offset(50), None, None, 50),
        (OffsetReset.to_offset(3), 50, None, 10),
        (OffsetReset.to_offset(300), 50, None, 100),
        (OffsetReset.shift_by(5), 50, None, 55),
        (OffsetReset.shift_by(-5), 50, None, 45),
        (OffsetReset.shift_by(-500), 50, None, 10),
        (OffsetReset.shift_by(500), 50, None, 100),
        (OffsetReset.shift_by(5), None, None, None),
        (OffsetReset.to_earliest(), 50, 10, 10),
        (OffsetReset.to_latest(), 50, 100, 100),
        (OffsetReset.to_time(1_700_000_000_000), 50, 42, 42),
        (OffsetReset.to_time(1_700_000_000_000), 50, -1, 100),
    ],
)
def test_resets_stay_within_the_log(
    reset: OffsetReset, committed: int | None, found: int | None, target: int | None
) -> None:
    assert reset.target(Bounds(10, 100), committed, found) == target
