"""Takes what was fetched for the program, and knows what the program has received.

What a poll takes is pending until its caller has it, and returns to the fetcher if the caller goes without. So a poll
that was cancelled or interrupted loses no records, and a commit never covers records that nobody has received.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import cast

from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.pending import PendingRecords, Polled, TablesBeingMade, unread
from rayka.client.consumer.positions import AssignedPartition
from rayka.client.consumer.read_ahead import FOR_BATCHES, FOR_RECORDS, FOR_TABLES
from rayka.client.consumer.records import RecordBatches
from rayka.client.consumer.sequence import ConsumerRecords
from rayka.client.consumer.stored import BeginPart, FetchedBatches
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition

_QUICK_S = 0.1
_TABLE_BYTES = 16 << 20
"""A table gets no more fetches than make so much: while it is decoded, the next ones are read."""
_VIEWED_BYTES = 32 << 20
"""The same, where values are not copied: what Python does for a table is more of the work then."""


class FetchCollector:
    """What one consumer takes from its fetcher.

    It lives in the event loop. Any thread may call `position`, `received` and `begin_table`, and use `pending` and
    `tables_being_made` as these say.

    A poll takes with `collect` or `collect_for_table`, and iteration with `fill`: these mark what they take as pending.
    `take` and `take_batches` do not: `collect` takes with one of them. Iteration gets `max_poll_records` at a time, and
    up to `max_fill_records` while the program takes them quickly.
    """

    def __init__(self, fetcher: Fetcher, max_poll_records: int, max_fill_records: int) -> None:
        self._fetcher = fetcher
        self._ready = fetcher.ready
        fetcher.on_recreated = self._recreated
        self.pending = PendingRecords()
        self.tables_being_made = TablesBeingMade()
        self._tables_of_one = 0
        """So many of the next tables get one fetch, of one partition."""
        self._taken_last: AssignedPartition | None = None
        """From which records were taken last, or could not be taken."""
        self._max_poll_records = max_poll_records
        self._max_fill_records = max_fill_records
        self._fill_limit = max_poll_records
        self._filled_s = 0.0

    def collect(self, take: Callable[[], Polled]) -> Polled:
        """What `take` takes for a poll, which is pending until `pending.end_delivery`. What earlier polls have taken
        and nobody has received is returned first.
        """
        self.return_pending()
        return self._take_all(lambda: self.pending.begin_delivery(take()))

    def collect_for_table(self, begin_part: BeginPart, copy: bool) -> dict[TopicPartition, list[FetchedBatches]]:
        """As `collect` of `take_batches`, but as many fetches as are enough for a table, and some may still be in their
        files. Of large ones that come next `begin_part` makes parts of the next tables.
        """
        enough_bytes = 1 if self._tables_of_one else _TABLE_BYTES if copy else _VIEWED_BYTES
        polled = self.collect(partial(self._take_for_table, enough_bytes, begin_part))
        if polled and self._tables_of_one:
            self._tables_of_one -= 1
        return polled

    def take(self, limit: int) -> dict[TopicPartition, ConsumerRecords]:
        """For `collect`: at most `limit` prefetched records. Raises a partition's error if there are none before it."""
        self._fetcher.will_take(FOR_RECORDS)
        taken: dict[TopicPartition, ConsumerRecords] = {}
        for state in self._ready.readable():
            self._taken_last = state
            if state.error is None or state.completed_fetches:
                records = state.take(limit)
                limit -= len(records)
                if records:
                    taken[state.topic_partition] = records
                    self._ready.end_turn(state)
            if state.error is not None and not taken:
                self._fetcher.raise_error(state)
            if limit <= 0:
                break
        self._fetcher.pump()
        return taken

    def take_batches(self) -> dict[TopicPartition, list[RecordBatches]]:
        """For `collect`: all prefetched record batches. Raises a partition's error if there are none before it."""
        self._fetcher.will_take(FOR_BATCHES)
        return cast(dict[TopicPartition, list[RecordBatches]], self._take_batches(inf))

    def _take_for_table(self, enough_bytes: int, begin_part: BeginPart) -> dict[TopicPartition, list[FetchedBatches]]:
        self._fetcher.will_take(FOR_TABLES)
        self._fetcher.begin_parts_with(begin_part, enough_bytes)
        return self._take_batches(enough_bytes)

    def _take_batches(self, enough_bytes: float) -> dict[TopicPartition, list[FetchedBatches]]:
        taken: dict[TopicPartition, list[FetchedBatches]] = {}
        for state in self._ready.readable():
            self._taken_last = state
            if state.completed_fetches:
                if batches := self._fetcher.take_batches(state, enough_bytes):
                    taken[state.topic_partition] = batches
                    enough_bytes -= sum(each.size for each in batches)
                self._ready.end_turn(state)
                if enough_bytes <= 0:
                    break
            elif not taken:
                self._fetcher.raise_error(state)
        self._fetcher.pump()
        return taken

    def fill(self) -> dict[TopicPartition, ConsumerRecords]:
        """Put the next records into `pending`, for iteration. Raises as `take`."""
        self._fetcher.check_topic_ids()
        self._return(self.pending.polled)
        taken = self._take_all(lambda: self.pending.add(self.take(self._fill_limit)))
        if taken:
            now_s, least = time.monotonic(), self._max_poll_records
            is_quick = now_s - self._filled_s < _QUICK_S
            self._fill_limit = max(min(self._fill_limit * 2, self._max_fill_records), least) if is_quick else least
            self._filled_s = now_s
        return taken

    def _take_all(self, take: Callable[[], Polled]) -> Polled:
        """What `take` takes. If it fails half-way, say for lack of memory, nobody has that: it is fetched again."""
        positions = self._positions_now()
        with self.pending.taking(positions):
            try:
                return take()
            except RaykaError:  # one is raised only if nothing was taken
                raise
            except BaseException:
                self._fetcher.fetch_again(positions, self._taken_last)
                raise

    def _positions_now(self) -> dict[TopicPartition, int]:
        states = self._fetcher.partitions.values()
        return {state.topic_partition: state.position for state in states if state.position is not None}

    def begin_table(self, polled: Mapping[TopicPartition, Sequence[FetchedBatches]]) -> dict[TopicPartition, int]:
        """A table of this is being made, which the program has not received. Gives the partitions for which that holds,
        for `tables_being_made.end`.
        """
        pending = self.pending.polled
        taken = {each: offset for each, offset in unread(polled).items() if pending.get(each) == offset}
        return self.tables_being_made.begin(taken)

    def give_back(
        self,
        polled: Mapping[TopicPartition, Sequence[FetchedBatches]],
        wanted: Container[TopicPartition],
        rest: Mapping[TopicPartition, int] | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Return batches that nobody has received to the fetcher: those from the offsets in `rest` on, or all if no
        table was made of them. Only of `wanted` partitions, and not if a partition is not assigned any more, is that of
        another topic of this name, or goes on before them. After the `error` CORRUPT_MESSAGE the batches before the
        damaged one come first.
        """
        self._fetcher.check_topic_ids()
        if rest is None:
            rest = unread(polled)
            self._tables_of_one = len(self._fetcher.partitions)  # what can't be read keeps no other from being read
        offsets = {
            each: offset
            for each, offset in rest.items()
            if each in wanted and self._is_behind(each, offset, polled[each][0].topic_id)
        }
        if isinstance(error, RaykaError) and error.code is ErrorCode.CORRUPT_MESSAGE:
            for each in offsets:
                self._fetcher.partitions[each].check_until = polled[each][-1].next_offset
        self._return(offsets, isinstance(error, OSError))

    def _is_behind(self, partition: TopicPartition, offset: int, topic_id: uuid.UUID | None) -> bool:
        """Whether the partition of this topic is read, and goes on at or behind this offset."""
        state = self._fetcher.partitions.get(partition)
        if state is None or state.topic_id != topic_id:
            return False
        return state.position is None or offset <= state.position

    def return_pending(self) -> None:
        """Return records to the fetcher that the program has not received."""
        self._fetcher.check_topic_ids()
        self._return(self.pending.first_offsets())

    def close(self) -> None:
        """Close the fetcher. The positions stay behind what the program has received."""
        self._fetcher.close()
        self._return(self.pending.first_offsets())

    def _return(self, offsets: Mapping[TopicPartition, int], is_unreadable: bool = False) -> None:
        for partition, offset in [*offsets.items()]:
            state = self._fetcher.partitions.get(partition)
            if state is None:  # given up meanwhile
                self._drop_pending(partition)
                continue
            seek = partial(self._fetcher.seek_later, state) if is_unreadable else state.seek
            self._reposition(state, partial(seek, offset))

    def position(self, state: AssignedPartition) -> int | None:
        """Where the program goes on. For any thread: what is taken is pending before the position moves forward, and
        what is given back until it has moved back. Records may be taken and given back while it is found out.
        """
        first, before, position = state.position, self.pending.first_offsets(), state.position
        after, partition, last = self.pending.first_offsets(), state.topic_partition, state.position
        if first is None or position is None or last is None:
            return after.get(partition)
        return min(first, before.get(partition, first), position, after.get(partition, first), last)

    def received(self, state: AssignedPartition) -> int | None:
        """Behind what the program has received: the position, or where a table begins that is being made."""
        position, partition = self.position(state), state.topic_partition
        return None if position is None else self.tables_being_made.first_offset(partition, position)

    def seek(self, state: AssignedPartition, move: Callable[[], None]) -> None:
        """Continue where `move` puts the position, for the program; also if a table that is being made fails."""
        self.tables_being_made.keep(lambda partition: partition != state.topic_partition)
        self._reposition(state, move)

    def pause(self, states: Iterable[AssignedPartition]) -> None:
        """Take no records of these until they are resumed, and return those that iteration has not given out."""
        first_offsets = self.pending.first_offsets()
        for state in states:
            state.pause()
            if (offset := first_offsets.get(state.topic_partition)) is not None:
                self._reposition(state, partial(state.seek, offset))

    def _reposition(self, state: AssignedPartition, move: Callable[[], None]) -> None:
        """Move the position, and drop records that iteration has not returned."""
        move()
        self._drop_pending(state.topic_partition)
        self._fetcher.pump()

    def forget_unassigned(self) -> None:
        """Drop what belongs to partitions that are not assigned any more."""
        is_assigned = self._fetcher.partitions.__contains__
        self.pending.keep(is_assigned)
        self.tables_being_made.keep(is_assigned)

    def _recreated(self, topic_partition: TopicPartition) -> None:
        self.tables_being_made.keep(lambda partition: partition != topic_partition)
        self._drop_pending(topic_partition)

    def _drop_pending(self, topic_partition: TopicPartition) -> None:
        self.pending.keep(lambda partition: partition != topic_partition)
