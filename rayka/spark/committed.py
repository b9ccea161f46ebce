"""Whether the batch of a stream was committed, from the offsets of its group.

One transaction writes the rows of a batch and commits its offsets of all partitions, with its number as their metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from rayka.client.group.coordinator import OffsetAndMetadata
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.types import TopicPartition

Committed: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]
"""Offsets of partitions, with the number of a batch as their metadata."""


class PlannedOffsets:
    """The offsets that a batch will commit for its group, which has those of earlier batches or already these."""

    def __init__(self, group: str, batch_id: int, ranges: tuple[OffsetRange, ...]) -> None:
        metadata = json.dumps({"batch_id": batch_id})
        self.group = group
        self.batch_id = batch_id
        self.offsets = {each.topic_partition: OffsetAndMetadata(each.end_offset, metadata) for each in ranges}
        self._empty = {each.topic_partition for each in ranges if not len(each)}

    def are_committed(self, committed: Committed) -> bool:
        """Whether the batch is written. Raises INVALID_REQUEST if the checkpoint is a copy, or nobody can know."""
        batches = {partition: _batch_id(one.metadata) for partition, one in committed.items()}
        last = max((number for number in batches.values() if number is not None), default=-1)
        if last >= self.batch_id:
            self._require_same(committed, batches, last)
            return True
        if None in batches.values():
            raise RaykaError(
                ErrorCode.INVALID_REQUEST,
                f"The offsets of group {self.group} were reset or committed by another program, so it is not known "
                f"whether batch {self.batch_id} was written. If it is not in the topic, delete the group and start the "
                "stream again",
            )
        return False

    def _require_same(self, committed: Committed, batches: Mapping[TopicPartition, int | None], last: int) -> None:
        """Raises INVALID_REQUEST unless the last batch of the group is this one, with the offsets that it reads.

        Of an empty partition it reads nothing: if it ends beyond what was committed, retention has taken that since.
        """
        written = {
            partition: one.offset
            for partition, one in committed.items()
            if batches[partition] == last and not self._is_taken(partition, one.offset)
        }
        planned = {
            partition: one.offset
            for partition, one in self.offsets.items()
            if partition in written or not (partition in self._empty or batches.get(partition, last) is None)
        }
        if last > self.batch_id or written != planned:
            raise RaykaError(
                ErrorCode.INVALID_REQUEST,
                f"Group {self.group} has committed batch {last} up to {_shown(written)}, but the checkpoint has batch"
                f" {self.batch_id} up to {_shown(planned)}: it was copied or restored. Use the checkpoint with which"
                " the stream went on",
            )

    def _is_taken(self, partition: TopicPartition, offset: int) -> bool:
        return partition in self._empty and offset < self.offsets[partition].offset


def _shown(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{topic}-{partition}: {offset}" for (topic, partition), offset in offsets.items())


def _batch_id(metadata: str) -> int | None:
    """The batch number in the metadata of a committed offset; None if no stream has written it."""
    try:
        return int(json.loads(metadata)["batch_id"])
    except (ValueError, KeyError, TypeError):
        return None
