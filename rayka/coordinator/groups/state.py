"""The groups and offsets of one partition of `__consumer_offsets`."""

from __future__ import annotations

from typing import Any, TypeAlias

from rayka.coordinator.groups.classic.group import ClassicGroup
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.offset_rules import (
    ClassicOffsetRules,
    ConsumerOffsetRules,
    OffsetRules,
    ShareOffsetRules,
)
from rayka.coordinator.groups.offsets import Offsets
from rayka.coordinator.groups.records import (
    ConsumerGroupMetadataKey,
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMetadataKey,
)
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.groups.share.group import ShareGroup
from rayka.coordinator.topics import Topics
from rayka.types import NO_PRODUCER_ID

NO_METADATA = -1
"""The version of topics before the first metadata image."""
Group: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup
_SHARE_KEYS = (
    ShareGroupMetadataKey,
    ShareGroupMemberMetadataKey,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupStatePartitionMetadataKey,
)


class GroupState:
    """All groups by id, their offsets, and the cluster's topics. Only `replay` changes what must outlive a crash."""

    def __init__(self, settings: GroupSettings) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets(settings)
        self.topics = Topics(version=NO_METADATA)
        self.is_loading = True

    def replay(self, record: CoordinatorRecord, record_offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a record of the log."""
        match record.key:
            case OffsetCommitKey() as key:
                self.offsets.replay(key, record.value, record_offset, producer_id)
                if record.value is not None and key.group not in self.groups:
                    self.groups[key.group] = ClassicGroup(key.group, -1)
            case GroupMetadataKey(group_id):
                self._replay_classic(group_id, record.value)
            case key if isinstance(key, _SHARE_KEYS):
                self._replay_share(key.group_id, record)
            case key:
                self._replay_consumer(key.group_id, record)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                del self.groups[group_id]
        elif isinstance(group, ClassicGroup) and not self.is_loading:
            group.persisted = value
        else:
            self.groups[group_id] = ClassicGroup.load(group_id, value)

    def update_classic(self, draft: ClassicGroup) -> None:
        """Let a classic group adopt its draft."""
        current = self.groups.get(draft.group_id)
        if isinstance(current, ClassicGroup):
            current.adopt(draft)

    def _replay_consumer(self, group_id: str, record: CoordinatorRecord) -> None:
        """A tombstone of a group that does not exist is ignored."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            if isinstance(record.key, ConsumerGroupMetadataKey) and record.value is None:
                del self.groups[group_id]
            else:
                group.apply(record)
        elif record.value is not None:
            created = self.groups[group_id] = ConsumerGroup(group_id)
            created.apply(record)

    def _replay_share(self, group_id: str, record: CoordinatorRecord) -> None:
        """A tombstone of a group that does not exist is ignored."""
        group = self.groups.get(group_id)
        if isinstance(group, ShareGroup):
            if isinstance(record.key, ShareGroupMetadataKey) and record.value is None:
                del self.groups[group_id]
            else:
                group.apply(record)
        elif record.value is not None:
            created = self.groups[group_id] = ShareGroup(group_id)
            created.apply(record)

    def rules(self, group: Group) -> OffsetRules:
        """Which requests about its offsets the group allows."""
        if isinstance(group, ClassicGroup):
            return ClassicOffsetRules(group)
        if isinstance(group, ShareGroup):
            return ShareOffsetRules(group)
        return ConsumerOffsetRules(group, self.topics)

    def tombstones(self, group_id: str) -> tuple[CoordinatorRecord, ...]:
        """The records that delete a group, without its offsets."""
        group = self.groups.get(group_id)
        if isinstance(group, (ConsumerGroup, ShareGroup)):
            return tuple(group.tombstones())
        return (CoordinatorRecord(GroupMetadataKey(group_id)),)

    def durable(self) -> dict[str, Any]:
        """All state that must outlive a crash, for comparison."""
        groups: dict[str, Any] = {}
        for group_id, group in self.groups.items():
            if isinstance(group, (ConsumerGroup, ShareGroup)):
                groups[group_id] = group.durable()
            elif group.persisted is not None:
                groups[group_id] = group.persisted
        offsets = {group_id: dict(offsets) for group_id, offsets in self.offsets.committed.items() if offsets}
        return {"groups": groups, "offsets": offsets, "pending": self.offsets.pending}

    def validate_state(self) -> None:
        """Check every group. Raises AssertionError."""
        for group_id, group in self.groups.items():
            assert group.group_id == group_id
            group.validate_state()
        self.offsets.validate_state()
