"""What acknowledgements, time-outs and failed writes do to records."""

from __future__ import annotations

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import AcknowledgementBatch, acknowledgements_of
from rayka.share.persister import PersistedBatch, persister_error
from rayka.share.record_state import AcknowledgeType
from tests.unit.share.group import LOCK_MS, Group

ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)


def acquired(**options: int) -> Group:
    group = Group([(0, 9), (10, 19)], **options)  # type: ignore[arg-type]
    group.acquire(max_records=10)
    return group


def test_an_acknowledgement_counts_when_it_is_persisted() -> None:
    group = acquired()
    group.say(ACCEPT, 0, 9)
    assert group.states == "0-9 ACQUIRED 1 -> ACKNOWLEDGED"
    assert group.partition.start_offset == 0
    write = group.persist()
    assert write is not None
    assert write.update.state_batches == (PersistedBatch(0, 9, 2, 1),)
    assert (write.update.state_epoch, write.update.start_offset, write.update.delivery_complete_count) == (7, 0, 10)
    assert group.partition.start_offset == 10


def test_each_record_can_be_acknowledged_in_its_own_way() -> None:
    group = acquired()
    group.say_each([1, 1, 2, 3, 0, 4, 1, 1, 1, 1], 0, 9)
    group.persist()
    assert group.states == ("2-2 AVAILABLE 1, 3-3 ARCHIVED 1, 4-4 ARCHIVED 1, 5-5 ACQUIRED 1, 6-9 ACKNOWLEDGED 1")
    assert group.partition.start_offset == 2


def test_the_start_offset_waits_for_the_first_record_that_is_not_done() -> None:
    group = acquired()
    group.accept(1, 9)
    assert group.partition.start_offset == 0
    assert group.partition.delivery_complete_count == 9
    group.accept(0, 0)
    assert group.partition.start_offset == 10


def test_a_failed_write_leaves_the_records_locked() -> None:
    group = acquired()
    group.say(ACCEPT, 0, 4)
    group.persist(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert group.states == "0-4 ACQUIRED 1, 5-9 ACQUIRED 1"
    group.accept(0, 9)
    assert group.partition.start_offset == 10


def test_a_lock_that_expires_during_a_failed_write_ends_with_it() -> None:
    group = acquired()
    group.say(ACCEPT, 0, 9)
    write = group.partition.begin_write()
    assert write is not None
    assert not group.wait(LOCK_MS)
    assert group.states == "0-9 ACQUIRED 1 -> ACKNOWLEDGED"
    group.partition.end_write(RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), group.now_ms)
    assert group.states == "0-9 AVAILABLE 1"


def test_a_lock_that_expires_during_a_write_that_succeeds_does_not_matter() -> None:
    group = acquired()
    group.say(ACCEPT, 0, 9)
    assert group.partition.begin_write() is not None
    group.wait(LOCK_MS)
    group.partition.end_write(None, group.now_ms)
    assert group.partition.start_offset == 10


def test_changes_that_come_during_a_write_go_together_with_the_next() -> None:
    group = acquired()
    group.say(ACCEPT, 0, 0)
    first = group.partition.begin_write()
    group.say(ACCEPT, 1, 1)
    group.say(REJECT, 2, 2)
    assert group.partition.begin_write() is None
    assert first is not None
    group.partition.end_write(None, 0)
    second = group.partition.begin_write()
    assert second is not None
    assert second.update.state_batches == (PersistedBatch(1, 1, 2, 1), PersistedBatch(2, 2, 4, 1))
    assert second.update.start_offset == 1


@pytest.mark.parametrize(
    ("first", "last", "member", "code"),
    [
        (0, 9, "other", ErrorCode.INVALID_RECORD_STATE),
        (0, 10, "m", ErrorCode.INVALID_REQUEST),
        (100, 100, "m", ErrorCode.INVALID_REQUEST),
    ],
    ids=["another member's", "past the end", "far past the end"],
)
def test_only_the_member_that_holds_records_acknowledges_them(
    first: int, last: int, member: str, code: ErrorCode
) -> None:
    group = acquired()
    with pytest.raises(RaykaError) as refused:
        group.say(ACCEPT, first, last, member)
    assert refused.value.code is code
    assert group.states == "0-9 ACQUIRED 1"


@pytest.mark.parametrize("is_persisted", [True, False])
def test_a_second_acknowledgement_of_a_record_is_refused_and_changes_nothing(is_persisted: bool) -> None:
    group = acquired()
    group.say(ACCEPT, 3, 3)
    if is_persisted:
        group.persist()
    before = group.states
    with pytest.raises(RaykaError) as refused:
        group.say(RELEASE, 2, 4)
    assert refused.value.code is ErrorCode.INVALID_RECORD_STATE
    assert group.states == before


