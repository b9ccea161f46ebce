"""What a program holds of a queue: in which order items come, and when their leases end."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.client.share.records import RecordAcknowledgement
from rayka.queue.leases import ACCEPT, Item, Leases, ranges_of
from rayka.queue.settings import MOST_AHEAD, Lease
from rayka.share.record_state import AcknowledgeType

RELEASE = RecordAcknowledgement(AcknowledgeType.RELEASE)
IDLE_MS = 1000


def items(*offsets: int, partition: int = 0) -> list[Item]:
    return [Item(partition, offset, b"%d" % offset) for offset in offsets]


def holding(lease: Lease, *offsets: int) -> Leases:
    """Items that one holder has got."""
    leases = Leases(lease)
    leases.add(items(*offsets), 0)
    for _ in offsets:
        leases.take("me", 0)
    return leases


def test_items_come_in_order_and_are_done_with_the_next_get_of_the_same_holder() -> None:
    leases = Leases(Lease.NEXT_GET)
    leases.add(items(1, 2, 3), 0)
    assert [leases.take(holder, 0) for holder in ("me", "you", "me", "you")] == [*items(1, 2, 3), None]
    leases.next_get("you")
    assert leases.take_said() == {0: {2: ACCEPT}}
    assert leases.held() == {0: [1, 3]}


def test_with_task_done_only_that_ends_a_lease_oldest_first() -> None:
    leases = holding(Lease.TASK_DONE, 1, 2)
    leases.next_get("me")
    assert not leases.has_said
    assert leases.settle("me", ACCEPT)
    assert leases.settle("me", RELEASE)
    assert not leases.settle("me", ACCEPT)
    assert leases.take_said() == {0: {1: ACCEPT, 2: RELEASE}}


def test_with_program_items_are_done_when_the_program_ends_whoever_got_them() -> None:
    leases = holding(Lease.PROGRAM, 1, 2)
    leases.next_get("me")
    leases.end_holders(lambda holder: False)
    assert not leases.has_said
    leases.end()
    assert leases.take_said() == {0: {1: ACCEPT, 2: ACCEPT}}


def test_the_end_finishes_what_was_delivered_unless_the_program_had_to_say_so() -> None:
    for lease, said in ((Lease.NEXT_GET, {0: {1: ACCEPT}}), (Lease.TASK_DONE, {})):
        leases = holding(lease, 1)
        leases.end()
        assert leases.take_said() == said


def test_a_holder_that_has_ended_gets_nothing_more_so_its_items_are_done() -> None:
    leases = holding(Lease.NEXT_GET, 1)
    leases.end_holders(lambda holder: True)
    assert not leases.has_said
    leases.end_holders(lambda holder: False)
    assert leases.take_said() == {0: {1: ACCEPT}}


def test_another_holder_may_finish_the_item_of_one_that_has_ended() -> None:
    leases = holding(Lease.TASK_DONE, 1)
    assert not leases.settle("you", ACCEPT)
    leases.end_holders(lambda holder: False)
    assert leases.settle("you", ACCEPT)
    assert leases.take_said() == {0: {1: ACCEPT}}


def test_only_a_program_that_takes_items_quickly_has_more_fetched_ahead() -> None:
    slow, quick = Leases(Lease.NEXT_GET), Leases(Lease.NEXT_GET)
    for offset in range(10):
        assert slow.wanted(1) == 1
        slow.add(items(offset), offset * IDLE_MS)
        slow.take("me", offset * IDLE_MS)
        assert slow.wanted(0) == 0
        quick.add(items(offset), offset)
        quick.take("me", offset)
    assert quick.wanted(0) == MOST_AHEAD
    quick.add([], 10)
    assert quick.wanted(0) == 0, "nothing more is fetched ahead of an empty queue until somebody waits"
    assert quick.wanted(1) == MOST_AHEAD


def test_what_nobody_takes_goes_back_as_ranges_and_the_next_fetch_is_small() -> None:
    leases = Leases(Lease.NEXT_GET)
    for now_ms in range(5):
        leases.add(items(now_ms), now_ms)
    leases.add(items(7, 8, 20) + items(5, partition=1), 5)
    leases.take("me", 5)
    assert leases.take_idle(50) == {}
    assert leases.take_idle(IDLE_MS) == {0: [(1, 4), (7, 8), (20, 20)], 1: [(5, 5)]}
    assert leases.wanted(1) == 1
    assert leases.held() == {0: [0]}


def test_many_items_are_taken_together_or_not_at_all() -> None:
    leases = Leases(Lease.NEXT_GET)
    leases.add(items(1, 2), 0)
    assert leases.take_many("me", 3, 0) is None
    assert leases.take_many("me", 2, 0) == items(1, 2)
    leases.next_get("me")
    assert leases.take_said() == {0: {1: ACCEPT, 2: ACCEPT}}


def test_items_of_a_replaced_leader_are_forgotten() -> None:
    leases = Leases(Lease.NEXT_GET)
    leases.add(items(1) + items(9, partition=1), 0)
    leases.forget_ready([1])
    assert leases.take_ready() == {0: [(1, 1)]}


def test_an_acknowledgement_that_failed_does_not_replace_a_newer_one() -> None:
    leases = holding(Lease.TASK_DONE, 1, 2)
    leases.settle("me", ACCEPT)
    leases.say_again({0: {1: RELEASE, 5: RELEASE}})
    assert leases.take_said() == {0: {1: ACCEPT, 5: RELEASE}}


def test_a_lease_that_has_ended_is_not_renewed_until_the_item_is_got_again() -> None:
    leases = holding(Lease.NEXT_GET, 1, 2)
    leases.lose(0, 1)
    assert leases.held() == {0: [2]}
    leases.add(items(1), 0)
    assert leases.held() == {0: [1, 2]}


def test_one_item_is_rejected_and_those_around_it_are_not() -> None:
    leases = holding(Lease.PROGRAM, 1, 2, 3)
    leases.settle_item("you", items(2)[0], RELEASE)
    assert leases.take_said() == {0: {2: RELEASE}}
    assert leases.held() == {0: [1, 3]}


def test_large_items_are_fetched_ahead_up_to_a_number_of_bytes() -> None:
    leases = Leases(Lease.NEXT_GET)
    for now_ms in range(8):
        leases.add([Item(0, now_ms, bytes(9 << 20))], now_ms)
    assert leases.wanted(0) == 0
    for now_ms in range(5):
        leases.take("me", now_ms)
    assert leases.wanted(0) > 0


HOLDERS = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("get"), HOLDERS),
    st.tuples(st.just("done"), HOLDERS),
    st.tuples(st.just("ended"), HOLDERS),
    st.tuples(st.sampled_from(["idle", "lost"]), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(Lease)), st.lists(STEPS, max_size=30))
def test_every_item_ends_in_exactly_one_way(lease: Lease, steps: list[tuple[str, Hashable]]) -> None:
    leases, said, back, lost, fetched = Leases(lease), [], [], [], 0
    for now_ms, (step, holder) in enumerate(steps):
        if step == "get":
            leases.next_get(holder)
            if leases.take(holder, now_ms) is None:
                leases.add(items(*range(fetched, fetched + 3)), now_ms)
                fetched += 3
        elif step == "done":
            leases.settle(holder, ACCEPT)
        elif step == "ended":
            leases.end_holders(lambda one, holder=holder: one != holder)  # type: ignore[misc]
        elif step == "idle":
            back += offsets(leases.take_idle(now_ms + IDLE_MS))
        else:
            before = set(offsets(ranges_of(leases._ready)))
            leases.forget_ready([0])
            lost += before
        said += leases.take_said().get(0, {})
    held = leases.held().get(0, [])
    back += offsets(leases.take_ready())
    assert sorted([*said, *back, *lost, *held]) == [*range(fetched)]


def offsets(ranges: dict[int, list[tuple[int, int]]]) -> list[int]:
    return [offset for first, last in ranges.get(0, []) for offset in range(first, last + 1)]
