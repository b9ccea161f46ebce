"""A share group (KIP-932): all of it is durable, and changes only by applying records.

The group epoch counts the changes that need a new assignment, as in a consumer group. Members take over their targets
at once, since a share-partition may have several readers. Only share-partitions that have state at their share
coordinators are assigned: `initializing` are on their way there, `initialized` are there, `deleting` are on their way
out. As in consumer groups, a command works on a draft and applies its records to it as it makes them.
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from typing import NamedTuple

from rayka.coordinator.groups.consumer.member import Assignment, assignment_of, topic_partitions
from rayka.coordinator.groups.records import (
    CoordinatorRecord,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicInfo,
    TopicPartitionsInfo,
)
from rayka.coordinator.groups.share.member import ShareMember
from rayka.coordinator.overlay import Overlay
from rayka.coordinator.topics import Topics

PROTOCOL_TYPE = "share"


class ShareGroupState(enum.Enum):
    """The state of a share group, as ShareGroupDescribe spells it."""

    EMPTY = "Empty"
    STABLE = "Stable"


class TopicState(NamedTuple):
    """Share-partitions of one topic."""

    topic_name: str
    partitions: frozenset[int]


TopicStates = Mapping[uuid.UUID, TopicState]


class ShareGroup:
    """One group, or a draft of it."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0
        self.members: MutableMapping[str, ShareMember] = {}
        self.targets: MutableMapping[str, Assignment] = {}
        self.initializing: TopicStates = {}
        self.initialized: TopicStates = {}
        self.deleting: Mapping[uuid.UUID, str] = {}
        self._names: MutableMapping[str, int] = {}
        self.checked_version = -1
        """Soft: the metadata version that the group's epoch is known to agree with."""
        self.initializing_since_ms = 0
        """Soft: when the initialization under way began, in `Now.ms`; 0 if this coordinator did not begin it."""
        self.deleting_since_ms = 0
        """Soft: when the last deletion of state began, as `initializing_since_ms`."""

    def draft(self) -> ShareGroup:
        """The group with changes of its own."""
        draft = ShareGroup.__new__(ShareGroup)
        overlays = {
            name: Overlay(value) for name, value in vars(self).items() if name in ("members", "targets", "_names")
        }
        vars(draft).update(vars(self) | overlays)
        return draft

    def durable(self) -> dict[str, object]:
        """All state that must outlive a crash, for comparison."""
        soft = ("checked_version", "initializing_since_ms", "deleting_since_ms")
        return {name: value for name, value in vars(self).items() if name not in soft}

    @property
    def state(self) -> ShareGroupState:
        """The state of the group as a whole."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in the group."""
        return not self.members

    @property
    def is_unused(self) -> bool:
        """A share group stays until it is deleted: its state is not subject to the retention of offsets."""
        return False

    @property
    def protocol_type(self) -> str:
        """The protocol type, which is that of share consumers."""
        return PROTOCOL_TYPE

    def subscribed_topics(self) -> frozenset[str]:
        """The names of the topics that anybody in the group subscribes to."""
        return frozenset(self._names)

    def assignable(self, topics: Topics) -> Assignment:
        """The share-partitions that may be assigned: those of subscribed topics that have state."""
        return {
            topic_id: state.partitions
            for topic_id, state in self.initialized.items()
            if state.topic_name in self._names and topic_id in topics.by_id
        }

    def is_assignment_pending(self, topics: Topics) -> bool:
        """Whether share-partitions have got state since the target assignment was computed."""
        if self.is_empty:
            return False
        assigned: dict[uuid.UUID, set[int]] = {}
        for target in self.targets.values():
            for topic_id, numbers in target.items():
                assigned.setdefault(topic_id, set()).update(numbers)
        return any(numbers - assigned.get(topic_id, set()) for topic_id, numbers in self.assignable(topics).items())

    def missing(self, topics: Topics) -> dict[uuid.UUID, TopicState]:
        """The share-partitions of subscribed topics that have no state, and are not getting any."""
        found = {}
        for topic in (topics.by_name[name] for name in sorted(self._names) if name in topics.by_name):
            known = self._known(topic.topic_id)
            numbers = frozenset(range(topic.num_partitions)) - known
            if numbers:
                found[topic.topic_id] = TopicState(topic.name, numbers)
        return found

    def _known(self, topic_id: uuid.UUID) -> frozenset[int]:
        states = (self.initializing.get(topic_id), self.initialized.get(topic_id))
        return frozenset().union(*(state.partitions for state in states if state is not None))

    def apply(self, record: CoordinatorRecord) -> None:
        """Change the group as a record says. What a tombstone removes may be gone already."""
        match record.key:
            case ShareGroupMetadataKey():
                value: ShareGroupMetadataValue = record.value or ShareGroupMetadataValue(0)
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ShareGroupMemberMetadataKey(_, member_id):
                self._apply_member(member_id, record.value)
            case ShareGroupTargetAssignmentMetadataKey():
                target_epoch: ShareGroupTargetAssignmentMetadataValue | None = record.value
                self.assignment_epoch = 0 if target_epoch is None else target_epoch.assignment_epoch
                self.assignment_timestamp_ms = 0 if target_epoch is None else target_epoch.assignment_timestamp
            case ShareGroupTargetAssignmentMemberKey(_, member_id):
                self._apply_target(member_id, record.value)
            case ShareGroupCurrentMemberAssignmentKey(_, member_id):
                self._apply_current(member_id, record.value)
            case ShareGroupStatePartitionMetadataKey():
                self._apply_states(record.value or ShareGroupStatePartitionMetadataValue())

    def _apply_member(self, member_id: str, value: ShareGroupMemberMetadataValue | None) -> None:
        before = self.members.get(member_id)
        if before is not None:
            self._count(before, -1)
        if value is None:
            self.members.pop(member_id, None)
            return
        member = (before or ShareMember(member_id)).with_metadata(value)
        self.members[member_id] = member
        self._count(member, 1)

    def _count(self, member: ShareMember, change: int) -> None:
        for name in member.subscribed_topic_names:
            count = self._names.get(name, 0) + change
            if count:
                self._names[name] = count
            else:
                del self._names[name]

    def _apply_target(self, member_id: str, value: ShareGroupTargetAssignmentMemberValue | None) -> None:
        if value is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = assignment_of(value.topic_partitions)

    def _apply_current(self, member_id: str, value: ShareGroupCurrentMemberAssignmentValue | None) -> None:
        """A tombstone comes just before that of the whole member."""
        if value is not None:
            self.members[member_id] = (self.members.get(member_id) or ShareMember(member_id)).with_current(value)

    def _apply_states(self, value: ShareGroupStatePartitionMetadataValue) -> None:
        self.initializing = _states(value.initializing_topics)
        self.initialized = _states(value.initialized_topics)
        self.deleting = {topic.topic_id: topic.topic_name for topic in value.deleting_topics}

    def epoch_record(self, epoch: int, metadata_hash: int) -> CoordinatorRecord:
        """The record of a new group epoch."""
        return CoordinatorRecord(ShareGroupMetadataKey(self.group_id), ShareGroupMetadataValue(epoch, metadata_hash))

    def target_epoch_record(self, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
        """The record of the group epoch that the target assignment belongs to."""
        value = ShareGroupTargetAssignmentMetadataValue(epoch, timestamp_ms)
        return CoordinatorRecord(ShareGroupTargetAssignmentMetadataKey(self.group_id), value)

    def target_record(self, member_id: str, target: Assignment) -> CoordinatorRecord:
        """The record of a member's target."""
        value = ShareGroupTargetAssignmentMemberValue(topic_partitions(target))
        return CoordinatorRecord(ShareGroupTargetAssignmentMemberKey(self.group_id, member_id), value)

    def states_record(
        self, initializing: TopicStates, initialized: TopicStates, deleting: Mapping[uuid.UUID, str]
    ) -> CoordinatorRecord:
        """The record of which share-partitions have state; a tombstone if none has."""
        value = ShareGroupStatePartitionMetadataValue(
            _persisted(initializing),
            _persisted(initialized),
            tuple(TopicInfo(topic_id, deleting[topic_id]) for topic_id in sorted(deleting)),
        )
        return CoordinatorRecord(ShareGroupStatePartitionMetadataKey(self.group_id), value)

    def member_tombstones(self, member_id: str) -> Iterator[CoordinatorRecord]:
        """Remove a member."""
        yield CoordinatorRecord(ShareGroupCurrentMemberAssignmentKey(self.group_id, member_id))
        yield CoordinatorRecord(ShareGroupTargetAssignmentMemberKey(self.group_id, member_id))
        yield CoordinatorRecord(ShareGroupMemberMetadataKey(self.group_id, member_id))

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        """Remove the whole group."""
        for member_id in {*self.members, *self.targets}:
            yield from self.member_tombstones(member_id)
        yield CoordinatorRecord(ShareGroupTargetAssignmentMetadataKey(self.group_id))
        yield CoordinatorRecord(ShareGroupStatePartitionMetadataKey(self.group_id))
        yield CoordinatorRecord(ShareGroupMetadataKey(self.group_id))

    def validate_state(self) -> None:
        """Check what must always hold. Raises AssertionError."""
        assert all(member.member_epoch <= self.epoch for member in self.members.values())
        assert self.assignment_epoch <= self.epoch
        names = Counter(name for member in self.members.values() for name in member.subscribed_topic_names)
        assert self._names == names


def _states(topics: tuple[TopicPartitionsInfo, ...]) -> TopicStates:
    return {topic.topic_id: TopicState(topic.topic_name, frozenset(topic.partitions)) for topic in topics}


def _persisted(states: TopicStates) -> tuple[TopicPartitionsInfo, ...]:
    return tuple(
        TopicPartitionsInfo(topic_id, states[topic_id].topic_name, tuple(sorted(states[topic_id].partitions)))
        for topic_id in sorted(states)
        if states[topic_id].partitions
    )


def merged(states: TopicStates, more: TopicStates) -> dict[uuid.UUID, TopicState]:
    """The share-partitions of both."""
    result = dict(states)
    for topic_id, state in more.items():
        before = result.get(topic_id)
        known = frozenset() if before is None else before.partitions
        result[topic_id] = TopicState(state.topic_name, known | state.partitions)
    return result


def without(states: TopicStates, less: Assignment) -> dict[uuid.UUID, TopicState]:
    """The share-partitions that are not among `less`."""
    rest = {t: TopicState(s.topic_name, s.partitions - less.get(t, frozenset())) for t, s in states.items()}
    return {topic_id: state for topic_id, state in rest.items() if state.partitions}


def partitions_of(states: TopicStates) -> Assignment:
    """Share-partitions without the names of their topics."""
    return {topic_id: state.partitions for topic_id, state in states.items()}
