"""Records that were taken from fetches and not yet returned to the program."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from rayka.client.consumer.records import ConsumerRecord, RecordBatches
from rayka.client.consumer.sequence import BLOCK_RECORDS, ConsumerRecords, MadeRecords
from rayka.client.consumer.stored import FetchedBatches
from rayka.errors import RaykaError
from rayka.types import TopicPartition

Polled = TypeVar(
    "Polled",
    bound=Mapping[TopicPartition, ConsumerRecords]
    | Mapping[TopicPartition, list[RecordBatches]]
    | Mapping[TopicPartition, list[FetchedBatches]],
)


class RecordPlace(NamedTuple):
    """The partition and the offset of a record."""

    topic_partition: TopicPartition
    offset: int


class PendingRecords:
    """Records in the order in which iteration gives them out. `made` are the next of them, all of one partition.

    What a poll takes in the client's loop is pending until its caller has it: in another loop, that may have cancelled
    the poll meanwhile.

    `block_records` are made at a time. After `until_s`, on the monotonic clock, a poll comes before more are made.
    """

    def __init__(self) -> None:
        self.block_records = BLOCK_RECORDS
        self.until_s = float("inf")
        self.made: deque[ConsumerRecord] = deque()
        self._waiting: deque[tuple[TopicPartition, ConsumerRecords]] = deque()
        self.polled: dict[TopicPartition, int] = {}
        """Where the records begin that a poll took and whose caller does not have them yet."""

    def __bool__(self) -> bool:
        return bool(self.made or self._waiting)

    def add(self, taken: dict[TopicPartition, ConsumerRecords]) -> dict[TopicPartition, ConsumerRecords]:
        """Append what a fetcher gave, partition by partition: all of it, or nothing if that fails. Returns it."""
        before = len(self._waiting)
        try:
            self._waiting.extend((partition, records) for partition, records in taken.items() if records)
        except BaseException:
            while len(self._waiting) > before:
                self._waiting.pop()
            raise
        return taken

    @contextlib.contextmanager
    def taking(self, positions: Mapping[TopicPartition, int]) -> Iterator[None]:
        """While records are taken from these positions on, all of them count as pending: another thread may commit."""
        marked = self.polled = dict(positions)
        try:
            yield
        finally:
            if self.polled is marked:
                self.polled = {}

    def begin_delivery(self, polled: Polled) -> Polled:
        """A poll has taken this; it is pending until `end_delivery`."""
        self.polled = unread(polled)
        return polled

    def end_delivery(self, polled: Mapping[TopicPartition, Any] | None) -> None:
        """The caller of the poll has what it took. May be called in the caller's thread.

        If that is nothing, what an earlier poll took stays pending: during a rebalance a poll takes nothing back.
        """
        delivered, pending = unread(polled or {}), self.polled
        if pending.items() <= delivered.items():
            pending.clear()  # at once: Ctrl-C would leave some of them neither delivered nor pending
            return
        for partition, offset in delivered.items():
            if pending.get(partition) == offset:  # else another poll has taken since
                pending.pop(partition, None)

    def popleft(self) -> ConsumerRecord:
        """The next record. Raises IndexError where `make` makes none."""
        if not self.made:
            self.make()
        record = self.made[0]
        del self.made[0]  # `popleft` could be interrupted (Ctrl-C) before the record is in a variable
        return record

    def next_place(self) -> RecordPlace | None:
        """Where the next record is, which is not made for this; None if there are no more."""
        for record in islice(self.made, 1):
            return RecordPlace(record.topic_partition, record.offset)
        for partition, records in islice(self._waiting, 1):
            return RecordPlace(partition, records.first_offset)
        return None

    def take(self, limit: int) -> ConsumerRecords:
        """The next records, at most `limit` and all of one partition, not made for this; none if there are no more."""
        if self.made:
            taken, made = ConsumerRecords(), MadeRecords()
            while self.made and len(made) < limit:
                made.append(self.made.popleft())
            taken.append(made, 0, len(made))
            return taken
        if not self._waiting:
            return ConsumerRecords()
        partition, records = self._waiting[0]
        taken, left = records.between(0, limit), (partition, records.between(limit, len(records)))
        if len(records) > limit:
            self._waiting[0] = left
        else:
            del self._waiting[0]
        return taken

    def make(self) -> bool:
        """Make some records, when none that are made are left; False if there are no more, or a poll comes before.

        Raises CORRUPT_MESSAGE for one that can't be read, which stays the next.
        """
        if monotonic() > self.until_s or not self._waiting:
            return False
        partition, records = first = self._waiting[0]
        made: list[ConsumerRecord] = []
        try:
            made.extend(records.between(0, self.block_records))
        except RaykaError:
            if not made:
                raise
        left, is_last = (partition, records.between(len(made), len(records))), len(made) == len(records)
        if not self._waiting or self._waiting[0] is not first:
            return True  # another thread has dropped them
        are_there = False
        try:
            self.made.extend(made)
            are_there = True  # a signal handler may already have taken them
        except MemoryError:
            self.made.clear()
            raise
        finally:  # also at Ctrl-C, which comes as soon as they are there: none may be lost or come twice
            if not self._waiting or self._waiting[0] is not first:
                self.made.clear()
            elif (self.made or are_there) and is_last:
                del self._waiting[0]
            elif self.made or are_there:
                self._waiting[0] = left
        return True

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the next record of each partition that has one."""
        polled = dict(self.polled)  # first, as what is taken is put into `_waiting` before it is none of these
        waiting = [*self._waiting]  # before `made`: what is made waits until it is there
        offsets = {partition: records.first_offset for partition, records in reversed(waiting)}
        with contextlib.suppress(IndexError):  # an iterator would not allow that others take from it
            record = self.made[0]
            offsets[record.topic_partition] = record.offset
        return offsets | polled

    def keep(self, is_wanted: Callable[[TopicPartition], bool]) -> None:
        """Drop the records of all other partitions."""
        while unwanted := [each for each in [*self._waiting] if not is_wanted(each[0])]:
            for each in unwanted:
                with contextlib.suppress(ValueError, IndexError):  # the caller's thread may have made some meanwhile
                    self._waiting.remove(each)
        with contextlib.suppress(IndexError):  # last, as that thread looks whether they wait when it has made some
            while not is_wanted((record := self.made[0]).topic_partition):
                if self.made[0] is record:  # or else it has gone on, maybe to another partition
                    del self.made[0]
        for partition in [*self.polled]:  # the caller's thread may clear it meanwhile
            if not is_wanted(partition):
                self.polled.pop(partition, None)


