"""The assignors: every partition once, to somebody who wants it, evenly, and with few moves."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from rayka.coordinator.groups.consumer.assignors import AssignorMember, assign_range, assign_uniform, ranges
from rayka.coordinator.groups.consumer.member import Assignment

TOPICS = [uuid.UUID(int=number) for number in range(1, 5)]
Members = dict[str, AssignorMember]
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)


@st.composite
def groups(draw: st.DrawFn, alike: bool = False) -> tuple[Members, dict[uuid.UUID, int]]:
    """Members with subscriptions, and targets that may make no sense any more."""
    counts = draw(COUNTS)
    names = [f"m{number}" for number in range(draw(st.integers(1, 7)))]
    subsets = st.sets(st.sampled_from(sorted(counts))).map(frozenset)
    common = frozenset(counts)
    members: Members = {}
    partitions = [(topic, number) for topic in TOPICS for number in range(10)]
    owners = draw(st.lists(st.sampled_from([*names, None]), min_size=len(partitions), max_size=len(partitions)))
    for index, name in enumerate(names):
        target: dict[uuid.UUID, set[int]] = {}
        for (topic, number), owner in zip(partitions, owners, strict=True):
            if owner == name:
                target.setdefault(topic, set()).add(number)
        members[name] = AssignorMember(
            f"i{index}" if draw(st.booleans()) else None,
            common if alike else draw(subsets),
            {topic: frozenset(numbers) for topic, numbers in target.items()},
        )
    wanted = frozenset().union(*(member.topics for member in members.values()))
    return members, {topic: count for topic, count in counts.items() if topic in wanted}


def size(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def check_complete(assigned: Mapping[str, Assignment], members: Members, counts: Mapping[uuid.UUID, int]) -> None:
    given_out = [(t, p) for assignment in assigned.values() for t, ps in assignment.items() for p in ps]
    assert sorted(given_out) == sorted((t, p) for t, count in counts.items() for p in range(count))
    assert all(assignment.keys() <= members[member_id].topics for member_id, assignment in assigned.items())
    assert assigned.keys() == members.keys()


def settled(members: Members, assigned: Mapping[str, Assignment]) -> Members:
    return {member_id: member._replace(target=assigned[member_id]) for member_id, member in members.items()}


@given(groups(alike=True))
def test_uniform_is_even_and_sticky(group: tuple[Members, dict[uuid.UUID, int]]) -> None:
    members, counts = group
    assigned = assign_uniform(members, counts)
    check_complete(assigned, members, counts)
    sizes = sorted(map(size, assigned.values()))
    assert sizes[-1] - sizes[0] <= 1
    for member_id, member in members.items():
        valid = {(t, p) for t, ps in member.target.items() for p in ps if p < counts.get(t, 0)}
        kept = {(t, p) for t, ps in assigned[member_id].items() for p in ps} & valid
        assert len(kept) >= min(len(valid), sizes[0]), "nobody loses what it may keep"
    assert assign_uniform(settled(members, assigned), counts) == assigned


@given(groups())
def test_uniform_is_as_even_as_subscriptions_allow(group: tuple[Members, dict[uuid.UUID, int]]) -> None:
    members, counts = group
    assigned = assign_uniform(members, counts)
    check_complete(assigned, members, counts)
    assert assign_uniform(settled(members, assigned), counts) == assigned
    loads = {member_id: size(assignment) for member_id, assignment in assigned.items()}
    for giver in members:
        assert all(loads[giver] - loads[taker] <= 1 for taker in reachable(giver, assigned, members))


def reachable(source: str, assigned: Mapping[str, Assignment], members: Members) -> set[str]:
    """Members that could get one more if `source` gave one up, directly or through others."""
    seen, queue = {source}, [source]
    while queue:
        topics = assigned[queue.pop()].keys()
        for member_id, member in members.items():
            if member_id not in seen and topics & member.topics:
                seen.add(member_id)
                queue.append(member_id)
    return seen


@given(groups())
def test_range_gives_rows_and_pairs(group: tuple[Members, dict[uuid.UUID, int]]) -> None:
    members, counts = group
    assigned = assign_range(members, counts)
    check_complete(assigned, members, counts)
    for assignment in assigned.values():
        for numbers in assignment.values():
            assert max(numbers) - min(numbers) == len(numbers) - 1
    for a, b in itertools.combinations(counts, 2):
        subscribers = [{m for m in members if topic in members[m].topics} for topic in (a, b)]
        if counts[a] == counts[b] and subscribers[0] == subscribers[1]:
            assert all(assignment.get(a) == assignment.get(b) for assignment in assigned.values())


def test_static_members_keep_their_rows_when_member_ids_change() -> None:
    counts = {TOPICS[0]: 4}
    first = {
        "x": AssignorMember("i1", frozenset(counts), {}),
        "a": AssignorMember("i2", frozenset(counts), {}),
    }
    second = {"x2": first["x"], "z": first["a"]}
    assert [assign_range(first, counts)[m] for m in ("x", "a")] == [
        assign_range(second, counts)[m] for m in ("x2", "z")
    ]


@given(st.integers(0, 50), st.integers(1, 20))
def test_ranges(num_partitions: int, num_members: int) -> None:
    rows = ranges(num_partitions, num_members)
    assert [number for row in rows for number in row] == list(range(num_partitions))
    assert sorted(map(len, rows), reverse=True) == list(map(len, rows))
    assert len(rows[0]) - len(rows[-1]) <= 1


def test_one_more_member_takes_its_share_and_nothing_else_moves() -> None:
    counts = {TOPICS[0]: 100}
    members = {f"m{n}": AssignorMember(None, frozenset(counts), {}) for n in range(10)}
    before = assign_uniform(members, counts)
    grown = settled(members, before) | {"new": AssignorMember(None, frozenset(counts), {})}
    after = assign_uniform(grown, counts)
    moved = sum(len(before[m][TOPICS[0]] - after[m].get(TOPICS[0], frozenset())) for m in before)
    assert moved == size(after["new"]) == 9
