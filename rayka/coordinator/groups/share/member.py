"""A member of a share group. It has nothing to revoke: others may read its partitions too."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rayka.coordinator.groups.consumer.member import Assignment, assignment_of, topic_partitions
from rayka.coordinator.groups.records import (
    CoordinatorRecord,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)


@dataclass(frozen=True, slots=True)
class ShareMember:
    """What a member reported of itself, and what it has."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    member_epoch: int = 0
    previous_member_epoch: int = -1
    assigned: Assignment = field(default_factory=dict)

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> ShareMember:
        """The member with what it reported."""
        names = frozenset(value.subscribed_topic_names)
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=names,
        )

    def with_current(self, value: ShareGroupCurrentMemberAssignmentValue) -> ShareMember:
        """The member with what it has."""
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            assigned=assignment_of(value.assigned_partitions),
        )

    def metadata_record(self, group_id: str) -> CoordinatorRecord:
        """The record of what it reported."""
        value = ShareGroupMemberMetadataValue(
            self.rack_id, self.client_id, self.client_host, tuple(sorted(self.subscribed_topic_names))
        )
        return CoordinatorRecord(ShareGroupMemberMetadataKey(group_id, self.member_id), value)

    def current_record(self, group_id: str) -> CoordinatorRecord:
        """The record of what it has."""
        value = ShareGroupCurrentMemberAssignmentValue(
            self.member_epoch,
            self.previous_member_epoch,
            assigned_partitions=topic_partitions(self.assigned),
        )
        return CoordinatorRecord(ShareGroupCurrentMemberAssignmentKey(group_id, self.member_id), value)
