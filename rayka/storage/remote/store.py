"""The remote store as tiered storage sees it: objects by name. What a segment consists of there."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Protocol

from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata
from rayka.storage.segments.segment import file_name
from rayka.types import TopicIdPartition


class SegmentObject(enum.StrEnum):
    """The objects of a segment, by what their names end with."""

    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TRANSACTION_INDEX = ".txnindex"
    PRODUCER_SNAPSHOT = ".snapshot"
    LEADER_EPOCHS = ".leader-epoch-checkpoint"


class RemoteStore(Protocol):
    """An object store. Methods block, may be called in any thread, and raise OSError.

    An object is there whole or not at all. After an error of `put` or `delete` nothing is known of the object but that
    `delete` removes it.
    """

    def create(self) -> None:
        """Make the store if it is not there. Called while no metadata of it exists."""

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Store an object; one of that name is replaced."""

    def get(self, name: str, position: int, size: int) -> bytes:
        """Read `size` bytes, fewer at the end of the object. Raises FileNotFoundError if there is no such object."""

    def delete(self, name: str) -> None:
        """Remove an object; that it is not there is not an error."""

    def list(self, prefix: str) -> Iterator[str]:
        """The names that begin with `prefix`."""


def object_name(segment: RemoteLogSegmentMetadata, kind: SegmentObject) -> str:
    """`orders-<topic id>/3/00000000000000000042-<segment id>.log`"""
    stem = file_name(segment.start_offset, f"-{segment.segment_id.hex}{kind}")
    return f"{partition_prefix(segment.partition)}{stem}"


def partition_prefix(partition: TopicIdPartition) -> str:
    """What the names of all objects of a partition begin with."""
    topic, number = partition.topic_partition
    return f"{topic}-{partition.topic_id.hex}/{number}/"
