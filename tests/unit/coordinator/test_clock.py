"""The clock is set, forward and back: nobody's session ends early or late, and no group waits for the old time."""

from __future__ import annotations

import pytest

from rayka.coordinator.groups.records import OffsetCommitKey
from rayka.errors import ErrorCode
from tests.unit.coordinator.clients import ConsumerClient, topics
from tests.unit.coordinator.shell import SESSION_MS, Shell

E = ErrorCode
HOUR_MS = 3_600_000
JUMPS = pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])


@JUMPS
def test_setting_the_clock_ends_no_session_of_classic_members(jump_ms: int) -> None:
    shell = Shell()
    first, second = shell.settled(2)
    shell.set_clock(jump_ms)
    assert shell.state() == "Stable"
    shell.advance(SESSION_MS - 1)
    assert shell.heartbeat(first.member_id, 1) is E.NONE
    shell.advance(1)
    assert shell.heartbeat(second.member_id, 1) is E.UNKNOWN_MEMBER_ID, "its session is over when its time has passed"


@JUMPS
def test_setting_the_clock_ends_no_session_of_consumers_and_delays_no_assignment(jump_ms: int) -> None:
    shell = Shell()
    shell.set_topics(topics("t"))
    a, b = ConsumerClient(shell, "a"), ConsumerClient(shell, "b")
    a.join()
    shell.set_clock(jump_ms)
    shell.advance(1)
    assert a.heartbeat().error is E.NONE
    b.join()
    for _ in range(3):
        a.heartbeat()
        b.heartbeat()
    assert len(a.partitions) == len(b.partitions) == 2
    shell.advance(45_000)
    assert shell.state() == "Empty"


@JUMPS
def test_stored_timestamps_are_wall_clock_time(jump_ms: int) -> None:
    shell = Shell()
    before_ms = shell.now.wall_ms
    shell.set_clock(jump_ms)
    shell.commit(retention_time_ms=5_000)
    (stored,) = [record.value for record in shell.records if isinstance(record.key, OffsetCommitKey)]
    assert (stored.commit_timestamp, stored.expire_timestamp) == (before_ms + jump_ms, before_ms + jump_ms + 5_000)
