"""The cache of fetch sessions: epochs, news, order, eviction (KIP-227)."""

from __future__ import annotations

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.handlers.fetch.sessions import FetchSessions, SessionPartition
from rayka.gateway.server.node_usage import NodeUsage
from rayka.types import FetchResult, FileSlice

MINUTE_MS = 60_000


def sessions(slots: int = 2) -> FetchSessions:
    return FetchSessions(
        {"max.incremental.fetch.session.cache.slots": slots}, NodeUsage().fetch_sessions, eviction_ms=2 * MINUTE_MS
    )


def partitions(count: int) -> list[SessionPartition]:
    return [SessionPartition("t", number, 0, 100) for number in range(count)]


def opened(cache: FetchSessions, count: int, now_ms: int) -> int:
    return cache.begin(0, 0, partitions(count), [], False, now_ms).session_id


def test_a_full_fetch_opens_a_session_and_a_final_one_ends_it() -> None:
    cache = sessions()
    session_id = opened(cache, 2, 0)
    assert session_id > 0
    assert cache.begin(session_id, 1, [], [], False, 0).incremental
    alone = cache.begin(session_id, -1, partitions(1), [], False, 0)
    assert (alone.session_id, len(alone.partitions), len(cache)) == (0, 1, 0)
    assert cache.begin(session_id, 2, [], [], False, 0).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_with_a_session_replaces_it() -> None:
    cache = sessions()
    first = opened(cache, 1, 0)
    second = cache.begin(first, 0, partitions(1), [], False, 0).session_id
    assert second != first
    assert len(cache) == 1


@pytest.mark.parametrize("epoch", [2, 5, 2**31 - 1])
def test_only_the_next_session_epoch_is_accepted(epoch: int) -> None:
    cache = sessions()
    session_id = opened(cache, 1, 0)
    assert cache.begin(session_id, epoch, [], [], False, 0).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert cache.begin(session_id, 1, [], [], False, 0).error is ErrorCode.NONE


def test_epochs_go_round() -> None:
    cache = sessions()
    session_id = opened(cache, 1, 0)
    session = cache.begin(session_id, 1, [], [], False, 0).session
    assert session is not None
    session.epoch = 2**31 - 1
    assert cache.begin(session_id, 2**31 - 1, [], [], False, 0).error is ErrorCode.NONE
    assert session.epoch == 1


def test_changes_keep_the_place_and_what_the_reader_knows() -> None:
    cache = sessions()
    full = cache.begin(0, 0, partitions(3), [], False, 0)
    for partition in full.partitions:
        assert full.admits(partition, FetchResult(0, 10, 10, 0))
    changed = SessionPartition("t", 1, 5, 200)
    fetch = cache.begin(full.session_id, 1, [changed, SessionPartition("t", 9, 0, 1)], [("t", 0)], False, 0)
    assert [(one.partition, one.fetch_offset) for one in fetch.partitions] == [(1, 5), (2, 0), (9, 0)]
    assert not fetch.admits(changed, FetchResult(0, 10, 10, 0))
    assert fetch.admits(changed, FetchResult(0, 11, 11, 0))
    assert fetch.admits(changed, FetchResult(0, 11, 11, 3))


def test_the_first_result_after_an_error_is_news_for_the_session() -> None:
    cache = sessions()
    full = cache.begin(0, 0, partitions(1), [], False, 0)
    (partition,) = full.partitions
    full.admits(partition, FetchResult(0, 10, 10, 0))
    fetch = cache.begin(full.session_id, 1, [], [], False, 0)
    assert fetch.admits(partition, FetchResult(6))
    assert fetch.admits(partition, FetchResult(6))
    assert fetch.admits(partition, FetchResult(0, 10, 10, 0))
    assert not fetch.admits(partition, FetchResult(0, 10, 10, 0))


def test_a_partition_that_returned_records_is_read_last_next_time() -> None:
    cache = sessions()
    full = cache.begin(0, 0, partitions(3), [], False, 0)
    fetch = cache.begin(full.session_id, 1, [], [], False, 0)
    assert fetch.admits(fetch.partitions[0], FetchResult(0, 5, 5, 0, None, FileSlice("f", 0, 10)))
    later = cache.begin(full.session_id, 2, [], [], False, 0)
    assert [one.partition for one in later.partitions] == [1, 2, 0]


