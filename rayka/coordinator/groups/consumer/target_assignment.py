"""The target assignment of a consumer group: computed by an assignor, kept as what changed."""

from __future__ import annotations

from collections.abc import Iterator

from rayka.coordinator.groups.consumer.assignors import ASSIGNORS, AssignorMember
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.member import Assignment, ConsumerMember
from rayka.coordinator.groups.records import Record
from rayka.coordinator.topics import Topics


def is_due(group: ConsumerGroup, interval_ms: int, now_ms: int) -> bool:
    """Whether the target may be computed again: not more often than every `interval_ms` (KIP-1263)."""
    last_ms = group.assignment_timestamp_ms
    return last_ms == 0 or interval_ms == 0 or has_passed(interval_ms, last_ms, now_ms)


def has_passed(interval_ms: int, since_ms: int, now_ms: int) -> bool:
    """Whether so much wall time has gone by. If the clock was set back, nobody waits until it is there again."""
    return not since_ms <= now_ms < since_ms + interval_ms


def target_records(group: ConsumerGroup, assignor: str, topics: Topics, now_ms: int) -> Iterator[Record]:
    """The targets that change, and the epoch that the target is of now."""
    for member_id, target in compute_targets(group, assignor, topics).items():
        if group.targets.get(member_id) != target:
            yield group.target_record(member_id, target)
    yield group.target_epoch_record(group.epoch, now_ms)


def compute_targets(group: ConsumerGroup, assignor: str, topics: Topics) -> dict[str, Assignment]:
    """Everybody's target, from what they subscribe to and what their targets were."""
    members = {member_id: _as_assigned(group, member, topics) for member_id, member in group.members.items()}
    topic_ids = frozenset().union(*(member.topics for member in members.values()))
    return ASSIGNORS[assignor](members, topics.partition_counts(sorted(topic_ids)))


def _as_assigned(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> AssignorMember:
    subscribed = topics.ids_of(group.topics_of(member))
    return AssignorMember(member.instance_id, subscribed, group.targets.get(member.member_id, {}))
