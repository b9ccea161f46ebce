"""Changes of a consumer group, made on a draft: records as they come, each applied before the next is made."""

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
    Record,
)
from rayka.coordinator.topics import Topics, compile_pattern


class ConsumerChanges:
    """The steps of which commands are made. `records` is what they came to."""

    def __init__(self, draft: ConsumerGroup, topics: Topics, assignors: tuple[str, ...], now_ms: int) -> None:
        self.group = draft
        self.topics = topics
        self.records: list[Record] = []
        self._default_assignor = assignors[0]
        self._now_ms = now_ms
        self._assignor_before = draft.preferred_assignor(self._default_assignor)

    def add(self, record: Record) -> None:
        """Makes one record."""
        self.group.apply(record)
        self.records.append(record)

    def extend(self, records: Iterable[Record]) -> None:
        """Makes several records."""
        for record in list(records):
            self.add(record)

    def update(self, member: ConsumerMember) -> bool:
        """Takes in what a member told of itself; True if it subscribes to other names or to another pattern."""
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
        """Puts a static member's new id in the place of its old one, with all that it had."""
        target = self.group.targets.get(old.member_id, {})
        self.extend(self.group.member_tombstones(old.member_id))
        self.add(new.metadata_record(self.group.group_id))
        self.add(self.group.target_record(new.member_id, target))
        self.add(new.current_record(self.group.group_id))

    def remove(self, member_ids: Iterable[str]) -> None:
        """Takes members out, and what only they subscribed to; the rest will share what they had."""
        for member_id in member_ids:
            self.extend(self.group.member_tombstones(member_id))
        self.resolve_regexes()
        self.bump()
        if self.group.is_empty:
            self.add(self.group.target_epoch_record(self.group.epoch, 0))

    def resolve_regexes(self) -> None:
        """Brings the topics of all patterns up to date."""
        subscribed = self.group.subscribed_regexes()
        for pattern in self.group.regexes.keys() - subscribed:
            self.add(Record(ConsumerGroupRegularExpressionKey(self.group.group_id, pattern)))
        for pattern in sorted(subscribed):
            topics = self.topics.matching(pattern)
            resolved = self.group.regexes.get(pattern)
            if resolved is None or resolved.topics != topics:
                value = ConsumerGroupRegularExpressionValue(tuple(sorted(topics)), self.topics.version, self._now_ms)
                self.add(Record(ConsumerGroupRegularExpressionKey(self.group.group_id, pattern), value))

    def follow_topics(self, subscription_changed: bool) -> None:
        """Begins a new group epoch if subscriptions, their topics or the preferred assignor are not what they were."""
        self.resolve_regexes()
        assignor = self.group.preferred_assignor(self._default_assignor)
        if (
            subscription_changed
            or self.group.epoch == 0
            or assignor != self._assignor_before
            or not self.group.is_in_step_with(self.topics)
        ):
            self.bump()

    def bump(self) -> None:
        """Begins a new group epoch."""
        metadata_hash = self.topics.group_hash(self.group.subscribed_topics())
        self.add(self.group.epoch_record(self.group.epoch + 1, metadata_hash))
        if self.group.has_partition_metadata:
            self.add(Record(ConsumerGroupPartitionMetadataKey(self.group.group_id)))

    def assign(self, interval_ms: int) -> None:
        """Computes the target of the group epoch, unless the last one was computed just now."""
        if self.group.epoch > self.group.assignment_epoch and is_due(self.group, interval_ms, self._now_ms):
            assignor = self.group.preferred_assignor(self._default_assignor)
            self.extend(target_records(self.group, assignor, self.topics, self._now_ms))

    def reconcile(self, member_id: str, owned: Assignment | None) -> ConsumerMember:
        """Takes a member one step on."""
        member = self.group.members[member_id]
        target = self.group.targets.get(member_id, {})
        moved = Reconciliation(self.group, target, owned, self.topics).step(member)
        if moved != member:
            self.add(moved.current_record(self.group.group_id))
        return moved
