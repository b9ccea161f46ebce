"""What `__remote_log_metadata` says of one partition: its segments in the store, by state and by leader epoch.

State changes by `replay` alone, after a crash as in normal work. An event that can't follow the present state is
ignored: a retry may write it twice, and one that was given up may come late.
"""

from __future__ import annotations

import math
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.remote.segment_metadata import (
    PARTITION_TRANSITIONS,
    SEGMENT_TRANSITIONS,
    RemoteLogMetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)
from rayka.types import NO_OFFSET, TopicIdPartition

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class RemotePartition:
    """The segments of one partition that may be in the store. Those whose deletion has finished are forgotten."""

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.delete_state: RemotePartitionDeleteState | None = None
        self.is_unknown = True
        """Whether no event has told of it: nothing of it was ever begun to be copied."""
        self.deleted_offset = NO_OFFSET
        """The last offset of the complete segments whose deletion has begun."""
        self._segments: dict[uuid.UUID, RemoteLogSegmentMetadata] = {}
        self._to_delete: set[uuid.UUID] = set()
        self._lineage: tuple[tuple[EpochEntry, ...], tuple[RemoteLogSegmentMetadata, ...]] | None = None

    def replay(self, event: RemoteLogMetadataEvent) -> None:
        """Apply an event of the log."""
        self._lineage = None
        self.is_unknown = False
        if isinstance(event, RemoteLogSegmentMetadata):
            if event.segment_id not in self._segments:
                self._segments[event.segment_id] = event
        elif isinstance(event, RemoteLogSegmentMetadataUpdate):
            self._update(event)
        elif event.state in PARTITION_TRANSITIONS[self.delete_state]:
            self.delete_state = event.state

    def _update(self, event: RemoteLogSegmentMetadataUpdate) -> None:
        segment = self._segments.get(event.segment_id)
        if segment is None or event.state not in SEGMENT_TRANSITIONS[segment.state]:
            return
        if segment.state is FINISHED:
            self.deleted_offset = max(self.deleted_offset, segment.end_offset)
        if event.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            del self._segments[event.segment_id]
            self._to_delete.discard(event.segment_id)
        else:
            custom = segment.custom_metadata if event.custom_metadata is None else event.custom_metadata
            self._segments[event.segment_id] = segment._replace(
                state=event.state, event_timestamp_ms=event.event_timestamp_ms, custom_metadata=custom
            )

    @property
    def segments(self) -> tuple[RemoteLogSegmentMetadata, ...]:
        """All segments that may have objects in the store, by start offset."""
        return tuple(sorted(self._segments.values(), key=lambda segment: (segment.start_offset, -segment.end_offset)))

    def get(self, segment_id: uuid.UUID) -> RemoteLogSegmentMetadata | None:
        """A segment that may have objects in the store."""
        return self._segments.get(segment_id)

    def mark_for_deletion(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """These are about to be deleted: from now on they are no copies, whatever state they still reach.

        A former leader may complete a copy between the decision to delete it and the event that says so.
        """
        self._to_delete.update(segment.segment_id for segment in segments)
        self._lineage = None

    def unmark(self) -> None:
        """Forget the deletions that were decided in an earlier leader epoch."""
        self._to_delete.clear()
        self._lineage = None

    def is_complete(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether a segment can be read from the store and is not about to be deleted."""
        return segment.state is FINISHED and segment.segment_id not in self._to_delete

    def lineage(self, epochs: Sequence[EpochEntry]) -> tuple[RemoteLogSegmentMetadata, ...]:
        """The complete segments of a log that has these leader epochs, in the order of their offsets.

        Segments of a leader whose records the log does not have are left out, and so are copies of the same records.
        """
        key = tuple(epochs)
        if self._lineage is None or self._lineage[0] != key:
            finished = [segment for segment in self.segments if self.is_complete(segment)]
            self._lineage = key, tuple(_without_copies(_written_in(finished, key)))
        return self._lineage[1]

    def highest_offset(self, epochs: Sequence[EpochEntry], local_log_start_offset: int) -> int:
        """The last offset of the log that is in the store with all before it that are local too, -1 if none is."""
        end_offset = NO_OFFSET
        for segment in self.lineage(epochs):
            if segment.start_offset > max(end_offset + 1, local_log_start_offset):
                break
            end_offset = segment.end_offset
        return end_offset

    def missing_offsets(self, epochs: Sequence[EpochEntry], log_start_offset: int, local_start_offset: int) -> range:
        """Where the offsets are of which nothing is known, of those that a log has and that are not here.

        There are none as long as all events are: what was deleted from the log's start on is known.
        """
        offset = max(log_start_offset, self.deleted_offset + 1)
        for segment in self.lineage(epochs):
            if segment.start_offset > offset:
                break
            offset = max(offset, segment.end_offset + 1)
        return range(offset, local_start_offset)

    def epochs_below(self, first: EpochEntry) -> list[EpochEntry]:
        """The leader epochs before the `first` that a log knows, as its complete segments have them, back to a gap."""
        found: list[EpochEntry] = []
        complete = filter(self.is_complete, self.segments)
        for segment in sorted(complete, key=lambda each: (each.end_offset, each.leader_epochs[-1:]), reverse=True):
            below = [entry for entry in segment.leader_epochs if entry.start_offset < first.start_offset]
            if below and below[-1].epoch <= first.epoch and first.start_offset <= segment.end_offset + 1:
                found[:0] = below
                first = below[0]
        return found

    def from_offset(self, epochs: Sequence[EpochEntry], offset: int) -> tuple[RemoteLogSegmentMetadata, ...]:
        """The segments of the log that have offsets at or above `offset`."""
        lineage = self.lineage(epochs)
        return lineage[bisect_left(lineage, offset, key=lambda segment: segment.end_offset) :]

    def find(self, epochs: Sequence[EpochEntry], epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The segment that has `offset` as it was written in leader epoch `epoch`."""
        found = self.from_offset(epochs, offset)[:1]
        return next((each for each in found if _has(each, epoch, offset)), None)

    def validate_state(self) -> None:
        """Raises AssertionError if a lineage has overlaps or a segment is kept whose deletion has finished."""
        states = {segment.state for segment in self._segments.values()}
        assert RemoteLogSegmentState.DELETE_SEGMENT_FINISHED not in states
        for _, lineage in [self._lineage] if self._lineage is not None else []:
            assert all(one.end_offset < two.end_offset for one, two in pairwise(lineage)), lineage


def _has(segment: RemoteLogSegmentMetadata, epoch: int, offset: int) -> bool:
    return any(epoch == each and first <= offset <= last for each, first, last in segment.epoch_ranges)


def _written_in(
    segments: Iterable[RemoteLogSegmentMetadata], epochs: Sequence[EpochEntry]
) -> Iterator[RemoteLogSegmentMetadata]:
    """The segments of which the log wrote each epoch at least up to where the segment has it.

    The log may have forgotten the beginning of an epoch, and whole epochs before its first.
    """
    if not epochs:
        return
    ends = {one.epoch: two.start_offset for one, two in pairwise(epochs)} | {epochs[-1].epoch: math.inf}
    for segment in segments:
        kept = [each for each in segment.epoch_ranges if each[0] >= epochs[0].epoch]
        if kept and all(last < ends.get(epoch, -1) for epoch, _, last in kept):
            yield segment


def _without_copies(segments: Iterable[RemoteLogSegmentMetadata]) -> Iterator[RemoteLogSegmentMetadata]:
    end_offset = NO_OFFSET
    for segment in segments:
        if segment.end_offset > end_offset:
            end_offset = segment.end_offset
            yield segment
