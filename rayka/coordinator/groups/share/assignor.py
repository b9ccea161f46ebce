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
Held: TypeAlias = dict[str, set[Partition]]


def assign_simple(
    subscriptions: Mapping[str, frozenset[uuid.UUID]], targets: Mapping[str, Assignment], partitions: Assignment
) -> dict[str, Assignment]:
    """The targets of all members. `subscriptions` and the earlier `targets` are by member id."""
    held: Held = {member_id: set() for member_id in sorted(subscriptions)}
    if len(set(subscriptions.values())) == 1:
        topics = next(iter(subscriptions.values()))
        _spread(held, targets, [(t, p) for t in sorted(topics) for p in sorted(partitions.get(t, ()))])
    else:
        for topic_id in sorted(partitions):
            members = [member_id for member_id in held if topic_id in subscriptions[member_id]]
            part: Held = {member_id: set() for member_id in sorted(members, key=lambda m: (len(held[m]), m))}
            _spread(part, targets, [(topic_id, number) for number in sorted(partitions[topic_id])])
            for member_id, more in part.items():
                held[member_id] |= more
    return {member_id: _by_topic(found) for member_id, found in held.items()}


def _spread(held: Held, targets: Mapping[str, Assignment], partitions: list[Partition]) -> None:
    """Give every partition to `sharing` members at most, and all members as many partitions, give or take one."""
    if not held or not partitions:
        return
    sharing = -(-len(held) // len(partitions))
    share, extras = divmod(len(partitions) * sharing, len(held))
    quotas = {member_id: share + (index < extras) for index, member_id in enumerate(held)}
    readers = dict.fromkeys(partitions, 0)
    for member_id, own in held.items():
        before = sorted((t, p) for t, numbers in targets.get(member_id, {}).items() for p in numbers)
        _take(own, readers, before, quotas[member_id], sharing)
    for member_id, own in held.items():
        _take(own, readers, sorted(partitions, key=readers.__getitem__), quotas[member_id], sharing)
    for partition in (one for one in partitions if readers[one] == 0):
        _take(held[min(held, key=lambda m: len(held[m]))], readers, [partition], len(partitions), sharing)


def _take(
    own: set[Partition], readers: dict[Partition, int], offered: Iterable[Partition], quota: int, most: int
) -> None:
    """Add partitions that have room for another member, up to the quota."""
    for partition in offered:
        if len(own) >= quota:
            return
        if partition not in own and readers.get(partition, most) < most:
            own.add(partition)
            readers[partition] += 1


def _by_topic(partitions: Iterable[Partition]) -> Assignment:
    found: dict[uuid.UUID, set[int]] = {}
    for topic_id, number in partitions:
        found.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}
