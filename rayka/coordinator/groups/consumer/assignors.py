"""The server-side assignors of consumer groups (KIP-848), which decide who reads which partitions.

`uniform` gives all members the same number of partitions, as far as subscriptions allow, and moves as few of them as
possible. `range` gives each member consecutive partitions of each topic, so that partitions of the same number of
different topics are read by the same member.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from rayka.coordinator.groups.consumer.member import Assignment

Partition: TypeAlias = tuple[uuid.UUID, int]
Subscription: TypeAlias = frozenset[uuid.UUID]


class AssignorMember(NamedTuple):
    """What an assignor knows of a member: the existing topics that it subscribes to, and its present target."""

    instance_id: str | None
    topics: Subscription
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
    assigned: dict[str, list[Partition]] = {}
    for member_id in sorted(members):
        kept = [partition for partition in _partitions(members[member_id].target) if partition in free]
        allowed = share + (1 if len(kept) > share and extras > 0 else 0)
        extras -= allowed - share
        assigned[member_id] = kept[:allowed]
        free.difference_update(assigned[member_id])
    rest = deque(sorted(free))
    for member_id in sorted(assigned, key=lambda m: (len(assigned[m]), m)):
        allowed = share
        if extras > 0 and len(assigned[member_id]) <= share:
            allowed, extras = share + 1, extras - 1
        while len(assigned[member_id]) < allowed and rest:
            assigned[member_id].append(rest.popleft())
    return assigned


class _DeadEnd(NamedTuple):
    """Topics and subscriptions from which no chain leads to a member with at least two fewer than `load`."""

    load: int
    topics: set[uuid.UUID]
    subscriptions: set[Subscription]


class _Balance:
    """Members with different subscriptions.

    Everybody starts with what it had; free partitions go to their least loaded subscriber. Then partitions move along
    chains (a gives one to b, b another to c) from a member to one that has at least two fewer, until there is no such
    chain. No assignment is more even than one without such a chain (Harvey et al., Semi-matchings, 2006).

    Members with the same subscription are examined together, since one may get what another may: of each subscription
    the least loaded member is known.
    """

    def __init__(self, members: Members, partition_counts: PartitionCounts) -> None:
        self._members = members
        self._counts = partition_counts
        self._alike: dict[Subscription, list[str]] = {}
        for member_id in sorted(members):
            self._alike.setdefault(members[member_id].topics, []).append(member_id)
        self._subscriptions: dict[uuid.UUID, list[Subscription]] = {topic_id: [] for topic_id in partition_counts}
        for topics in self._alike:
            for topic_id in topics:
                self._subscriptions[topic_id].append(topics)
        self._held: dict[str, dict[uuid.UUID, list[int]]] = {member_id: {} for member_id in members}
        self._load: dict[str, int] = dict.fromkeys(members, 0)
        self._by_load: dict[Subscription, list[tuple[int, str]]] = {topics: [] for topics in self._alike}
        self._dead_end = _DeadEnd(-1, set(), set())

    def balanced(self) -> dict[str, list[Partition]]:
        """The partitions of each member."""
        free = self._keep()
        for topics, member_ids in self._alike.items():
            self._by_load[topics] = sorted((self._load[member_id], member_id) for member_id in member_ids)
        self._place_free(free)
        while self._improve_all():
            pass
        return {
            member_id: [(topic_id, number) for topic_id, numbers in topics.items() for number in numbers]
            for member_id, topics in self._held.items()
        }

    def _keep(self) -> set[Partition]:
        """Members keep what they have; returns the partitions that nobody has."""
        free = {(t, p) for t, present in self._subscriptions.items() if present for p in range(self._counts[t])}
        for member_id in sorted(self._members):
            for topic_id, number in _partitions(self._members[member_id].target):
                if (topic_id, number) in free and topic_id in self._members[member_id].topics:
                    free.remove((topic_id, number))
                    self._held[member_id].setdefault(topic_id, []).append(number)
                    self._load[member_id] += 1
        return free

    def _place_free(self, free: set[Partition]) -> None:
        """Topics with few subscribers first, since they have less choice."""
        subscribers = {t: sum(len(self._alike[one]) for one in present) for t, present in self._subscriptions.items()}
        ordered = sorted(free, key=lambda tp: (subscribers[tp[0]], tp))
        for topic_id, partitions in itertools.groupby(ordered, key=operator.itemgetter(0)):
            least = [(*self._least_loaded(topics), topics) for topics in self._subscriptions[topic_id]]
            heapq.heapify(least)
            for _, number in partitions:
                _, member_id, topics = least[0]
                self._give(member_id, topic_id, number)
                heapq.heapreplace(least, (*self._least_loaded(topics), topics))

    def _least_loaded(self, topics: Subscription) -> tuple[int, str]:
        """The smallest load among the members of one subscription, and who has it. Entries of before are dropped."""
        by_load = self._by_load[topics]
        while by_load[0][0] != self._load[by_load[0][1]]:
            heapq.heappop(by_load)
        return by_load[0]

    def _give(self, member_id: str, topic_id: uuid.UUID, number: int) -> None:
        self._held[member_id].setdefault(topic_id, []).append(number)
        self._change_load(member_id, 1)

    def _take(self, member_id: str, topic_id: uuid.UUID) -> int:
        numbers = self._held[member_id][topic_id]
        number = numbers.pop()
        if not numbers:
            del self._held[member_id][topic_id]
        self._change_load(member_id, -1)
        return number

    def _change_load(self, member_id: str, change: int) -> None:
        load = self._load[member_id] = self._load[member_id] + change
        heapq.heappush(self._by_load[self._members[member_id].topics], (load, member_id))

    def _improve_all(self) -> bool:
        """Move partitions away from members with too many, the most loaded first."""
        improved = False
        self._dead_end = _DeadEnd(-1, set(), set())
        for member_id in sorted(self._load, key=self._load.__getitem__, reverse=True):
            while chain := self._chain(member_id):
                improved = True
                for giver, topic_id, taker in chain:
                    self._give(taker, topic_id, self._take(giver, topic_id))
        return improved

    def _chain(self, source: str) -> list[tuple[str, uuid.UUID, str]]:
        """The shortest chain from `source` to a member with at least two fewer; empty if there is none.

        A search that finds none leaves what it has seen as a dead end. Chains of sources with no higher a load do not
        touch it, so it stays one until a source with a higher load starts again.
        """
        load = self._load[source]
        if load > self._dead_end.load:
            self._dead_end = _DeadEnd(load, set(), set())
        closed, seen_topics, seen = self._dead_end, set[uuid.UUID](), set[Subscription]()
        came_from: dict[str, tuple[str, uuid.UUID]] = {}
        queue = deque([source])
        while queue:
            giver = queue.popleft()
            for topic_id in self._held[giver].keys() - seen_topics - closed.topics:
                seen_topics.add(topic_id)
                for topics in self._subscriptions[topic_id]:
                    if topics in seen or topics in closed.subscriptions:
                        continue
                    seen.add(topics)
                    least, taker = self._least_loaded(topics)
                    if least <= load - 2:
                        came_from[taker] = (giver, topic_id)
                        return _path(came_from, source, taker)
                    reached = [member_id for member_id in self._alike[topics] if member_id != source]
                    came_from.update(dict.fromkeys(reached, (giver, topic_id)))
                    queue.extend(reached)
        closed.topics.update(seen_topics)
        closed.subscriptions.update(seen)
        self._dead_end = closed._replace(load=load)
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


def _by_topic(assigned: Mapping[str, Iterable[Partition]]) -> dict[str, Assignment]:
    result: dict[str, Assignment] = {}
    for member_id, partitions in assigned.items():
        topics: dict[uuid.UUID, set[int]] = {}
        for topic_id, number in partitions:
            topics.setdefault(topic_id, set()).add(number)
        result[member_id] = {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}
    return result