def test_a_session_without_partitions_ends() -> None:
    cache = sessions()
    session_id = opened(cache, 1, 0)
    assert cache.begin(session_id, 1, [], [("t", 0)], False, 0).session_id == 0
    assert len(cache) == 0


def test_a_stale_session_makes_room() -> None:
    cache = sessions()
    stale, fresh = opened(cache, 5, 0), opened(cache, 5, 0)
    cache.begin(fresh, 1, [], [], False, 2 * MINUTE_MS)
    assert opened(cache, 1, 2 * MINUTE_MS + 1) > 0
    assert cache.begin(stale, 1, [], [], False, 2 * MINUTE_MS + 1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.begin(fresh, 2, [], [], False, 2 * MINUTE_MS + 1).error is ErrorCode.NONE


def test_sessions_have_a_bounded_number_of_partitions() -> None:
    cache = FetchSessions(
        {"max.incremental.fetch.session.cache.slots": 9}, NodeUsage().fetch_sessions, 2 * MINUTE_MS, most_partitions=10
    )
    assert opened(cache, 11, 0) == 0
    stale, fresh = opened(cache, 4, 0), opened(cache, 4, MINUTE_MS)
    assert opened(cache, 3, MINUTE_MS) == 0
    full = cache.begin(fresh, 1, partitions(6), [], False, MINUTE_MS)
    assert (full.error, len(full.partitions)) == (ErrorCode.NONE, 6)
    assert opened(cache, 3, 2 * MINUTE_MS + 1) > 0
    assert cache.begin(stale, 1, [], [], False, 2 * MINUTE_MS + 1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.begin(fresh, 2, partitions(8), [], False, 2 * MINUTE_MS + 1).error is (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert len(cache) == 1


def bounded_sessions(most_partitions: int) -> FetchSessions:
    config = {"max.incremental.fetch.session.cache.slots": 9}
    return FetchSessions(config, NodeUsage().fetch_sessions, 2 * MINUTE_MS, most_partitions)


def test_no_session_ends_for_one_that_finds_no_room_all_the_same() -> None:
    """Else a client that asks for too much takes the sessions of all smaller clients, again and again."""
    cache = bounded_sessions(10)
    small, large = opened(cache, 2, 0), opened(cache, 7, MINUTE_MS)
    cache.begin(small, 1, [], [], False, MINUTE_MS)
    now_ms = 2 * MINUTE_MS + 1
    assert opened(cache, 4, now_ms) == 0
    assert cache.begin(small, 2, [], [], False, now_ms).error is ErrorCode.NONE
    assert cache.begin(large, 1, [], [], False, now_ms).error is ErrorCode.NONE
    assert opened(cache, 3, now_ms) > 0


def test_a_session_has_no_names_that_no_topic_may_have() -> None:
    """A name of a request has up to 32 KB: a bounded number of them would use up the memory all the same."""
    cache = sessions()
    long = SessionPartition("t" * 250, 0, 0, 100)
    alone = cache.begin(0, 0, [long], [], False, 0)
    assert (alone.session_id, alone.partitions, len(cache)) == (0, [long], 0)
    session_id = opened(cache, 2, 0)
    assert cache.begin(session_id, 1, [long], [("t", 0)], False, 0).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache) == 0
    assert cache.begin(0, 0, [SessionPartition("t" * 249, 0, 0, 100)], [], False, 0).session_id > 0


def test_a_larger_session_takes_the_place_of_a_smaller_one_that_lasted() -> None:
    cache = sessions()
    small, large = opened(cache, 1, 0), opened(cache, 9, 0)
    now_ms = 2 * MINUTE_MS
    cache.begin(small, 1, [], [], False, now_ms)
    cache.begin(large, 1, [], [], False, now_ms)
    assert opened(cache, 5, now_ms) == 0, "nobody has lasted long enough"
    assert opened(cache, 1, now_ms + 1) == 0, "it is no larger"
    assert opened(cache, 5, now_ms + 1) > 0
    assert cache.begin(small, 2, [], [], False, now_ms + 1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.begin(large, 2, [], [], False, now_ms + 1).error is ErrorCode.NONE


def test_without_free_session_slots_every_fetch_is_sessionless() -> None:
    cache = sessions(slots=0)
    assert opened(cache, 3, 0) == 0
