"""The records that a share consumer holds, and the acknowledgements that it has not sent yet.

Both are kept by topic id: when a topic is deleted and another gets its name, there are other records at its offsets.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.errors import ErrorCode, RaykaError
from rayka.share.record_state import AcknowledgeType
from rayka.share.requests import ShareFetchResult
from rayka.types import TopicIdPartition

ACCEPTED: Final = RecordAcknowledgement(AcknowledgeType.ACCEPT)

Results = dict[TopicIdPartition, ShareFetchResult]
Acknowledgements = dict[TopicIdPartition, dict[int, RecordAcknowledgement]]
"""Acknowledgements by partition and offset."""
Offsets = defaultdict[TopicIdPartition, set[int]]


class Aside:
    """Acknowledgements on their way, which are sent together and apart from others: a leader takes or refuses those of
    a request as a whole.

    Who takes them settles them. `results` has the newest answer by partition, also where they were sent again.
    """

    def __init__(self, acknowledgements: Acknowledgements) -> None:
        self.acknowledgements = acknowledgements
        self.is_sent = False
        self.results: Results = {}
        self._is_settled = asyncio.Event()

    def settle(self) -> None:
        """There are answers, or there will be none. Once, in the client's event loop."""
        self._is_settled.set()

    async def settled(self) -> None:
        """Wait for that."""
        await self._is_settled.wait()


class HeldRecords:
    """The program's thread may acknowledge records while that of the client adds what a fetch returned.

    Offsets are kept in a set for each partition, which stays: a topic's id takes long to hash.
    """

    def __init__(self) -> None:
        self.given: Sequence[ShareRecord] = ()
        """The records of the last poll. The program has to acknowledge them."""
        self._unacknowledged: Offsets = defaultdict(set)
        self._acknowledgements: Acknowledgements = {}
        self._aside: deque[Aside] = deque()

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

    def unacknowledged(self) -> dict[TopicIdPartition, list[tuple[int, int]]]:
        """The first and the last offset of each range of records that are held."""
        ranges: dict[TopicIdPartition, list[tuple[int, int]]] = {}
        for partition, offsets in self._unacknowledged.items():
            for offset in sorted(offsets):
                of_partition = ranges.setdefault(partition, [])
                if of_partition and of_partition[-1][1] == offset - 1:
                    of_partition[-1] = of_partition[-1][0], offset
                else:
                    of_partition.append((offset, offset))
        return ranges

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
            if offsets:
                self._of(partition).update(dict.fromkeys(offsets, ACCEPTED))
            self._unacknowledged[partition] -= offsets  # the other thread may add to it meanwhile
        self.given = ()

    def set_aside(self) -> Aside:
        """Set the acknowledgements aside that were not sent yet.

        Who has a use for the result takes them with `take_aside`. If he is cancelled before that, the next one does.
        """
        aside, self._acknowledgements = Aside(self._acknowledgements), {}
        if aside.acknowledgements:
            self._aside.append(aside)
        return aside

    def put_back(self, aside: Aside) -> None:
        """Who took this could not send it."""
        self._aside.appendleft(aside)

    def take_aside(self, last: Aside | None = None) -> list[Aside]:
        """What was set aside, each to be sent by itself: up to `last` if that has any, or nothing if others took it."""
        if last is None or not last.acknowledgements:
            last = self._aside[-1] if self._aside else None
        if last not in self._aside:
            return []
        taken = [self._aside.popleft()]
        while taken[-1] is not last:
            taken.append(self._aside.popleft())
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
