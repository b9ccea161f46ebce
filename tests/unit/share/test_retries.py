"""Records that are released wait for their next delivery, and nobody else waits for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayka.config.shares import MAX_RETRY_DELAY_MS
from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import AcknowledgementBatch, acknowledgements_of
from rayka.share.config import ShareGroupConfig
from rayka.share.record_state import AcknowledgeType
from tests.unit.share.group import LOCK_MS, Group

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


def release(group: Group, first: int, last: int, delay_ms: int) -> None:
    batch = AcknowledgementBatch(first, last, (RELEASE,), delay_ms)
    group.partition.acknowledge("m", acknowledgements_of([batch]), group.now_ms)
    group.persist()


def offsets(group: Group, max_records: int = 500) -> list[tuple[int, int]]:
    return [(first, last) for first, last, _ in group.acquire(max_records=max_records, mode="records")]


def test_a_delayed_record_is_delivered_when_its_delay_is_over() -> None:
    group = Group([(0, 2)])
    offsets(group)
    release(group, 1, 1, 300)
    assert group.partition.next_deadline() == 300
    assert not group.wait(299)
    assert offsets(group) == []
    assert group.wait(1)
    assert offsets(group) == [(1, 1)]


def test_records_behind_a_delayed_one_are_delivered_and_the_start_offset_waits() -> None:
    group = Group([(0, 9)])
    offsets(group, 1)
    release(group, 0, 0, 10_000)
    assert offsets(group, 5) == [(1, 5)]
    group.accept(1, 5)
    assert offsets(group) == [(6, 9)]
    assert group.partition.start_offset == 0


def test_done_records_behind_a_delayed_one_take_no_room() -> None:
    group = Group([(offset, offset) for offset in range(1000)], locks=10)
    offsets(group, 1)
    release(group, 0, 0, 10_000)
    for offset in range(1, 1000):
        assert offsets(group, 1) == [(offset, offset)]
        group.accept(offset, offset)
    assert len(list(group.partition._batches)) < 50
    assert group.partition.delivery_complete_count == 999
    group.wait(10_000)
    group.acquire()
    group.accept(0, 0)
    assert group.partition.start_offset == 1000


def test_done_records_take_no_room_either_under_a_leader_that_loads_them_after_the_delay() -> None:
    group = Group([(offset, offset) for offset in range(50)], persisted=[(0, 0, 0, 1, 5), (1, 30, 2, 1)], locks=10)  # type: ignore[list-item]
    group.wait(10)
    assert offsets(group, 1) == [(0, 0)]
    assert offsets(group, 2) == [(31, 32)]


def test_records_that_wait_take_room_of_those_in_flight() -> None:
    group = Group([(0, 19)], locks=10)
    assert offsets(group) == [(0, 9)]
    release(group, 0, 9, 10_000)
    assert group.partition.next_fetch_offset() is None


def test_the_wait_doubles_with_every_delivery_up_to_its_bound() -> None:
    group = Group([(0, 0)], limit=10)
    group.partition.config = replace(group.partition.config, retry_backoff_ms=100, retry_backoff_max_ms=500)
    for delay_ms in (100, 200, 400, 500, 500):
        assert offsets(group) == [(0, 0)]
        group.release(0, 0)
        group.wait(delay_ms - 1)
        assert offsets(group) == []
        group.wait(1)


def test_a_delay_that_a_member_asks_for_goes_before_the_settings() -> None:
    group = Group([(0, 0)])
    group.partition.config = replace(group.partition.config, retry_backoff_ms=100)
    offsets(group)
    release(group, 0, 0, 0)
    assert offsets(group) == [(0, 0)]


@pytest.mark.parametrize(("delivery_count", "delay_ms"), [(1, 1000), (2, 2000), (25, MAX_RETRY_DELAY_MS)])
def test_without_a_bound_of_its_own_a_wait_ends_after_a_day(delivery_count: int, delay_ms: int) -> None:
    assert ShareGroupConfig(retry_backoff_ms=1000).retry_delay_ms(delivery_count) == delay_ms


def test_a_lock_that_expires_and_a_member_that_leaves_delay_nothing() -> None:
    group = Group([(0, 0)])
    group.partition.config = replace(group.partition.config, retry_backoff_ms=100)
    offsets(group)
    group.wait(LOCK_MS)
    assert offsets(group) == [(0, 0)]
    group.partition.release("m", were_delivered=True)
    group.persist()
    assert offsets(group) == [(0, 0)]


def test_a_delay_that_could_not_be_persisted_does_not_begin() -> None:
    group = Group([(0, 0)])
    offsets(group)
    group.partition.acknowledge("m", acknowledgements_of([AcknowledgementBatch(0, 0, (RELEASE,), 5000)]), 0)
    group.persist(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert group.states == "0-0 ACQUIRED 1"
    group.wait(LOCK_MS)
    assert offsets(group) == [(0, 0)]


def test_the_last_delivery_of_a_record_is_not_followed_by_a_wait() -> None:
    group = Group([(0, 0)], persisted=[(0, 0, 0, 4)])
    offsets(group)
    release(group, 0, 0, 5000)
    assert group.partition.start_offset == 1


def test_a_persisted_delay_goes_on_and_later_records_are_delivered() -> None:
    group = Group([(0, 9)], persisted=[(0, 0, 0, 1, 700), (1, 1, 4, 1, 700)])  # type: ignore[list-item]
    assert offsets(group) == [(2, 9)]
    group.wait(700)
    assert offsets(group) == [(0, 0)]


def test_deadlines_of_delays_stay_few() -> None:
    group = Group([(0, 1)])
    offsets(group, 1)
    release(group, 0, 0, 50_000)
    for _ in range(200):
        group.acquire()
        group.partition.release("m", were_delivered=False)
        group.persist()
    assert len(group.partition._deadlines) < 100
    group.wait(50_000)
    assert [batch[:2] for batch in group.acquire()] == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (AcknowledgementBatch(0, 0, (RELEASE,), -2), "delay of -2 ms"),
        (AcknowledgementBatch(0, 0, (RELEASE,), MAX_RETRY_DELAY_MS + 1), "delay of"),
        (AcknowledgementBatch(0, 1, (RELEASE, ACCEPT), 10), "only records that are released"),
        (AcknowledgementBatch(0, 0, (ACCEPT,), headers=(("a", b"b"),)), "only records that are rejected"),
        (AcknowledgementBatch(0, 0, (REJECT,), headers=(("a", bytes(20_000)),)), "more than 16384 bytes"),
    ],
)
def test_delays_and_headers_out_of_place_are_refused(batch: AcknowledgementBatch, message: str) -> None:
    with pytest.raises(RaykaError, match=message) as refused:
        acknowledgements_of([batch])
    assert refused.value.code is ErrorCode.INVALID_REQUEST
