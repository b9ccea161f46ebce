"""The server-side assignors of consumer groups (KIP-848), which decide who reads which partitions.

`uniform` gives all members the same number of partitions, as far as subscriptions allow, and moves as few of them as
possible. `range` gives each member consecutive partitions of each topic, so that partitions of the same number of
different topics are read by the same member.
"""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from rayka.coordinator.groups.consumer.member import Assignment

Partition: TypeAlias = tuple[uuid.UUID, int]


class AssignorMember(NamedTuple):
    """What an assignor knows of a member: the existing topics that it subscribes to, and its present target."""

    instance_id: str | None
    topics: frozenset[uuid.UUID]
    target: Assignment


Members: TypeAlias = Mapping[str, AssignorMember]
PartitionCounts: TypeAlias = Mapping[uuid.UUID, int]
Assignor: TypeAlias = Callable[[Members, PartitionCounts], dict[str, Assignment]]


def assign_range(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """Ranges of consecutive partitions. The first members get one more; static members come first."""
    ordered = sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or "", m))
    assigned: dict[str, dict[uuid.UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, count in partition_counts.items():
        subscribers = [member_id for member_id in ordered if topic_id in members[member_id].topics]
        for member_id, row in zip(subscribers, ranges(count, len(subscribers)), strict=True):
            if row:
                assigned[member_id][topic_id] = frozenset(row)
    return dict(assigned)


def ranges(num_partitions: int, num_members: int) -> list[range]:
    """`num_partitions` in `num_members` rows, as even as can be, longer ones first."""
    if num_members == 0:
        return []
    size, extra = divmod(num_partitions, num_members)
    starts = [size * i + min(i, extra) for i in range(num_members + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def assign_uniform(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """Even, and with as few moves as possible."""
    if not members:
        return {}
    if len({member.topics for member in members.values()}) == 1:
        return _by_topic(_assign_alike(members, partition_counts))
    return _by_topic(_Balance(members, partition_counts).balanced())


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _assign_alike(members: Members, partition_counts: PartitionCounts) -> dict[str, list[Partition]]:
    """All subscribe to the same topics: members keep partitions up to their share, the rest fills the gaps."""
    free = {(topic_id, p) for topic_id in sorted(partition_counts) for p in range(partition_counts[topic_id])}
    share, extras = divmod(len(free), len(members))
    held: dict[str, list[Partition]] = {}
    for member_id in sorted(members):
        kept = [partition for partition in _partitions(members[member_id].target) if partition in free]
        allowed = share + (1 if len(kept) > share and extras > 0 else 0)
        extras -= allowed - share
        held[member_id] = kept[:allowed]
        free.difference_update(held[member_id])
    rest = deque(sorted(free))
    for member_id in sorted(held, key=lambda m: (len(held[m]), m)):
        allowed = share
        if extras > 0 and len(held[member_id]) <= share:
            allowed, extras = share + 1, extras - 1
        while len(held[member_id]) < allowed and rest:
            held[member_id].append(rest.popleft())
    return held


class _Balance:
    """Members with different subscriptions.

    Everybody starts with what it had; free partitions go to their least loaded subscriber. Then partitions move along
    chains (a gives one to b, b another to c) from a member to one that has at least two fewer, until there is no such
    chain. No assignment is more even than one without such a chain (Harvey et al., Semi-matchings, 2006).
    """

    def __init__(self, members: Members, partition_counts: PartitionCounts) -> None:
        self._members = members
        self._subscribers: dict[uuid.UUID, list[str]] = {
            topic_id: sorted(m for m in members if topic_id in members[m].topics) for topic_id in partition_counts
        }
        self._held: dict[str, dict[uuid.UUID, list[int]]] = {member_id: {} for member_id in members}
        self._load: dict[str, int] = dict.fromkeys(members, 0)
        self._counts = partition_counts

    def balanced(self) -> dict[str, list[Partition]]:
        """The partitions of each member."""
        self._place_free(self._keep())
        while self._improve_all():
            pass
        return {
            member_id: [(topic_id, number) for topic_id, numbers in topics.items() for number in numbers]
            for member_id, topics in self._held.items()
        }

    def _keep(self) -> set[Partition]:
        """Members keep what they have; returns the partitions that nobody has."""
        free = {(t, p) for t, subscribers in self._subscribers.items() if subscribers for p in range(self._counts[t])}
        for member_id in sorted(self._members):
            for topic_id, number in _partitions(self._members[member_id].target):
                if (topic_id, number) in free and topic_id in self._members[member_id].topics:
                    free.remove((topic_id, number))
                    self._give(member_id, topic_id, number)
        return free

    def _place_free(self, free: set[Partition]) -> None:
        """Topics with few subscribers first, since they have less choice."""
        for topic_id, number in sorted(free, key=lambda tp: (len(self._subscribers[tp[0]]), tp)):
            self._give(min(self._subscribers[topic_id], key=self._load.__getitem__), topic_id, number)

    def _give(self, member_id: str, topic_id: uuid.UUID, number: int) -> None:
        self._held[member_id].setdefault(topic_id, []).append(number)
        self._load[member_id] += 1

    def _take(self, member_id: str, topic_id: uuid.UUID) -> int:
        numbers = self._held[member_id][topic_id]
        number = numbers.pop()
        if not numbers:
            del self._held[member_id][topic_id]
        self._load[member_id] -= 1
        return number

    def _improve_all(self) -> bool:
        """Move partitions away from members with too many, the most loaded first."""
        improved = False
        for member_id in sorted(self._load, key=self._load.__getitem__, reverse=True):
            while chain := self._chain(member_id):
                improved = True
                for giver, topic_id, taker in chain:
                    self._give(taker, topic_id, self._take(giver, topic_id))
        return improved

    def _chain(self, source: str) -> list[tuple[str, uuid.UUID, str]]:
        """The shortest chain from `source` to a member with at least two fewer; empty if there is none."""
        goal = self._load[source] - 2
        came_from: dict[str, tuple[str, uuid.UUID]] = {}
        seen_members, seen_topics = {source}, set[uuid.UUID]()
        queue = deque([source])
        while queue:
            giver = queue.popleft()
            for topic_id in self._held[giver].keys() - seen_topics:
                seen_topics.add(topic_id)
                for taker in self._subscribers[topic_id]:
                    if taker in seen_members:
                        continue
                    seen_members.add(taker)
                    came_from[taker] = (giver, topic_id)
                    if self._load[taker] <= goal:
                        return _path(came_from, source, taker)
                    queue.append(taker)
        return []


def _path(came_from: Mapping[str, tuple[str, uuid.UUID]], source: str, target: str) -> list[tuple[str, uuid.UUID, str]]:
    """The moves from source to target, last one first, so that each giver gives before it takes."""
    moves = []
    while target != source:
        giver, topic_id = came_from[target]
        moves.append((giver, topic_id, target))
        target = giver
    return moves


def _partitions(assignment: Assignment) -> Iterable[Partition]:
    return ((topic_id, number) for topic_id in sorted(assignment) for number in sorted(assignment[topic_id]))


def _by_topic(held: Mapping[str, Iterable[Partition]]) -> dict[str, Assignment]:
    result: dict[str, Assignment] = {}
    for member_id, partitions in held.items():
        topics: dict[uuid.UUID, set[int]] = {}
        for topic_id, number in partitions:
            topics.setdefault(topic_id, set()).add(number)
        result[member_id] = {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}
    return result
