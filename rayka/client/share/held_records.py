"""The records that a share consumer holds, and the acknowledgements that it has not sent yet.

Both are kept by topic id: when a topic is deleted and another gets its name, there are other records at its offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import GROUP_BACKOFF
from rayka.share.record_state import AcknowledgeType
from rayka.types import TopicIdPartition

ACCEPTED: Final = RecordAcknowledgement(AcknowledgeType.ACCEPT)
_GAP: Final = RecordAcknowledgement(AcknowledgeType.GAP)
_RELEASED: Final = RecordAcknowledgement(AcknowledgeType.RELEASE, GROUP_BACKOFF)

Acknowledgements = dict[TopicIdPartition, dict[int, RecordAcknowledgement]]
"""Acknowledgements by partition and offset."""


class HeldRecords:
    """The program's thread may acknowledge records while that of the client adds what a fetch returned."""

    def __init__(self) -> None:
        self._unacknowledged: set[tuple[TopicIdPartition, int]] = set()
        self._given: set[tuple[TopicIdPartition, int]] = set()
        self._acknowledgements: Acknowledgements = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._unacknowledged)

    def __contains__(self, record: ShareRecord) -> bool:
        return (record.topic_id_partition, record.offset) in self._unacknowledged

    def add(self, partition: TopicIdPartition, offsets: Iterable[int]) -> None:
        """These were acquired."""
        self._unacknowledged |= {(partition, offset) for offset in offsets}

    def add_gaps(self, partition: TopicIdPartition, offsets: Iterable[int]) -> None:
        """These were acquired, and there are no records."""
        for offset in offsets:
            self._acknowledgements[partition][offset] = _GAP

    def remove(self, record: ShareRecord) -> None:
        """It is not held any more."""
        self._unacknowledged.discard((record.topic_id_partition, record.offset))

    def give(self, records: Iterable[ShareRecord]) -> None:
        """The program gets them, and has to acknowledge them."""
        self._given |= {(record.topic_id_partition, record.offset) for record in records}

    def acknowledge(self, record: ShareRecord, acknowledgement: RecordAcknowledgement) -> None:
        """Raises INVALID_RECORD_STATE for a record that is not held."""
        if record not in self:
            raise RaykaError(
                ErrorCode.INVALID_RECORD_STATE,
                f"The record at offset {record.offset} is not from the last poll, or was already acknowledged",
            )
        self.remove(record)
        self._acknowledgements[record.topic_id_partition][record.offset] = acknowledgement

    def end_poll(self, *, is_implicit: bool) -> None:
        """Accept what the program was given, and release what came when its poll had been cancelled.

        Raises INVALID_REQUEST unless `is_implicit` if the program has not acknowledged all that it was given.
        """
        given, unacknowledged = self._given, list(self._unacknowledged)  # the other thread may add to it meanwhile
        if not is_implicit and (count := len(given.intersection(unacknowledged))):
            reason = f"Acknowledge each record before the next poll: {count} are not acknowledged"
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
        for place in unacknowledged:
            partition, offset = place
            self._acknowledgements[partition][offset] = ACCEPTED if place in given else _RELEASED
        self._unacknowledged.difference_update(unacknowledged)
        self._given = set()

    def take_acknowledgements(self) -> Acknowledgements:
        """Those that were not sent yet."""
        acknowledgements, self._acknowledgements = self._acknowledgements, defaultdict(dict)
        return acknowledgements

    @property
    def acknowledged_partitions(self) -> list[TopicIdPartition]:
        """The partitions of acknowledgements that were not sent yet."""
        return list(self._acknowledgements)

    def take_acknowledgements_of(self, partition: TopicIdPartition) -> dict[int, RecordAcknowledgement]:
        """Those of one partition that were not sent yet, by offset."""
        return self._acknowledgements.pop(partition, {})
