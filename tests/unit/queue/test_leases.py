"""What a program holds of a queue: in which order items come, and when their leases end."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.client.share.records import RecordAcknowledgement
from rayka.queue.leased_offsets import (
    LeasedOffsets,
    RangeAcknowledgement,
    acknowledgement_batches,
    halves_of,
    ranges_of,
    without_older,
)
from rayka.queue.leases import ACCEPT, Item, ItemRun, Leases
from rayka.queue.settings import MOST_AHEAD, SHORTEST_LEASE_S, Lease
from rayka.share.record_state import AcknowledgeType
from tests.unit.client.interrupts import interrupted_at

ANY_MODULE = ("",)
RELEASE = RecordAcknowledgement(AcknowledgeType.RELEASE)
IDLE_MS = 1000
LONGEST_FETCH_MS = 2000


def items(*offsets: int, partition: int = 0) -> list[Item]:
    return [Item(partition, offset, b"%d" % offset) for offset in offsets]


def runs(*offsets: int, partition: int = 0) -> list[ItemRun]:
    """The same items as a fetch brings them: those that follow each other together."""
    found: list[ItemRun] = []
    for item in items(*offsets, partition=partition):
        if found and found[-1].end_offset == item.offset:
            found[-1] = found[-1]._replace(values=[*found[-1].values, item.value])
        else:
            found.append(ItemRun(partition, item.offset, [item.value]))
    return found


def acknowledgements(leases: Leases) -> dict[int, dict[int, RecordAcknowledgement]]:
    """What is to be sent now, by partition and offset."""
    found: dict[int, dict[int, RecordAcknowledgement]] = {}
    for (partition, first, last), acknowledgement, _ in leases.take_acknowledgements():
        of_partition = found.setdefault(partition, {})
        assert of_partition.keys().isdisjoint(range(first, last + 1))
        of_partition.update(dict.fromkeys(range(first, last + 1), acknowledgement))
    return found


def delivered(leases: Leases, partition: int = 0) -> list[int]:
    return [*offsets(leases.delivered(), partition)]


def holding(lease: Lease, *offsets: int) -> Leases:
    """Items that one holder has got."""
    leases = Leases(lease)
    leases.add(runs(*offsets), 0)
    for _ in offsets:
        leases.take("me", 0)
    return leases


def test_items_come_in_order_and_are_done_with_the_next_get_of_the_same_holder() -> None:
    leases = Leases(Lease.NEXT_GET)
    leases.add(runs(1, 2, 3), 0)
    assert [leases.take(holder, 0) for holder in ("me", "you", "me", "you")] == [*items(1, 2, 3), None]
    leases.next_get("you")
    assert acknowledgements(leases) == {0: {2: ACCEPT}}
    assert delivered(leases) == [1, 3]


def test_with_task_done_only_that_ends_a_lease_oldest_first() -> None:
    leases = holding(Lease.TASK_DONE, 1, 2)
    leases.next_get("me")
    assert not leases.has_acknowledgements
    assert leases.settle("me", ACCEPT)
    assert leases.settle("me", RELEASE)
    assert not leases.settle("me", ACCEPT)
    assert acknowledgements(leases) == {0: {1: ACCEPT, 2: RELEASE}}


def test_with_program_items_are_done_when_the_program_ends_whoever_got_them() -> None:
    leases = holding(Lease.PROGRAM, 1, 2)
    leases.next_get("me")
    leases.end_holders(lambda holder: False)
    assert not leases.has_acknowledgements
    leases.end()
    assert acknowledgements(leases) == {0: {1: ACCEPT, 2: ACCEPT}}


def test_the_end_finishes_what_was_delivered_unless_the_program_had_to_say_so() -> None:
    for lease, expected in ((Lease.NEXT_GET, {0: {1: ACCEPT}}), (Lease.TASK_DONE, {})):
        leases = holding(lease, 1)
        leases.end()
        assert acknowledgements(leases) == expected


def test_after_the_end_nobody_gets_what_goes_back() -> None:
    leases = Leases(Lease.NEXT_GET)
    leases.add(runs(1, 2), 0)
    leases.end()
    assert leases.take("me", 0) is None


def test_a_holder_that_has_ended_gets_nothing_more_so_its_items_are_done() -> None:
    leases = holding(Lease.NEXT_GET, 1)
    leases.end_holders(lambda holder: True)
    assert not leases.has_acknowledgements
    leases.end_holders(lambda holder: False)
    assert acknowledgements(leases) == {0: {1: ACCEPT}}


def test_another_holder_may_finish_the_item_of_one_that_has_ended() -> None:
    leases = holding(Lease.TASK_DONE, 1)
    assert not leases.settle("you", ACCEPT)
    leases.end_holders(lambda holder: False)
    assert leases.settle("you", ACCEPT)
    assert acknowledgements(leases) == {0: {1: ACCEPT}}


def test_only_a_program_that_takes_items_quickly_has_more_fetched_ahead() -> None:
    slow, quick = Leases(Lease.NEXT_GET), Leases(Lease.NEXT_GET)
    for offset in range(10):
        assert slow.wanted(1) == 1
        slow.add(runs(offset), offset * IDLE_MS)
        slow.take("me", offset * IDLE_MS)
        assert slow.wanted(0) == 0
        quick.add(runs(offset), offset)
        quick.take("me", offset)
    assert quick.wanted(0) == MOST_AHEAD
    quick.add([], 10)
    assert quick.wanted(0) == 0, "nothing more is fetched ahead of an empty queue until somebody waits"
    assert quick.wanted(1) == MOST_AHEAD


def test_what_nobody_takes_goes_back_as_ranges_and_the_next_fetch_is_small() -> None:
    leases = Leases(Lease.NEXT_GET)
    for now_ms in range(5):
        leases.add(runs(now_ms), now_ms)
    leases.add(runs(7, 8, 20) + runs(5, partition=1), 5)
    leases.take("me", 5)
    assert leases.take_idle(50) == {}
    assert leases.take_idle(IDLE_MS) == {0: [(1, 4), (7, 8), (20, 20)], 1: [(5, 5)]}
    assert leases.wanted(1) == 1
    assert delivered(leases) == [0]


def test_many_items_are_taken_together_or_not_at_all() -> None:
    leases = Leases(Lease.NEXT_GET)
    leases.add(runs(1, 2), 0)
    assert leases.take_many("me", 3, 0) is None
    assert leases.take_many("me", 2, 0) == runs(1, 2)
    leases.next_get("me")
    assert acknowledgements(leases) == {0: {1: ACCEPT, 2: ACCEPT}}


def test_items_of_a_replaced_leader_are_forgotten() -> None:
    leases = Leases(Lease.NEXT_GET)
    leases.add(runs(1) + runs(9, partition=1), 0)
    leases.forget_ready([1])
    assert leases.take_ready() == {0: [(1, 1)]}


def test_an_acknowledgement_that_failed_does_not_replace_a_newer_one() -> None:
    leases = holding(Lease.TASK_DONE, 1)
    leases.settle("me", ACCEPT)
    leases.send_again(
        [RangeAcknowledgement(LeasedOffsets(0, 1, 2), RELEASE), RangeAcknowledgement(LeasedOffsets(1, 1, 1), RELEASE)]
    )
    assert acknowledgements(leases) == {0: {1: ACCEPT, 2: RELEASE}, 1: {1: RELEASE}}


def test_an_acknowledgement_that_failed_does_not_end_a_lease_that_came_since() -> None:
    leases = holding(Lease.TASK_DONE, 1, 2, 3, 4)
    for _ in range(4):
        leases.settle("me", RELEASE)
    failed = leases.take_acknowledgements()
    leases.add(runs(1, 2), 0)
    leases.take("you", 0)
    leases.send_again(failed)
    assert leases.take_acknowledgements(also_again=False) == []
    leases.add(runs(3), 0)
    assert acknowledgements(leases) == {0: {4: RELEASE}}


def test_an_acknowledgement_that_failed_is_sent_again_though_another_holder_has_an_earlier_lease() -> None:
    leases = holding(Lease.TASK_DONE, 1, 2)
    leases.add(runs(1, 2), 0)
    leases.take_many("you", 2, 0)
    leases.settle("you", ACCEPT)
    failed = leases.take_acknowledgements()
    leases.add(runs(3), 0)
    leases.send_again(failed)
    assert acknowledgements(leases) == {0: {1: ACCEPT}}


def test_of_two_acknowledgements_that_failed_the_one_of_the_later_lease_is_sent_again() -> None:
    leases = holding(Lease.TASK_DONE, 1)
    leases.settle("me", RELEASE)
    first = leases.take_acknowledgements()
    leases.add(runs(1), 0)
    leases.take("me", 0)
    leases.settle("me", ACCEPT)
    second = leases.take_acknowledgements()
    leases.send_again(first)
    leases.send_again(second)
    leases.send_again(first)
    assert leases.take_acknowledgements() == second


NUMBERED = st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 6), st.integers(0, 4))


@given(st.lists(NUMBERED, max_size=8), st.lists(NUMBERED, max_size=8))
def test_offsets_that_were_leased_since_are_left_out(
    made: list[tuple[int, int, int, int]], leased: list[tuple[int, int, int, int]]
) -> None:
    sent = [RangeAcknowledgement(LeasedOffsets(one, at, at + more), ACCEPT, number) for one, at, more, number in made]
    newer = [(LeasedOffsets(one, at, at + more), number) for one, at, more, number in leased]
    expected = [
        (one.place.partition, offset, one.number)
        for one in sent
        for offset in range(one.place.first_offset, one.place.last_offset + 1)
        if not any(
            number > one.number and place.overlaps(LeasedOffsets(one.place.partition, offset, offset))
            for place, number in newer
        )
    ]
    rest = [
        (place.partition, offset, number)
        for place, _, number in without_older(sent, newer)
        for offset in range(place.first_offset, place.last_offset + 1)
    ]
    assert sorted(rest) == sorted(expected)


def test_acknowledgements_that_failed_beside_many_leases_cost_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    leases, count, compared, without = Leases(Lease.TASK_DONE), 500, [], LeasedOffsets.without
    for offset in range(0, 4 * count, 2):
        leases.add(runs(offset), 0)
        leases.take("me", 0)
    for _ in range(count):
        leases.settle("me", ACCEPT)
    failed = leases.take_acknowledgements()
    leases.add(runs(4 * count), 0)

    def counted(one: LeasedOffsets, other: LeasedOffsets) -> list[LeasedOffsets]:
        compared.append(one)
        return without(one, other)

    monkeypatch.setattr(LeasedOffsets, "without", counted)
    leases.send_again(failed)
    leases.add(runs(*range(4 * count + 2, 4 * count + 400, 2)), 0)
    assert len(compared) < 2 * count
    assert leases.take_acknowledgements() == failed


def test_a_lease_that_has_ended_is_not_renewed_until_the_item_is_got_again() -> None:
    leases = holding(Lease.NEXT_GET, 1, 2)
    assert leases.begin_renewal() == [LeasedOffsets(0, 1, 2)]
    leases.lose(0, 1)
    assert delivered(leases) == [2]
    leases.add(runs(1), 0)
    assert delivered(leases) == [1, 2]


def test_a_late_answer_about_a_lease_does_not_count_for_the_next_lease_of_its_item() -> None:
    leases = holding(Lease.TASK_DONE, 1, 2)
    leases.begin_renewal()
    leases.settle("me", ACCEPT)
    leases.add(runs(1), 0)
    leases.take("me", 0)
    leases.lose(0, 1)
    assert delivered(leases) == [1, 2]


def test_items_whose_fetch_began_too_long_ago_are_forgotten_and_newer_ones_are_not() -> None:
    leases = Leases(Lease.TASK_DONE)
    leases.add(runs(1, 2), 50, since_ms=0)
    leases.add(runs(3), 60, since_ms=10)
    leases.take("me", 60)
    leases.forget_older(0)
    assert leases.ready_count == 2
    leases.forget_older(5)
    assert leases.take_many("me", 1, 60) == runs(3)
    assert delivered(leases) == [1, 3]
    leases.validate_state()


def test_what_a_slow_program_has_not_got_to_goes_back_while_its_lease_can_be_relied_on() -> None:
    leases = Leases(Lease.NEXT_GET)
    leases.add(runs(*range(MOST_AHEAD)), LONGEST_FETCH_MS, since_ms=0)
    now_ms = LONGEST_FETCH_MS
    while not leases.is_idle(now_ms):
        leases.take("me", now_ms)
        now_ms += 90
        assert now_ms < SHORTEST_LEASE_S * 1000 / 2
    first_left = MOST_AHEAD - leases.ready_count
    assert first_left > 10
    assert leases.take_idle(now_ms) == {0: [(first_left, MOST_AHEAD - 1)]}
    assert leases.wanted(1) == 1


def test_one_item_is_rejected_and_those_around_it_are_not() -> None:
    leases = holding(Lease.PROGRAM, 1, 2, 3)
    leases.settle_item("you", items(2)[0], RELEASE)
    assert acknowledgements(leases) == {0: {2: RELEASE}}
    assert delivered(leases) == [1, 3]


def test_large_items_are_fetched_ahead_up_to_a_number_of_bytes() -> None:
    leases = Leases(Lease.NEXT_GET)
    for now_ms in range(8):
        leases.add([ItemRun(0, now_ms, [bytes(9 << 20)])], now_ms)
    assert leases.wanted(0) == 0
    for now_ms in range(5):
        leases.take("me", now_ms)
    assert leases.wanted(0) > 0


def test_a_batch_of_several_runs_comes_in_order_and_leaves_the_rest() -> None:
    leases = Leases(Lease.TASK_DONE)
    leases.add(runs(1, 2, 7, 8, 9), 0)
    assert leases.take("me", 0) == items(1)[0]
    assert leases.take_many("me", 3, 0) == runs(2, 7, 8)
    assert leases.take_ready() == {0: [(9, 9)]}
    assert delivered(leases) == [1, 2, 7, 8]


def test_acknowledgements_of_neighbours_are_one_on_the_wire() -> None:
    done = [RangeAcknowledgement(LeasedOffsets(0, *each), ACCEPT) for each in ((5, 5), (1, 3), (4, 4), (7, 7))]
    failed = [
        RangeAcknowledgement(LeasedOffsets(1, 4, 4), RELEASE),
        RangeAcknowledgement(LeasedOffsets(1, 5, 5), ACCEPT),
    ]
    batches = acknowledgement_batches([*done, *failed])
    assert [batch[:3] for batch in batches[0]] == [(1, 5, (1,)), (7, 7, (1,))]
    assert [batch[:3] for batch in batches[1]] == [(4, 4, (2,)), (5, 5, (1,))]


def test_refused_acknowledgements_are_halved_down_to_single_items() -> None:
    left, single = (
        [[RangeAcknowledgement(LeasedOffsets(0, 1, 5), ACCEPT), RangeAcknowledgement(LeasedOffsets(0, 9, 9), RELEASE)]],
        [],
    )
    while left:
        part = left.pop()
        if sum(one.place.length for one in part) == 1:
            single += part
        else:
            left += halves_of(part)
    assert sorted(one.place.first_offset for one in single) == [1, 2, 3, 4, 5, 9]


HOLDERS = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["get", "get batch", "reject"]), HOLDERS),
    st.tuples(st.just("done"), HOLDERS),
    st.tuples(st.just("ended"), HOLDERS),
    st.tuples(st.sampled_from(["idle", "lost", "old"]), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(Lease)), st.lists(STEPS, max_size=30))
def test_every_item_ends_in_exactly_one_way(lease: Lease, steps: list[tuple[str, Hashable]]) -> None:
    leases, acknowledged, back, lost, fetched = Leases(lease), [], [], [], 0
    for now_ms, (step, holder) in enumerate(steps):
        if step == "get":
            leases.next_get(holder)
            if leases.take(holder, now_ms) is None:
                leases.add(runs(*range(fetched, fetched + 3)), now_ms)
                fetched += 3
        elif step == "get batch":
            leases.take_many(holder, 2, now_ms)
        elif step == "reject":
            if offsets_delivered := delivered(leases):
                leases.settle_item(holder, Item(0, offsets_delivered[len(offsets_delivered) // 2], b""), RELEASE)
        elif step == "done":
            leases.settle(holder, ACCEPT)
        elif step == "ended":
            leases.end_holders(lambda one, holder=holder: one != holder)  # type: ignore[misc]
        elif step == "idle":
            back += offsets(leases.take_idle(now_ms + IDLE_MS))
        else:
            before = set(offsets(ranges_of(leases._ready_places())))
            if step == "lost":
                leases.forget_ready([0])
            else:
                leases.forget_older(now_ms - 3)
            lost += before - set(offsets(ranges_of(leases._ready_places())))
        leases.validate_state()
        acknowledged += acknowledgements(leases).get(0, {})
    kept = delivered(leases)
    back += offsets(leases.take_ready())
    assert sorted([*acknowledged, *back, *lost, *kept]) == [*range(fetched)]


def offsets(ranges: dict[int, list[tuple[int, int]]], partition: int = 0) -> list[int]:
    return [offset for first, last in ranges.get(partition, []) for offset in range(first, last + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_after_ctrl_c_the_program_gets_the_other_items(count: int) -> None:
    """The items of that call may come again later, when their leases have ended."""
    for step in itertools.count():
        leases = Leases(Lease.NEXT_GET)
        leases.add(runs(1, 2, 3, 5, 6, 7), 0)
        take = partial(leases.take, "me", 0) if count == 1 else partial(leases.take_many, "me", count, 0)
        if not interrupted_at(step, ANY_MODULE, take, events=("call", "return", "c_return")):
            break
        leases.validate_state()
        left = leases.ready_count
        found = [item.offset for _ in range(left) if (item := leases.take("you", 0)) is not None]
        assert found == [1, 2, 3, 5, 6, 7][6 - left :]
        assert leases.take("you", 0) is None
    assert step > 3


def test_after_the_end_nothing_is_added() -> None:
    leases = Leases(Lease.NEXT_GET)
    leases.end()
    leases.add(runs(1), 0)
    assert (leases.ready_count, leases.take("me", 0)) == (0, None)
