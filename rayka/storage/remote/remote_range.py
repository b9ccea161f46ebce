"""Where the records of a range are in the remote store, for readers that fetch them without the leader (KIP-405)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata
from rayka.storage.segments.transaction_index import AbortedTxn
from rayka.types import TopicPartition

MOST_SEGMENTS = 100
"""So many segments are named at a time."""


class RemoteRange(NamedTuple):
    """The records from `start_offset` up to `end_offset` are in these segments, which have no gap.

    `following` are later segments with aborted transactions, which may have begun in these. `aborted` is what the local
    log says of such transactions, None for a reader of all records.
    """

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int
    segments: tuple[RemoteLogSegmentMetadata, ...]
    following: tuple[RemoteLogSegmentMetadata, ...] = ()
    aborted: tuple[AbortedTxn, ...] | None = None

    def from_offset(self, offset: int) -> tuple[RemoteLogSegmentMetadata, ...]:
        """The segments that have records from `offset` on."""
        return tuple(segment for segment in self.segments if segment.end_offset >= offset)


def without_gap(segments: Sequence[RemoteLogSegmentMetadata]) -> tuple[RemoteLogSegmentMetadata, ...]:
    """The first of these segments, up to one behind which offsets are missing: what was there must not be passed over.

    What compaction removed is no gap: a segment ends where the next one of the log begins.
    """
    gaps = (number for number, (one, two) in enumerate(pairwise(segments), 1) if two.start_offset > one.end_offset + 1)
    return tuple(segments[: next(gaps, len(segments))])


def locate(
    topic_partition: TopicPartition,
    segments: Sequence[RemoteLogSegmentMetadata],
    start_offset: int,
    end_offset: int,
    aborted: tuple[AbortedTxn, ...] | None,
) -> RemoteRange | None:
    """The range as far as the first of these segments have it without a gap.

    None if too many others would have to be named too.
    """
    nearest = without_gap(segments[:MOST_SEGMENTS])
    wanted = tuple(takewhile(lambda each: each.start_offset < end_offset, nearest))
    following: tuple[RemoteLogSegmentMetadata, ...] = ()
    if aborted is not None:
        following = tuple(each for each in segments[len(wanted) :] if not each.is_transaction_index_empty)
    if len(following) > MOST_SEGMENTS:
        return None
    end_offset = min(end_offset, wanted[-1].end_offset + 1)
    return RemoteRange(topic_partition, start_offset, end_offset, wanted, following, aborted)
