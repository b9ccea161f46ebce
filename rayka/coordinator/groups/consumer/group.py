"""A consumer group (KIP-848): all of it is durable, and changes only by applying records.

Theory of operation. The group epoch counts the changes that need a new assignment: of members, of subscriptions, of
topics. The target assignment says for its epoch which member is to have which partitions. Each member moves to its
target by itself (`reconciliation.py`): it revokes what is no longer its own, reports that, moves to the target's epoch
and gets what the others have revoked. A partition has one owner at every moment, `owners`.

A command works on a draft, to which it applies its records as it makes them, so that each step sees the one before.
The draft keeps its changes beside the group (`Overlay`), so that making one costs the same for a group of any size. The
group itself follows when the records are in the log.
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, MutableMapping
from typing import NamedTuple, TypeVar

from rayka.coordinator.groups.consumer import protocol as consumer_protocol
from rayka.coordinator.groups.consumer.member import (
    LEAVE_EPOCH,
    Assignment,
    ConsumerMember,
    assignment_of,
    topic_partitions,
)
from rayka.coordinator.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
)
from rayka.coordinator.overlay import Overlay
from rayka.coordinator.topics import Topics

T = TypeVar("T")


class ConsumerGroupState(enum.Enum):
    """The state of a consumer group, as ConsumerGroupDescribe spells it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ResolvedRegex(NamedTuple):
    """The topics that match a pattern, in the metadata of `version`."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """One group, or a draft of it."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.has_partition_metadata = False
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0
        self.members: MutableMapping[str, ConsumerMember] = {}
        self.static_members: MutableMapping[str, str] = {}
        self.targets: MutableMapping[str, Assignment] = {}
        self.regexes: MutableMapping[str, ResolvedRegex] = {}
        self.owners: MutableMapping[tuple[uuid.UUID, int], str] = {}
        self._names: MutableMapping[str, int] = {}
        self._patterns: MutableMapping[str, int] = {}
        self._assignors: MutableMapping[str, int] = {}
        self._classic_members = 0
        self._classic_protocols: MutableMapping[str, int] = {}
        self.checked_version = -1
        """Soft: the metadata version that the group's patterns and epoch are known to agree with."""

    def draft(self) -> ConsumerGroup:
        """The group with changes of its own."""
        draft = ConsumerGroup.__new__(ConsumerGroup)
        overlays = {n: Overlay(value) for n, value in vars(self).items() if isinstance(value, MutableMapping)}
        vars(draft).update(vars(self) | overlays)
        return draft

    def durable(self) -> dict[str, object]:
        """All state that must outlive a crash, for comparison."""
        return {name: value for name, value in vars(self).items() if name != "checked_version"}

    @property
    def state(self) -> ConsumerGroupState:
        """The state of the group as a whole."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in the group."""
        return not self.members

    @property
    def is_unused(self) -> bool:
        """Whether nobody is in the group or about to join."""
        return not self.members

    @property
    def protocol_type(self) -> str:
        """The protocol type, which is that of consumers."""
        return consumer_protocol.PROTOCOL_TYPE

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The present member of an instance."""
        return self.members.get(self.static_members.get(instance_id or "", ""))

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names of the topics that a member subscribes to, by name and by pattern."""
        resolved = self.regexes.get(member.subscribed_topic_regex or "")
        return member.subscribed_topic_names if resolved is None else member.subscribed_topic_names | resolved.topics

    def subscribed_topics(self) -> frozenset[str]:
        """The names of the topics that anybody in the group subscribes to."""
        return frozenset(self._names).union(*(regex.topics for regex in self.regexes.values()))

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may be reading the topic."""
        return topic in self._names or any(topic in regex.topics for regex in self.regexes.values())

    def subscribed_regexes(self) -> frozenset[str]:
        """The patterns that members subscribe to."""
        return frozenset(self._patterns)

    def preferred_assignor(self, default: str) -> str:
        """The assignor that most members ask for, of those who ask for one."""
        return max(self._assignors, key=lambda name: (self._assignors[name], name), default=default)

    @property
    def classic_member_count(self) -> int:
        """How many members speak the classic protocol."""
        return self._classic_members

    def classic_members_support(self, names: Collection[str]) -> bool:
        """Whether all members that speak the classic protocol support one of these protocols."""
        return any(self._classic_protocols.get(name, 0) == self._classic_members for name in names)

    def is_in_step_with(self, topics: Topics) -> bool:
        """Whether the topics are unchanged since the last group epoch."""
        return self.metadata_hash == topics.group_hash(self.subscribed_topics())

    def apply(self, record: CoordinatorRecord) -> None:
        """Change the group as a record says. What a tombstone removes may be gone already."""
        match record.key:
            case ConsumerGroupMetadataKey():
                value: ConsumerGroupMetadataValue = record.value or ConsumerGroupMetadataValue(0)
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ConsumerGroupPartitionMetadataKey():
                self.has_partition_metadata = record.value is not None
            case ConsumerGroupMemberMetadataKey(_, member_id):
                self._apply_member(member_id, record)
            case ConsumerGroupTargetAssignmentMetadataKey():
                self._apply_target_epoch(record.value)
            case ConsumerGroupTargetAssignmentMemberKey(_, member_id):
                self._apply_target(member_id, record.value)
            case ConsumerGroupCurrentMemberAssignmentKey(_, member_id):
                self._apply_current(member_id, record)
            case ConsumerGroupRegularExpressionKey(_, pattern):
                self._apply_regex(pattern, record.value)

    def _apply_member(self, member_id: str, record: CoordinatorRecord) -> None:
        old = self.members.get(member_id)
        if old is not None and old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
            del self.static_members[old.instance_id]
        if record.value is None:
            self._disown(member_id)
            self._put(member_id, None)
            return
        member = (old or ConsumerMember(member_id)).with_metadata(record.value)
        self._put(member_id, member)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def _apply_target_epoch(self, value: ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.assignment_epoch = 0 if value is None else value.assignment_epoch
        self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp

    def _apply_target(self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        if value is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = assignment_of(value.topic_partitions)

    def _apply_current(self, member_id: str, record: CoordinatorRecord) -> None:
        self._disown(member_id)
        member = self.members.get(member_id)
        if record.value is not None:
            member = (member or ConsumerMember(member_id)).with_current(record.value)
            self._put(member_id, member)
            self._own(member)
        elif member is not None:
            gone = ConsumerMember(member_id, member_epoch=LEAVE_EPOCH, previous_member_epoch=LEAVE_EPOCH)
            self._put(member_id, gone.with_metadata(member.metadata_record(self.group_id).value))

    def _apply_regex(self, pattern: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self.regexes.pop(pattern, None)
        else:
            self.regexes[pattern] = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)

    def _put(self, member_id: str, member: ConsumerMember | None) -> None:
        """Replace or remove a member; the counts of what members subscribe to follow."""
        before = self.members.get(member_id)
        if before is not None:
            self._count(before, -1)
        if member is None:
            self.members.pop(member_id, None)
        else:
            self.members[member_id] = member
            self._count(member, 1)

    def _count(self, member: ConsumerMember, change: int) -> None:
        for name in member.subscribed_topic_names:
            _add(self._names, name, change)
        if member.subscribed_topic_regex:
            _add(self._patterns, member.subscribed_topic_regex, change)
        if member.server_assignor:
            _add(self._assignors, member.server_assignor, change)
        if member.classic is not None:
            self._classic_members += change
            for name in member.classic.protocol_names():
                _add(self._classic_protocols, name, change)

    def _own(self, member: ConsumerMember) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, numbers in partitions.items():
                for number in numbers:
                    self.owners[topic_id, number] = member.member_id

    def _disown(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, numbers in partitions.items():
                for number in numbers:
                    if self.owners.get((topic_id, number)) == member_id:
                        del self.owners[topic_id, number]

    def epoch_record(self, epoch: int, metadata_hash: int) -> CoordinatorRecord:
        """The record of a new group epoch."""
        return CoordinatorRecord(
            ConsumerGroupMetadataKey(self.group_id), ConsumerGroupMetadataValue(epoch, metadata_hash)
        )

    def target_epoch_record(self, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
        """The record of the group epoch that the target assignment belongs to."""
        value = ConsumerGroupTargetAssignmentMetadataValue(epoch, timestamp_ms)
        return CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(self.group_id), value)

    def target_record(self, member_id: str, target: Assignment) -> CoordinatorRecord:
        """The record of a member's target."""
        value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions(target))
        return CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(self.group_id, member_id), value)

    def member_tombstones(self, member_id: str) -> Iterator[CoordinatorRecord]:
        """Remove a member."""
        yield CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(self.group_id, member_id))
        yield CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(self.group_id, member_id))
        yield CoordinatorRecord(ConsumerGroupMemberMetadataKey(self.group_id, member_id))

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        """Remove the whole group."""
        for member_id in self.members:
            yield CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(self.group_id, member_id))
        for member_id in {*self.members, *self.targets}:
            yield CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(self.group_id, member_id))
        yield CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(self.group_id))
        for member_id in self.members:
            yield CoordinatorRecord(ConsumerGroupMemberMetadataKey(self.group_id, member_id))
        if self.has_partition_metadata:
            yield CoordinatorRecord(ConsumerGroupPartitionMetadataKey(self.group_id))
        for pattern in self.regexes:
            yield CoordinatorRecord(ConsumerGroupRegularExpressionKey(self.group_id, pattern))
        yield CoordinatorRecord(ConsumerGroupMetadataKey(self.group_id))

    def validate_state(self) -> None:
        """Check what must always hold: one owner for each partition, and counts that agree. Raises AssertionError."""
        owners = [
            (partition, member.member_id) for member in self.members.values() for partition in _owned_partitions(member)
        ]
        assert len(owners) == len(dict(owners)), "a partition has two owners"
        assert dict(owners) == self.owners
        instances = {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}
        assert instances == self.static_members
        assert all(member.member_epoch <= self.epoch for member in self.members.values())
        assert self.assignment_epoch <= self.epoch
        members = self.members.values()
        assert self._names == Counter(name for member in members for name in member.subscribed_topic_names)
        patterns = Counter(m.subscribed_topic_regex for m in members if m.subscribed_topic_regex)
        assert self._patterns == patterns
        assert self._assignors == Counter(m.server_assignor for m in members if m.server_assignor)
        classic = [member.classic for member in members if member.classic is not None]
        assert self._classic_members == len(classic)
        assert self._classic_protocols == Counter(name for one in classic for name in one.protocol_names())


def _owned_partitions(member: ConsumerMember) -> Iterator[tuple[uuid.UUID, int]]:
    """The partitions that a member has or is revoking."""
    for partitions in (member.assigned, member.pending_revocation):
        for topic_id, numbers in partitions.items():
            yield from ((topic_id, number) for number in numbers)


def _add(counts: MutableMapping[T, int], key: T, change: int) -> None:
    """Change a count; a count of 0 is not kept."""
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]
