"""Which offsets and groups have expired (KIP-211)."""

from __future__ import annotations

from collections.abc import Iterator

from rayka.coordinator.groups.offsets import tombstone
from rayka.coordinator.groups.records import CoordinatorRecord
from rayka.coordinator.groups.state import GroupState


def expired_records(state: GroupState, now_ms: int) -> Iterator[CoordinatorRecord]:
    """The records that delete expired offsets, and empty groups that have none left."""
    for group_id, group in state.groups.items():
        expired = set(state.offsets.expired(group_id, state.rules(group), now_ms))
        yield from (tombstone(group_id, partition) for partition in sorted(expired))
        if group.is_unused and state.offsets.has_only(group_id, expired):
            yield from state.tombstones(group_id)
