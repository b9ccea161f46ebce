"""The state of one share-partition in the share coordinator, and how a record changes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayka.coordinator.shares.batches import Batches, combine, join_terminal
from rayka.coordinator.shares.records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareStateRecord,
    ShareUpdateKey,
    ShareUpdateValue,
)
from rayka.coordinator.shares.requests import WriteShareGroupStateRequest
from rayka.types import SharePartitionKey

_MOST_BATCHES = 5000
"""More than these come together only behind a delayed record. A snapshot must fit into one record of the log."""
NO_EPOCH = 0
"""The leader epoch of a share-partition that no leader has read yet."""


@dataclass(frozen=True, slots=True)
class ShareState:
    """A share-partition. `updates` counts the update records since the snapshot, which is at `snapshot_record_offset`.

    `delivery_complete_count` counts the terminal records from the start offset on (KIP-1226); -1 if nobody said it.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: Batches
    create_timestamp: int
    write_timestamp: int
    updates: int = 0
    snapshot_record_offset: int = 0

    @classmethod
    def load(cls, value: ShareSnapshotValue, record_offset: int) -> ShareState:
        """The state that a snapshot has."""
        return cls(
            snapshot_epoch=value.snapshot_epoch,
            state_epoch=value.state_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            state_batches=value.state_batches,
            create_timestamp=value.create_timestamp,
            write_timestamp=value.write_timestamp,
            snapshot_record_offset=record_offset,
        )

    def updated(self, value: ShareUpdateValue) -> ShareState:
        """The state after an update."""
        start_offset = self.start_offset if value.start_offset == -1 else value.start_offset
        return replace(
            self,
            leader_epoch=self.leader_epoch if value.leader_epoch == -1 else value.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=value.delivery_complete_count,
            state_batches=combine(self.state_batches, value.state_batches, start_offset),
            updates=self.updates + 1,
        )

    def snapshot(self, now_ms: int, create_timestamp: int) -> ShareSnapshotValue:
        """The next snapshot of this state. Very many batches are joined, where all their records are done."""
        batches = self.state_batches
        return ShareSnapshotValue(
            snapshot_epoch=self.snapshot_epoch + 1,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=self.start_offset,
            create_timestamp=create_timestamp,
            write_timestamp=now_ms,
            state_batches=batches if len(batches) <= _MOST_BATCHES else join_terminal(batches),
            delivery_complete_count=self.delivery_complete_count,
        )

    @property
    def is_cold(self) -> bool:
        """Whether the last snapshot was written because nothing had happened."""
        return self.create_timestamp != self.write_timestamp

    def write(self, request: WriteShareGroupStateRequest) -> ShareUpdateValue:
        """The update that a write makes. The start offset never goes back, nor the count of completed deliveries."""
        start_offset = max(request.start_offset, self.start_offset)
        return ShareUpdateValue(
            snapshot_epoch=self.snapshot_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=start_offset,
            state_batches=combine((), request.state_batches, start_offset),
            delivery_complete_count=self._complete_count(request),
        )

    def _complete_count(self, request: WriteShareGroupStateRequest) -> int:
        """The count belongs to a start offset: of writes that arrive out of order the one that is ahead counts."""
        if request.start_offset == self.start_offset:
            return max(request.delivery_complete_count, self.delivery_complete_count)
        is_behind = request.start_offset < self.start_offset
        return self.delivery_complete_count if is_behind else request.delivery_complete_count


def snapshot_record(key: SharePartitionKey, value: ShareSnapshotValue) -> ShareStateRecord:
    """The record of a whole state."""
    return ShareStateRecord(ShareSnapshotKey(*key), value)


def update_record(key: SharePartitionKey, value: ShareUpdateValue) -> ShareStateRecord:
    """The record of a change."""
    return ShareStateRecord(ShareUpdateKey(*key), value)


def tombstone(key: SharePartitionKey) -> ShareStateRecord:
    """The record that deletes a share-partition."""
    return ShareStateRecord(ShareSnapshotKey(*key))
