"""Share sessions: their epochs, their limit and their end."""

from __future__ import annotations

import uuid

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.share.session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    OnlyCount,
    SessionKey,
    SharePartitionId,
    ShareSession,
    ShareSessions,
)

KEY = SessionKey("group", "member")
TOPIC = uuid.UUID(int=1)
A, B, C, D, E = (SharePartitionId(TOPIC, number) for number in range(5))


def opened(limit: int = 10) -> tuple[ShareSessions, ShareSession]:
    sessions = ShareSessions()
    return sessions, sessions.fetch(KEY, INITIAL_EPOCH, "connection", limit)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (2, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
        (-2, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
        (100, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
    ],
)
def test_a_request_out_of_turn_is_refused(epoch: int, code: ErrorCode) -> None:
    sessions, _ = opened()
    with pytest.raises(RaykaError) as refused:
        sessions.fetch(KEY, epoch, "connection", 10)
    assert refused.value.code is code


def test_fetches_and_acknowledgements_share_the_epochs() -> None:
    sessions, session = opened()
    assert sessions.fetch(KEY, 1, "connection", 10) is session
    assert sessions.acknowledge(KEY, 2) is session
    assert sessions.fetch(KEY, 3, "connection", 10) is session


def test_after_the_highest_epoch_comes_1() -> None:
    sessions, session = opened()
    session.epoch = 2**31 - 1
    sessions.acknowledge(KEY, 2**31 - 1)
    assert session.epoch == 1


@pytest.mark.parametrize("epoch", [1, FINAL_EPOCH])
def test_a_session_that_is_not_there_is_not_found(epoch: int) -> None:
    with pytest.raises(RaykaError) as refused:
        ShareSessions().acknowledge(KEY, epoch)
    assert refused.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_an_acknowledgement_opens_no_session() -> None:
    with pytest.raises(RaykaError) as refused:
        ShareSessions().acknowledge(KEY, INITIAL_EPOCH)
    assert refused.value.code is ErrorCode.INVALID_SHARE_SESSION_EPOCH


def test_the_final_epoch_ends_the_session() -> None:
    sessions, session = opened()
    assert sessions.acknowledge(KEY, FINAL_EPOCH) is session
    assert len(sessions) == 0


def test_there_are_no_more_sessions_than_the_limit_but_a_member_may_begin_again() -> None:
    sessions, session = opened(limit=1)
    assert sessions.fetch(KEY, INITIAL_EPOCH, "connection", 1) is not session
    with pytest.raises(RaykaError) as refused:
        sessions.fetch(SessionKey("group", "another"), INITIAL_EPOCH, "connection", 1)
    assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_a_session_keeps_its_partitions_and_reads_the_last_one_served_last() -> None:
    sessions, session = opened()
    sessions.update(session, [A, B, C], [])
    session.read_last(A)
    sessions.update(session, [C], [B])
    assert list(session.partitions) == [C, A]
    assert session.seen == {A, B, C}


def test_sessions_together_have_a_bounded_number_of_partitions() -> None:
    """Also of those that they have no more: a member may hold records of them."""
    sessions = ShareSessions(most_partitions=4, least_partitions=2)
    session = sessions.fetch(KEY, INITIAL_EPOCH, "connection", 10)
    sessions.update(session, [A, B], [])
    sessions.update(session, [C], [A, B])
    sessions.update(session, [C, D], [])
    with pytest.raises(RaykaError) as refused:
        sessions.update(session, [E, D], [C])
    assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert (list(session.partitions), session.seen) == ([C, D], {A, B, C, D})
    sessions.update(session, [A], [C])
    again = sessions.fetch(KEY, INITIAL_EPOCH, "connection", 10)
    sessions.update(again, [E], [])


def test_a_member_with_few_partitions_finds_room_beside_one_with_many() -> None:
    sessions = ShareSessions(most_partitions=3, least_partitions=2)
    large = sessions.fetch(KEY, INITIAL_EPOCH, "connection", 10)
    sessions.update(large, [A, B, C], [])
    small = sessions.fetch(SessionKey("group", "another"), INITIAL_EPOCH, "connection", 10)
    sessions.update(small, [A, B], [])
    with pytest.raises(RaykaError):
        sessions.update(small, [C], [])


def test_sessions_end_with_their_connection() -> None:
    sessions, session = opened()
    sessions.fetch(SessionKey("group", "another"), INITIAL_EPOCH, "another connection", 10)
    assert sessions.disconnected("connection") == [session]
    assert len(sessions) == 1


def test_the_processes_of_a_broker_have_one_limit_and_ended_sessions_make_room() -> None:
    count = OnlyCount(others=2)
    sessions = ShareSessions(count=count)
    keys = [SessionKey("group", f"member-{number}") for number in range(4)]
    for key in keys[:2]:
        sessions.fetch(key, INITIAL_EPOCH, key.member_id, 4)
    for others, is_refused in ((2, True), (1, False)):
        count.others = others
        if is_refused:
            with pytest.raises(RaykaError, match="4 share sessions"):
                sessions.fetch(keys[2], INITIAL_EPOCH, "another", 4)
        else:
            sessions.fetch(keys[2], INITIAL_EPOCH, "another", 4)
    sessions.fetch(keys[0], INITIAL_EPOCH, "again", 4)
    sessions.fetch(keys[0], FINAL_EPOCH, "again", 4)
    sessions.disconnected("another")
    assert (count.own, len(sessions)) == (1, 1)
