"""The target assignment of a consumer group: an assignor computes it, and only what has changed is stored."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from rayka.coordinator.groups.consumer.assignors import ASSIGNORS, AssignorMember
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.member import Assignment
from rayka.coordinator.groups.records import CoordinatorRecord
from rayka.coordinator.topics import Topics


def is_due(group: ConsumerGroup, interval_ms: int, now_ms: int) -> bool:
    """Whether the target may be computed again: not more often than every `interval_ms` (KIP-1263)."""
    last_ms = group.assignment_timestamp_ms
    return last_ms == 0 or interval_ms == 0 or has_passed(interval_ms, last_ms, now_ms)


def has_passed(interval_ms: int, since_ms: int, now_ms: int) -> bool:
    """Whether `interval_ms` of wall time have passed. A clock that was set back counts as passed."""
    return not since_ms <= now_ms < since_ms + interval_ms


def target_records(group: ConsumerGroup, assignor: str, topics: Topics, now_ms: int) -> Iterator[CoordinatorRecord]:
    """The targets that change, and the new epoch of the target assignment."""
    for member_id, target in compute_targets(group, assignor, topics).items():
        if group.targets.get(member_id) != target:
            yield group.target_record(member_id, target)
    yield group.target_epoch_record(group.epoch, now_ms)


def compute_targets(group: ConsumerGroup, assignor: str, topics: Topics) -> dict[str, Assignment]:
    """The targets of all members, from their subscriptions and from what their targets were."""
    subscriptions: dict[frozenset[str], frozenset[uuid.UUID]] = {}
    members = {}
    for member_id, member in group.members.items():
        names = group.topics_of(member)
        if names not in subscriptions:
            subscriptions[names] = topics.ids_of(names)
        members[member_id] = AssignorMember(member.instance_id, subscriptions[names], group.targets.get(member_id, {}))
    topic_ids = frozenset().union(*subscriptions.values())
    return ASSIGNORS[assignor](members, topics.partition_counts(sorted(topic_ids)))
