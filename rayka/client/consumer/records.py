"""What a consumer returns: records, or whole batches as they are in the log."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rayka.storage.format.batch import (
    iter_headers,
)
from rayka.storage.format.isolation import iter_visible
from rayka.storage.format.order import PositionedHeader
from rayka.types import AbortedTransaction, TimestampType, TopicPartition


class ConsumerRecord(NamedTuple):
    """A record and its location. `timestamp` is in ms since the epoch; key and value are deserialized."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class RecordBatches(NamedTuple):
    """Whole record batches, as they lie in the log.

    Records before `position`, control batches and batches of aborted transactions may be among them;
    `visible` leaves the latter two out. `next_offset` is where reading continues.
    """

    topic_partition: TopicPartition
    data: memoryview
    position: int
    next_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    are_intact: bool = False
    """Their CRCs were checked and are right."""
    topic_id: uuid.UUID | None = None

    @property
    def size(self) -> int:
        """The bytes of all batches."""
        return len(self.data)

    def visible(self) -> Iterator[PositionedHeader]:
        """Place in `data` and header of each batch that has records for a reader. Raises CORRUPT_MESSAGE."""
        for place, header in iter_visible(self.data, iter_headers(self.data), self.aborted_transactions):
            if header.next_offset > self.position:
                yield place, header
