"""The records that a share consumer holds, and the acknowledgements that it has not sent yet.

Both are kept by topic id: when a topic is deleted and another gets its name, there are other records at its offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.errors import ErrorCode, RaykaError
from rayka.share.record_state import AcknowledgeType
from rayka.types import TopicIdPartition

ACCEPTED: Final = RecordAcknowledgement(AcknowledgeType.ACCEPT)

Acknowledgements = dict[TopicIdPartition, dict[int, RecordAcknowledgement]]
"""Acknowledgements by partition and offset."""
Offsets = defaultdict[TopicIdPartition, set[int]]


class HeldRecords:
    """The program's thread may acknowledge records while that of the client adds what a fetch returned.

    Offsets are kept in a set for each partition, which stays: a topic's id takes long to hash.
    """

    def __init__(self) -> None:
        self.given: Sequence[ShareRecord] = ()
        """The records of the last poll. The program has to acknowledge them."""
        self._unacknowledged: Offsets = defaultdict(set)
        self._acknowledgements: Acknowledgements = defaultdict(dict)

    def __contains__(self, record: ShareRecord) -> bool:
        return record.offset in self._unacknowledged.get(record.topic_id_partition, ())

    def add(self, partition: TopicIdPartition, offsets: Iterable[int]) -> None:
        """These were acquired."""
        self._unacknowledged[partition].update(offsets)

    def leave_out(self, partition: TopicIdPartition, acknowledgements: Mapping[int, RecordAcknowledgement]) -> None:
        """These were acquired, and the program does not get them."""
        if acknowledgements:
            self._acknowledgements[partition].update(acknowledgements)

    def remove(self, record: ShareRecord) -> None:
        """It is not held any more."""
        self._unacknowledged[record.topic_id_partition].discard(record.offset)

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
        """Accept what the program was given.

        Raises INVALID_REQUEST unless `is_implicit` if the program has not acknowledged all of it.
        """
        left = [
            (partition, self._unacknowledged[partition] & {record.offset for record in of_partition})
            for partition, of_partition in groupby(self.given, attrgetter("topic_id_partition"))
        ]
        if not is_implicit and (count := sum(len(offsets) for _, offsets in left)):
            reason = f"Acknowledge each record before the next poll: {count} are not acknowledged"
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
        for partition, offsets in left:
            self._acknowledgements[partition].update(dict.fromkeys(offsets, ACCEPTED))
            self._unacknowledged[partition] -= offsets  # the other thread may add to it meanwhile
        self.given = ()

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
