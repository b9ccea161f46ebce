"""The records that a share consumer holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from rayka.share.acknowledge import AcknowledgementBatch
from rayka.share.acquire import AcquiredRecords
from rayka.storage.format.records import read_records
from rayka.types import TopicPartition


class ShareRecord(NamedTuple):
    """A record under a lock, delivered for the `delivery_count`th time. `timestamp` in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    delivery_count: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


def acquired_records(
    topic_partition: TopicPartition, data: bytes, acquired: Sequence[AcquiredRecords]
) -> Iterator[ShareRecord]:
    """The acquired records among those of whole batches."""
    ranges = iter(acquired)
    current = next(ranges)
    for record in read_records(data):
        while record.offset > current.last_offset:
            following = next(ranges, None)
            if following is None:
                return
            current = following
        if record.offset >= current.first_offset:
            yield ShareRecord(
                *topic_partition,
                record.offset,
                record.timestamp,
                record.key,
                record.value,
                record.headers,
                current.delivery_count,
            )


def acknowledgement_batches(types: Mapping[int, int]) -> tuple[AcknowledgementBatch, ...]:
    """Acknowledgements by offset as the protocol has them: runs of offsets, each with its types."""
    batches = []
    numbered = enumerate(sorted(types))
    for _, group in groupby(numbered, key=lambda pair: pair[1] - pair[0]):
        offsets = [offset for _, offset in group]
        said = tuple(types[offset] for offset in offsets)
        batches.append(AcknowledgementBatch(offsets[0], offsets[-1], said[:1] if len(set(said)) == 1 else said))
    return tuple(batches)
