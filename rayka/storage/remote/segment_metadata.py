"""The metadata of a segment in the remote store, and the states that it goes through (KIP-405).

    (none) -> COPY_SEGMENT_STARTED -> COPY_SEGMENT_FINISHED -> DELETE_SEGMENT_STARTED -> DELETE_SEGMENT_FINISHED
                       \\_________________________________________^

Each step is a record in `__remote_log_metadata` before anything is done, so after a crash the log names every object
that may be in the store.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import NamedTuple

from rayka.storage.log.leader_epochs import EpochEntry
from rayka.types import TopicIdPartition


class RemoteLogSegmentState(enum.IntEnum):
    """The state of a segment, with Kafka's numbers."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(enum.IntEnum):
    """The state of a partition whose topic was deleted, with Kafka's numbers."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


_SEGMENT, _PARTITION = RemoteLogSegmentState, RemotePartitionDeleteState

SEGMENT_TRANSITIONS: Mapping[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]] = {
    None: frozenset({_SEGMENT.COPY_SEGMENT_STARTED}),
    _SEGMENT.COPY_SEGMENT_STARTED: frozenset({_SEGMENT.COPY_SEGMENT_FINISHED, _SEGMENT.DELETE_SEGMENT_STARTED}),
    _SEGMENT.COPY_SEGMENT_FINISHED: frozenset({_SEGMENT.DELETE_SEGMENT_STARTED}),
    _SEGMENT.DELETE_SEGMENT_STARTED: frozenset({_SEGMENT.DELETE_SEGMENT_FINISHED}),
    _SEGMENT.DELETE_SEGMENT_FINISHED: frozenset(),
}
PARTITION_TRANSITIONS: Mapping[RemotePartitionDeleteState | None, frozenset[RemotePartitionDeleteState]] = {
    None: frozenset({_PARTITION.DELETE_PARTITION_MARKED}),
    _PARTITION.DELETE_PARTITION_MARKED: frozenset({_PARTITION.DELETE_PARTITION_STARTED}),
    _PARTITION.DELETE_PARTITION_STARTED: frozenset({_PARTITION.DELETE_PARTITION_FINISHED}),
    _PARTITION.DELETE_PARTITION_FINISHED: frozenset(),
}


class RemoteLogSegmentMetadata(NamedTuple):
    """A segment in the store: the records from `start_offset` to `end_offset`, which is inclusive.

    `leader_epochs` says where each epoch begins in the segment, the first one at `start_offset`. Times in milliseconds.
    """

    partition: TopicIdPartition
    segment_id: uuid.UUID
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp: int
    event_timestamp_ms: int
    leader_epochs: tuple[EpochEntry, ...]
    size: int
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    custom_metadata: bytes | None = None
    is_transaction_index_empty: bool = False

    @property
    def epoch_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Each leader epoch with its first and last offset in the segment."""
        ends = EpochEntry(-1, self.end_offset + 1)
        for entry, following in pairwise(chain(self.leader_epochs, (ends,))):
            yield entry.epoch, entry.start_offset, following.start_offset - 1


class RemoteLogSegmentMetadataUpdate(NamedTuple):
    """A segment goes to another state."""

    partition: TopicIdPartition
    segment_id: uuid.UUID
    broker_id: int
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None


class RemotePartitionDeleteMetadata(NamedTuple):
    """The segments of a partition are deleted, since its topic was."""

    partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState


RemoteLogMetadataEvent = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
