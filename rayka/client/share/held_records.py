"""The records that a share consumer holds, and the acknowledgements that it has not sent yet.

Both are kept by topic id: when a topic is deleted and another gets its name, there are other records at its offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
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
Offsets = defaultdict[TopicIdPartition, set[int]]


class HeldRecords:
    """The program's thread may acknowledge records while that of the client adds what a fetch returned.

    Offsets are kept in a set for each partition, which stays: a topic's id takes long to hash.
    """

    def __init__(self) -> None:
        self._unacknowledged: Offsets = defaultdict(set)
        self._given: Offsets = defaultdict(set)
        self._acknowledgements: Acknowledgements = defaultdict(dict)

    def __contains__(self, record: ShareRecord) -> bool:
        return record.offset in self._unacknowledged.get(record.topic_id_partition, ())

    def add(self, partition: TopicIdPartition, offsets: Iterable[int]) -> None:
        """These were acquired."""
        self._unacknowledged[partition].update(offsets)

    def add_gaps(self, partition: TopicIdPartition, offsets: Iterable[int]) -> None:
        """These were acquired, and there are no records."""
        gaps = dict.fromkeys(offsets, _GAP)
        if gaps:
            self._acknowledgements[partition].update(gaps)

    def remove(self, record: ShareRecord) -> None:
        """It is not held any more."""
        self._unacknowledged[record.topic_id_partition].discard(record.offset)

    def give(self, records: Iterable[ShareRecord]) -> None:
        """The program gets them, and has to acknowledge them."""
        for partition, of_partition in groupby(records, attrgetter("topic_id_partition")):
            self._given[partition].update(record.offset for record in of_partition)

    def acknowledge(self, record: ShareRecord, acknowledgement: RecordAcknowledgement) -> None:
        """Raises INVALID_RECORD_STATE for a record that is not held."""
        partition, offset = record.topic_id_partition, record.offset
        held = self._unacknowledged.get(partition)
        if held is None or offset not in held:
            raise RaykaError(
                ErrorCode.INVALID_RECORD_STATE,
                f"The record at offset {offset} is not from the last poll, or was already acknowledged",
            )
        held.discard(offset)
        self._acknowledgements[partition][offset] = acknowledgement

    def end_poll(self, *, is_implicit: bool) -> None:
        """Accept what the program was given, and release what came when its poll had been cancelled.

        Raises INVALID_REQUEST unless `is_implicit` if the program has not acknowledged all that it was given.
        """
        given, held = self._given, [(each, {*offsets}) for each, offsets in [*self._unacknowledged.items()] if offsets]
        if not is_implicit and (count := sum(len(offsets & given[each]) for each, offsets in held)):
            reason = f"Acknowledge each record before the next poll: {count} are not acknowledged"
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
        for partition, offsets in held:
            accepted = dict.fromkeys(offsets & given[partition], ACCEPTED)
            released = dict.fromkeys(offsets - given[partition], _RELEASED)
            self._acknowledgements[partition].update({**accepted, **released})
            self._unacknowledged[partition] -= offsets  # the other thread may have added to it meanwhile
        self._given = defaultdict(set)

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
