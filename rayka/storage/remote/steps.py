"""The steps of a copy and of a deletion, in an order that loses and leaks nothing.

A step is an event to be written to `__remote_log_metadata`, or work on the store. The shell carries one out before it
takes the next; when one fails, or the process ends, the rest is left: what was begun is in the metadata, and the next
round of retention deletes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.log.log import Log
from rayka.storage.remote.copy_plan import CopyableSegment, epochs_of
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.remote.segment_copy import SegmentCopy, delete_objects
from rayka.storage.remote.segment_metadata import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from rayka.storage.remote.store import RemoteStore
from rayka.types import TopicIdPartition

StoreWork: TypeAlias = Callable[[RemoteStore], None]
Step: TypeAlias = RemoteLogMetadataEvent | StoreWork


class Author(NamedTuple):
    """Who writes events, and when (milliseconds since the epoch)."""

    broker_id: int
    now_ms: int


def metadata_of(
    partition: TopicIdPartition, log: Log, copyable: CopyableSegment, segment_id: uuid.UUID, author: Author
) -> RemoteLogSegmentMetadata:
    """What is written of a segment before it is copied. Reads its indexes. Raises OSError."""
    segment, end_offset = copyable
    return RemoteLogSegmentMetadata(
        partition,
        segment_id,
        segment.base_offset,
        end_offset - 1,
        author.broker_id,
        segment.last_changed_ms(),
        author.now_ms,
        epochs_of(log.leader_epochs, segment.base_offset, end_offset),
        segment.size,
        is_transaction_index_empty=not segment.transaction_index.read(),
    )


def copy_of(log: Log, copyable: CopyableSegment) -> SegmentCopy:
    """What a copy consists of."""
    segment, end_offset = copyable
    known: list[EpochEntry] = [entry for entry in log.leader_epochs if entry.start_offset < end_offset]
    return SegmentCopy(segment, known, log.snapshot_path(end_offset))


def copy(metadata: RemoteLogSegmentMetadata, work: StoreWork, author: Author) -> Iterator[Step]:
    """Copy a segment: until the last event is written nobody reads the copy, and the local segment stays."""
    yield metadata
    yield work
    yield _update(metadata, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, author)


def delete(metadata: RemoteLogSegmentMetadata, author: Author) -> Iterator[Step]:
    """Delete a segment: from the first event on nobody reads it, until the last one it is tried again."""
    if metadata.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
        yield _update(metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, author)
    yield lambda store: delete_objects(store, metadata)
    yield _update(metadata, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, author)


def delete_partition(remote: RemotePartition, author: Author) -> Iterator[Step]:
    """Delete all segments of a partition whose topic is gone. It can be begun again at any point."""
    states = RemotePartitionDeleteState
    for state in (states.DELETE_PARTITION_MARKED, states.DELETE_PARTITION_STARTED):
        if remote.delete_state is None or remote.delete_state < state:
            yield RemotePartitionDeleteMetadata(remote.partition, author.broker_id, author.now_ms, state)
    for segment in remote.segments:
        yield from delete(segment, author)
    yield RemotePartitionDeleteMetadata(
        remote.partition, author.broker_id, author.now_ms, states.DELETE_PARTITION_FINISHED
    )


def _update(
    metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, author: Author
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        metadata.partition, metadata.segment_id, author.broker_id, author.now_ms, state
    )
