"""The changes that one command makes to a draft of a consumer group. Each record is applied before the next is made."""

from __future__ import annotations

from collections.abc import Iterable

from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.member import Assignment, ConsumerMember
from rayka.coordinator.groups.consumer.reconciliation import Reconciliation
from rayka.coordinator.groups.consumer.target_assignment import is_due, target_records
from rayka.coordinator.groups.records import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    CoordinatorRecord,
)
from rayka.coordinator.topics import Topics, compile_pattern


class ConsumerGroupUpdate:
    """The operations of which commands consist. `records` are their outcome."""

    def __init__(self, draft: ConsumerGroup, topics: Topics, assignors: tuple[str, ...], now_ms: int) -> None:
        self.group = draft
        self.topics = topics
        self.records: list[CoordinatorRecord] = []
        self._default_assignor = assignors[0]
        self._now_ms = now_ms
        self._assignor_before = draft.preferred_assignor(self._default_assignor)

    def add(self, record: CoordinatorRecord) -> None:
        """Make one record."""
        self.group.apply(record)
        self.records.append(record)

    def extend(self, records: Iterable[CoordinatorRecord]) -> None:
        """Make several records."""
        for record in list(records):
            self.add(record)

    def update(self, member: ConsumerMember) -> bool:
        """Store what a member reported of itself; True if its subscription has changed."""
        before = self.group.members.get(member.member_id)
        record = member.metadata_record(self.group.group_id)
        if before is not None and before.metadata_record(self.group.group_id) == record:
            return False
        self.add(record)
        old = before or ConsumerMember(member.member_id)
        changed_regex = (old.subscribed_topic_regex or "") != (member.subscribed_topic_regex or "")
        if changed_regex and member.subscribed_topic_regex:
            compile_pattern(member.subscribed_topic_regex)
        return changed_regex or old.subscribed_topic_names != member.subscribed_topic_names

    def replace(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """Replace a static member's old id by its new one, which keeps the assignment."""
        target = self.group.targets.get(old.member_id, {})
        self.extend(self.group.member_tombstones(old.member_id))
        self.add(new.metadata_record(self.group.group_id))
        self.add(self.group.target_record(new.member_id, target))
        self.add(new.current_record(self.group.group_id))

    def remove(self, member_ids: Iterable[str]) -> None:
        """Remove members and the patterns that only they subscribed to; the others share what they had."""
        for member_id in member_ids:
            self.extend(self.group.member_tombstones(member_id))
        self._resolve_regexes()
        self._bump()
        if self.group.is_empty:
            self.add(self.group.target_epoch_record(self.group.epoch, 0))

    def _resolve_regexes(self) -> None:
        """Find the topics of all patterns; of new ones only, if the topics are those of the last time."""
        subscribed = self.group.subscribed_regexes()
        for pattern in self.group.regexes.keys() - subscribed:
            self.add(CoordinatorRecord(ConsumerGroupRegularExpressionKey(self.group.group_id, pattern)))
        for pattern in sorted(subscribed):
            resolved = self.group.regexes.get(pattern)
            if resolved is not None and self._is_checked:
                continue
            topics = self.topics.matching(pattern)
            if resolved is None or resolved.topics != topics:
                value = ConsumerGroupRegularExpressionValue(tuple(sorted(topics)), self.topics.version, self._now_ms)
                self.add(CoordinatorRecord(ConsumerGroupRegularExpressionKey(self.group.group_id, pattern), value))

    @property
    def _is_checked(self) -> bool:
        """Whether the group was compared with these topics before."""
        return self.group.checked_version == self.topics.version

    def follow_topics(self, subscription_changed: bool) -> None:
        """Begin a new group epoch if subscriptions, their topics or the preferred assignor have changed.

        Most heartbeats change nothing, and then nothing here depends on the size of the group.
        """
        assignor = self.group.preferred_assignor(self._default_assignor)
        has_changed = subscription_changed or self.group.epoch == 0 or assignor != self._assignor_before
        if self._is_checked and not has_changed:
            return
        self._resolve_regexes()
        if has_changed or not self.group.is_in_step_with(self.topics):
            self._bump()

    def _bump(self) -> None:
        """Begin a new group epoch."""
        metadata_hash = self.topics.group_hash(self.group.subscribed_topics())
        self.add(self.group.epoch_record(self.group.epoch + 1, metadata_hash))
        if self.group.has_partition_metadata:
            self.add(CoordinatorRecord(ConsumerGroupPartitionMetadataKey(self.group.group_id)))

    def assign(self, interval_ms: int) -> None:
        """Compute the target of the group epoch, unless the last one was computed less than `interval_ms` ago."""
        if self.group.epoch > self.group.assignment_epoch and is_due(self.group, interval_ms, self._now_ms):
            assignor = self.group.preferred_assignor(self._default_assignor)
            self.extend(target_records(self.group, assignor, self.topics, self._now_ms))

    def reconcile(self, member_id: str, owned: Assignment | None) -> ConsumerMember:
        """Move a member one step towards its target."""
        member = self.group.members[member_id]
        target = self.group.targets.get(member_id, {})
        moved = Reconciliation(self.group, target, owned, self.topics).step(member)
        if moved != member:
            self.add(moved.current_record(self.group.group_id))
        return moved