def test_records_below_the_start_offset_are_left_out() -> None:
    group = acquired()
    group.partition.log_start_offset_moved(5)
    group.accept(0, 9)
    assert group.partition.start_offset == 10
    assert not group.say(ACCEPT, 0, 9).state_batches


def test_a_lock_ends_at_its_time_and_the_records_are_delivered_again() -> None:
    group = acquired()
    assert group.partition.next_deadline() == LOCK_MS
    assert not group.wait(LOCK_MS - 1)
    assert group.wait(1)
    assert group.partition.next_deadline() is None
    write = group.persist()
    assert write is not None
    assert write.update.state_batches == (PersistedBatch(0, 9, 0, 1),)
    assert group.acquire("other", max_records=10)[0] == (0, 9, 2)


def test_an_acknowledgement_after_the_lock_has_expired_is_refused_even_before_the_timer_fires() -> None:
    group = acquired()
    group.now_ms = LOCK_MS
    with pytest.raises(RaykaError) as refused:
        group.say(ACCEPT, 0, 9)
    assert refused.value.code is ErrorCode.INVALID_RECORD_STATE


def test_a_renewed_lock_lasts_as_long_again() -> None:
    group = acquired()
    group.now_ms = LOCK_MS - 1
    assert not group.say(RENEW, 0, 4).state_batches
    assert group.wait(1)
    assert group.states == "0-4 ACQUIRED 1, 5-9 AVAILABLE 1"
    assert group.partition.next_deadline() == 2 * LOCK_MS - 1


@pytest.mark.parametrize("ending", ["release", "time-out"])
def test_after_the_last_delivery_a_record_is_archived(ending: str) -> None:
    group = acquired(limit=2)
    for _ in range(2):
        if ending == "release":
            group.release(0, 9)
        else:
            group.wait(LOCK_MS)
        group.acquire(max_records=10)
    assert group.partition.start_offset == 10
    assert group.persist() is not None or ending == "release"


def test_a_member_that_leaves_gives_back_what_it_had_not_delivered() -> None:
    group = acquired()
    group.partition.release("m", were_delivered=False)
    group.persist()
    assert group.acquire("other", max_records=10)[0] == (0, 9, 1)


def test_deliveries_of_a_member_that_was_lost_count() -> None:
    group = acquired()
    group.partition.release("m", were_delivered=True)
    group.persist()
    assert group.acquire("other", max_records=10)[0] == (0, 9, 2)


def test_records_of_other_members_stay_locked_when_one_leaves() -> None:
    group = Group([(0, 9), (10, 19)])
    group.acquire("a", 10)
    group.acquire("b", 10)
    group.partition.release("a", were_delivered=True)
    group.persist()
    assert group.states == "0-9 AVAILABLE 1, 10-19 ACQUIRED 1"


def test_deadlines_of_locks_stay_few() -> None:
    group = acquired()
    for _ in range(1000):
        group.now_ms += 1
        group.say(RENEW, 0, 9)
    assert len(group.partition._deadlines) < 100


@pytest.mark.parametrize(
    "batches",
    [
        [AcknowledgementBatch(5, 4, (1,))],
        [AcknowledgementBatch(0, 4, ())],
        [AcknowledgementBatch(0, 4, (1, 1))],
        [AcknowledgementBatch(0, 4, (9,))],
        [AcknowledgementBatch(0, 4, (1,)), AcknowledgementBatch(4, 8, (1,))],
        [AcknowledgementBatch(5, 8, (1,)), AcknowledgementBatch(0, 4, (1,))],
        [AcknowledgementBatch(-3, 4, (1,))],
    ],
    ids=["reversed", "no type", "too few types", "unknown type", "overlap", "out of order", "negative"],
)
def test_malformed_acknowledgements_are_refused(batches: list[AcknowledgementBatch]) -> None:
    with pytest.raises(RaykaError) as refused:
        acknowledgements_of(batches)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_renewals_need_to_be_announced() -> None:
    with pytest.raises(RaykaError) as refused:
        acknowledgements_of([AcknowledgementBatch(0, 4, (4,))], renew_allowed=False)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_errors_of_the_persister_reach_clients_as_kafka_maps_them(code: ErrorCode, told: ErrorCode) -> None:
    assert persister_error(RaykaError(code)).code is told
