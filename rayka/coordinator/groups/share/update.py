"""The changes that one command makes to a draft of a share group. Each record is applied before the next is made."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace

from rayka.coordinator.groups.consumer.member import Assignment
from rayka.coordinator.groups.consumer.target_assignment import has_passed
from rayka.coordinator.groups.records import CoordinatorRecord
from rayka.coordinator.groups.share.assignor import assign_simple
from rayka.coordinator.groups.share.group import ShareGroup, TopicState, TopicStates, merged, without
from rayka.coordinator.groups.share.member import ShareMember
from rayka.coordinator.groups.share.requests import SharePartitionToInitialize
from rayka.coordinator.topics import Topics

# A share-partition of a topic that the group knows is new: all of its records came after the group.
_FROM_THE_BEGINNING = 0
_BY_RESET_STRATEGY = -1
_EPOCHS_OF_A_GROUP = 1009
_FIRST_EPOCHS = 1 << 23


class ShareGroupUpdate:
    """The operations of which commands consist. `records` are their outcome."""

    def __init__(self, draft: ShareGroup, topics: Topics, now_ms: int) -> None:
        self.group = draft
        self.records: list[CoordinatorRecord] = []
        self._topics = topics
        self._now_ms = now_ms

    def add(self, record: CoordinatorRecord) -> None:
        """Make one record."""
        self.group.apply(record)
        self.records.append(record)

    def update(self, member: ShareMember) -> bool:
        """Store what a member reported of itself; True if its subscription has changed."""
        before = self.group.members.get(member.member_id)
        record = member.metadata_record(self.group.group_id)
        if before is not None and before.metadata_record(self.group.group_id) == record:
            return False
        self.add(record)
        return before is None or before.subscribed_topic_names != member.subscribed_topic_names

    def remove(self, member_id: str) -> None:
        """Remove a member; the others share what it had."""
        for record in list(self.group.member_tombstones(member_id)):
            self.add(record)
        self.bump()
        if self.group.is_empty:
            self.add(self.group.target_epoch_record(self.group.epoch, 0))

    def follow_topics(self, subscription_changed: bool) -> None:
        """Begin a new group epoch if subscriptions or their topics have changed, or share-partitions have got state."""
        is_checked = self.group.checked_version == self._topics.version and self.group.epoch > 0
        is_changed = subscription_changed or (not is_checked and self._topics_changed())
        is_settled = self.group.epoch == self.group.assignment_epoch
        if is_changed or (is_settled and self.group.is_assignment_pending(self._topics)):
            self.bump()

    def _topics_changed(self) -> bool:
        return self.group.metadata_hash != self._topics.group_hash(self.group.subscribed_topics())

    def bump(self) -> None:
        """Begin a new group epoch.

        The group epoch is the state epoch of the share-partitions that are initialized in it. So no two groups of one
        name may have the same: a leader that still has the state of a deleted group must be fenced.
        """
        metadata_hash = self._topics.group_hash(self.group.subscribed_topics())
        epoch = self.group.epoch + 1 if self.group.epoch else self._first_epoch()
        self.add(self.group.epoch_record(epoch, metadata_hash))

    def _first_epoch(self) -> int:
        """Another one in each millisecond, and far from those of the milliseconds around it.

        All epochs must stay below 2^24: librdkafka 2.16 takes a member id to end at the next zero byte, which is the
        first one of the epoch that follows it.
        """
        return 1 + self._now_ms * _EPOCHS_OF_A_GROUP % _FIRST_EPOCHS

    def assign(self, interval_ms: int) -> None:
        """Compute the target of the group epoch, unless the last one was computed less than `interval_ms` ago.

        Share-partitions that have just got state are not kept waiting.
        """
        group = self.group
        if group.epoch <= group.assignment_epoch:
            return
        since_ms = group.assignment_timestamp_ms
        is_due = since_ms == 0 or has_passed(interval_ms, since_ms, self._now_ms)
        if is_due or group.is_assignment_pending(self._topics):
            self._assign()

    def _assign(self) -> None:
        group = self.group
        subscriptions = {m.member_id: self._topics.ids_of(m.subscribed_topic_names) for m in group.members.values()}
        for member_id, target in assign_simple(subscriptions, group.targets, group.assignable(self._topics)).items():
            if member_id not in group.targets or group.targets[member_id] != target:
                self.add(group.target_record(member_id, target))
        self.add(group.target_epoch_record(group.epoch, self._now_ms))

    def reconcile(self, member_id: str) -> ShareMember:
        """Give a member its target, except for topics that it no longer subscribes to."""
        member = self.group.members[member_id]
        subscribed = self._topics.ids_of(member.subscribed_topic_names)
        moved = member
        if member.member_epoch != self.group.assignment_epoch:
            target = self.group.targets.get(member_id, {})
            moved = replace(
                member,
                member_epoch=self.group.assignment_epoch,
                previous_member_epoch=member.member_epoch,
                assigned=_restricted(target, subscribed),
            )
        elif not member.assigned.keys() <= subscribed:
            moved = replace(member, assigned=_restricted(member.assigned, subscribed))
        if moved != member:
            self.add(moved.current_record(self.group.group_id))
        return moved

    def initialize(self, is_retry_due: bool, is_deletion_over: bool) -> tuple[SharePartitionToInitialize, ...]:
        """The share-partitions that are to get state now: new ones, and those that nobody has reported in time.

        Where state is being deleted they wait for that: a deletion that comes later would take the new state.
        """
        missing = self.group.missing(self._topics)
        if not is_deletion_over:
            missing = {t: state for t, state in missing.items() if t not in self.group.deleting}
        if missing:
            self.states(initializing=merged(self.group.initializing, missing))
        return tuple(
            SharePartitionToInitialize(topic_id, number, self._start_offset(topic_id))
            for topic_id, state in (self.group.initializing if is_retry_due else missing).items()
            for number in sorted(state.partitions)
        )

    def _start_offset(self, topic_id: uuid.UUID) -> int:
        return _FROM_THE_BEGINNING if topic_id in self.group.initialized else _BY_RESET_STRATEGY

    def initialized(self, partitions: Assignment) -> None:
        """Share-partitions have got state. Of topics that are gone by now it is not stored."""
        got = {
            topic_id: TopicState(self._topics.by_id[topic_id].name, numbers)
            for topic_id, numbers in partitions.items()
            if topic_id in self._topics.by_id
        }
        self.states(
            initializing=without(self.group.initializing, partitions),
            initialized=merged(self.group.initialized, got),
            deleting={t: name for t, name in self.group.deleting.items() if t not in got},
        )

    def not_initialized(self, partitions: Assignment) -> None:
        """Share-partitions could not get state; the next heartbeat tries again."""
        self.states(initializing=without(self.group.initializing, partitions))

    def forget_topics(self, topic_ids: Collection[uuid.UUID]) -> None:
        """Topics are gone, or their share-partitions are deleted."""
        group = self.group
        self.states(
            initializing={t: state for t, state in group.initializing.items() if t not in topic_ids},
            initialized={t: state for t, state in group.initialized.items() if t not in topic_ids},
            deleting={t: name for t, name in group.deleting.items() if t not in topic_ids},
        )

    def states(
        self,
        initializing: TopicStates | None = None,
        initialized: TopicStates | None = None,
        deleting: Mapping[uuid.UUID, str] | None = None,
    ) -> None:
        """Store which share-partitions have state; None leaves as it is."""
        group = self.group
        before = (group.initializing, group.initialized, group.deleting)
        after = (
            group.initializing if initializing is None else initializing,
            group.initialized if initialized is None else initialized,
            group.deleting if deleting is None else deleting,
        )
        if after != before:
            self.add(group.states_record(*after))


def _restricted(assignment: Assignment, topic_ids: frozenset[uuid.UUID]) -> Assignment:
    return {topic_id: numbers for topic_id, numbers in assignment.items() if topic_id in topic_ids}
