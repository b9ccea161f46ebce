"""The assignor of share groups, `simple` (KIP-932): every partition is read, and every member has something to read.

With at least as many partitions as members, each partition has one member. With more members, partitions have several,
as few as are needed for all members to have work. Members keep what they have as far as that allows. Members with
different subscriptions are assigned topic by topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from rayka.coordinator.groups.consumer.member import Assignment

SIMPLE = "simple"
Partition: TypeAlias = tuple[uuid.UUID, int]
AssignedPartitions: TypeAlias = dict[str, set[Partition]]


def assign_simple(
    subscriptions: Mapping[str, frozenset[uuid.UUID]], targets: Mapping[str, Assignment], partitions: Assignment
) -> dict[str, Assignment]:
    """The targets of all members. `subscriptions` and the earlier `targets` are by member id."""
    assigned: AssignedPartitions = {member_id: set() for member_id in sorted(subscriptions)}
    if len(set(subscriptions.values())) == 1:
        topics = next(iter(subscriptions.values()))
        _spread(assigned, targets, [(t, p) for t in sorted(topics) for p in sorted(partitions.get(t, ()))])
    else:
        for topic_id in sorted(partitions):
            members = [member_id for member_id in assigned if topic_id in subscriptions[member_id]]
            part: AssignedPartitions = {
                member_id: set() for member_id in sorted(members, key=lambda m: (len(assigned[m]), m))
            }
            _spread(part, targets, [(topic_id, number) for number in sorted(partitions[topic_id])])
            for member_id, more in part.items():
                assigned[member_id] |= more
    return {member_id: _by_topic(found) for member_id, found in assigned.items()}


def _spread(assigned: AssignedPartitions, targets: Mapping[str, Assignment], partitions: list[Partition]) -> None:
    """Give every partition to `sharing` members at most, and all members as many partitions, give or take one."""
    if not assigned or not partitions:
        return
    sharing = -(-len(assigned) // len(partitions))
    share, extras = divmod(len(partitions) * sharing, len(assigned))
    quotas = {member_id: share + (index < extras) for index, member_id in enumerate(assigned)}
    readers = dict.fromkeys(partitions, 0)
    for member_id, of_member in assigned.items():
        before = sorted((t, p) for t, numbers in targets.get(member_id, {}).items() for p in numbers)
        _take(of_member, readers, before, quotas[member_id], sharing)
    for member_id, of_member in assigned.items():
        _take(of_member, readers, sorted(partitions, key=readers.__getitem__), quotas[member_id], sharing)
    for partition in (one for one in partitions if readers[one] == 0):
        _take(assigned[min(assigned, key=lambda m: len(assigned[m]))], readers, [partition], len(partitions), sharing)


def _take(
    of_member: set[Partition], readers: dict[Partition, int], offered: Iterable[Partition], quota: int, most: int
) -> None:
    """Add partitions that have room for another member, up to the quota."""
    for partition in offered:
        if len(of_member) >= quota:
            return
        if partition not in of_member and readers.get(partition, most) < most:
            of_member.add(partition)
            readers[partition] += 1


def _by_topic(partitions: Iterable[Partition]) -> Assignment:
    found: dict[uuid.UUID, set[int]] = {}
    for topic_id, number in partitions:
        found.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}
