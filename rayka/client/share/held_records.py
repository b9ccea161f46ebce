"""The records that a share consumer holds, and the acknowledgements that it has not sent yet.

Both are kept by topic id: when a topic is deleted and another gets its name, there are other records at its offsets.
"""

from __future__ import annotations

from collections import defaultdict, deque
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
        self._acknowledgements: Acknowledgements = {}
        self._aside: deque[Acknowledgements] = deque()

    def __contains__(self, record: ShareRecord) -> bool:
        return record.offset in self._unacknowledged.get(record.topic_id_partition, ())

    def add(self, partition: TopicIdPartition, offsets: Iterable[int]) -> None:
        """These were acquired."""
        self._unacknowledged[partition].update(offsets)

    def leave_out(self, partition: TopicIdPartition, acknowledgements: Mapping[int, RecordAcknowledgement]) -> None:
        """These were acquired, and the program does not get them."""
        if acknowledgements:
            self._of(partition).update(acknowledgements)

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
        self._of(partition)[offset] = acknowledgement  # first: an interrupt in between leaves a record that is held
        held.discard(offset)

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
            self._of(partition).update(dict.fromkeys(offsets, ACCEPTED))
            self._unacknowledged[partition] -= offsets  # the other thread may add to it meanwhile
        self.given = ()

    def set_aside(self) -> Acknowledgements:
        """Set the acknowledgements aside that were not sent yet; returns them.

        They are sent by who calls `take_aside`: this may be another one, if the caller is cancelled before that.
        """
        aside, self._acknowledgements = self._acknowledgements, {}
        if aside:
            self._aside.append(aside)
        return aside

    def is_aside(self, acknowledgements: Acknowledgements) -> bool:
        """Whether nobody has taken these, which were set aside."""
        return any(each is acknowledgements for each in self._aside)

    def take_aside(self) -> Acknowledgements:
        """All that was set aside."""
        taken: Acknowledgements = {}
        while self._aside:
            for partition, by_offset in self._aside.popleft().items():
                taken.setdefault(partition, {}).update(by_offset)
        return taken

    def _of(self, partition: TopicIdPartition) -> dict[int, RecordAcknowledgement]:
        """Of the partition. Both threads may be the first to need it; `defaultdict` would make two."""
        return self._acknowledgements.setdefault(partition, {})

    @property
    def acknowledged_partitions(self) -> list[TopicIdPartition]:
        """The partitions of acknowledgements that were not sent yet."""
        return list(self._acknowledgements)

    def take_acknowledgements_of(self, partition: TopicIdPartition) -> dict[int, RecordAcknowledgement]:
        """Those of one partition that were not sent yet, by offset."""
        return self._acknowledgements.pop(partition, {})
