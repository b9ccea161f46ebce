"""A member of a consumer group: what it reported of itself, and how far it is from its target."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rayka.coordinator.groups.records import (
    AssignedPartitions,
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    CoordinatorRecord,
    TargetPartitions,
)

Assignment: TypeAlias = Mapping[uuid.UUID, frozenset[int]]
"""Partitions by topic."""
Partitions: TypeAlias = Mapping[uuid.UUID, Mapping[int, int]]
"""Partitions by topic, each with the member epoch in which the member got it."""

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2


class MemberState(enum.IntEnum):
    """How far a member is: at its target, asked to revoke partitions, or waiting for others to revoke theirs."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member. `classic` is set if it speaks the classic protocol (KIP-848, migration)."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=dict)
    pending_revocation: Partitions = field(default_factory=dict)

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Whether the member has reached its target of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def at_epoch(self, member_epoch: int) -> ConsumerMember:
        """The member with a new epoch; the previous one stays valid for a member that missed the response."""
        return replace(self, member_epoch=member_epoch, previous_member_epoch=self.member_epoch)

    def epoch_of(self, topic_id: uuid.UUID, partition: int) -> int | None:
        """The epoch in which the member got a partition that it has or is revoking."""
        for partitions in (self.assigned, self.pending_revocation):
            epoch = partitions.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
        """The member with the metadata of a record."""
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_current(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerMember:
        """The member with the assignment of a record."""
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=_partitions(value.assigned_partitions, value.member_epoch),
            pending_revocation=_partitions(value.partitions_pending_revocation, value.member_epoch),
        )

    def metadata_record(self, group_id: str) -> CoordinatorRecord:
        """The record of what the member reported of itself."""
        value = ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=tuple(sorted(self.subscribed_topic_names)),
            subscribed_topic_regex=self.subscribed_topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )
        return CoordinatorRecord(ConsumerGroupMemberMetadataKey(group_id, self.member_id), value)

    def current_record(self, group_id: str) -> CoordinatorRecord:
        """The record of the member's current assignment."""
        value = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=int(self.state),
            assigned_partitions=_persisted(self.assigned),
            partitions_pending_revocation=_persisted(self.pending_revocation),
        )
        return CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id, self.member_id), value)


def _partitions(topics: Iterable[AssignedPartitions], member_epoch: int) -> Partitions:
    """Before Kafka 4.3 partitions had no epochs. The member's own epoch is a safe substitute."""
    return {
        topic.topic_id: dict(
            zip(topic.partitions, topic.assignment_epochs or (member_epoch,) * len(topic.partitions), strict=True)
        )
        for topic in topics
    }


def _persisted(partitions: Partitions) -> tuple[AssignedPartitions, ...]:
    return tuple(
        AssignedPartitions(topic_id, numbers, tuple(partitions[topic_id][number] for number in numbers))
        for topic_id in sorted(partitions)
        if (numbers := tuple(sorted(partitions[topic_id])))
    )


def assignment_of(partitions: Iterable[TargetPartitions]) -> Assignment:
    """Partitions by topic."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in partitions if topic.partitions}


def topic_partitions(assignment: Mapping[uuid.UUID, Iterable[int]]) -> tuple[TargetPartitions, ...]:
    """An assignment in the form of records and responses, in a fixed order."""
    return tuple(
        TargetPartitions(topic_id, numbers)
        for topic_id in sorted(assignment)
        if (numbers := tuple(sorted(assignment[topic_id])))
    )