def unread(polled: Mapping[TopicPartition, ConsumerRecords | Sequence[FetchedBatches]]) -> dict[TopicPartition, int]:
    """Where the records of each partition begin, which was its position before they were taken."""
    return {
        partition: records.first_offset if isinstance(records, ConsumerRecords) else records[0].position
        for partition, records in polled.items()
    }


class TablesBeingMade:
    """Where the records begin of the tables that other threads make.

    The program has not received them, nor has it said since where to continue in their partitions. Any thread may ask.
    """

    def __init__(self) -> None:
        self._begun: dict[int, dict[TopicPartition, int]] = {}

    def begin(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """A table with records from these offsets on is being made until `end`. Gives those that still count."""
        begun = dict(offsets)
        self._begun[id(begun)] = begun
        return begun

    def end(self, begun: Mapping[TopicPartition, int]) -> None:
        """What `begin` gave counts no more. Safe to repeat."""
        self._begun.pop(id(begun), None)

    def keep(self, is_wanted: Callable[[TopicPartition], bool]) -> None:
        """In all other partitions they say nothing any more about where to continue."""
        for begun in [*self._begun.values()]:
            for partition in [*begun]:
                if not is_wanted(partition):
                    begun.pop(partition, None)

    def first_offset(self, partition: TopicPartition, position: int) -> int:
        """The first offset of a partition that one has, or `position` if none has an earlier one."""
        offsets = [begun.get(partition) for begun in [*self._begun.values()]]
        return min([position, *(offset for offset in offsets if offset is not None)])
