"""The position of a consumer in each of its partitions, and the prefetched records."""

from __future__ import annotations

import uuid
from collections import deque

from rayka.client.consumer.completed_fetch import CompletedFetch
from rayka.client.consumer.sequence import ConsumerRecords
from rayka.client.consumer.stored import FetchedBatches, StoredFetch
from rayka.errors import ErrorCode, RaykaError
from rayka.types import NO_OFFSET, OffsetSpec, TopicPartition

_TABLES_AFTER_SEEK = 2
"""A program that seeks or pauses before each table would not need those that are made ahead."""


class AssignedPartition:
    """One partition of a consumer.

    `position` is the offset of the next record for the program, None until it is known; `reset` then says
    how to find it. `fetch_offset` is where the next fetch begins. `round` grows when what is on its way is
    no longer wanted. The position is one in the topic with `topic_id`, not in another one of the same name.
    """

    __slots__ = (
        "backing_off",
        "buffered_bytes",
        "check_until",
        "completed_fetches",
        "error",
        "fetch_offset",
        "has_large_batches",
        "high_watermark",
        "is_fetching",
        "is_paused",
        "last_stable_offset",
        "log_start_offset",
        "lost_reads",
        "position",
        "reset",
        "round",
        "tables_before_ahead",
        "topic_id",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.topic_id: uuid.UUID | None = None
        self.position: int | None = None
        self.fetch_offset = NO_OFFSET
        self.reset: OffsetSpec | None = None
        self.round = 0
        self.is_fetching = False
        self.is_paused = False
        self.backing_off = False
        self.has_large_batches = False
        self.check_until = 0
        """No table could be made of what is before this offset: fetches of that end before a damaged batch."""
        self.tables_before_ahead = 1
        """So many more tables are taken from here before the next ones are made ahead."""
        self.lost_reads = 0
        """So many times in a row the file ended before the records that the leader named."""
        self.error: RaykaError | None = None
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.completed_fetches: deque[CompletedFetch | StoredFetch] = deque()
        self.buffered_bytes = 0

    def pause(self) -> None:
        """Return no records. What was made of them ahead is dropped: they may be paused for long."""
        self.is_paused, self.tables_before_ahead = True, _TABLES_AFTER_SEEK
        for each in self.completed_fetches:
            if isinstance(each, StoredFetch):
                each.drop_part()

    def seek(self, offset: int) -> None:
        """Continue at this offset; what was read ahead is dropped."""
        self.forget()
        self.found(offset)

    def seek_by(self, reset: OffsetSpec | None) -> None:
        """Continue where the log begins or ends, once that is known; None: where the settings say."""
        self.forget()
        self.position, self.fetch_offset, self.reset = None, NO_OFFSET, reset
        self.check_until = 0

    @property
    def must_check(self) -> bool:
        """Whether a fetch that begins now may have the damaged batch."""
        return self.fetch_offset < self.check_until

    def found(self, offset: int) -> None:
        """The offset that a look-up found for the position."""
        self.position = self.fetch_offset = offset
        self.reset = None

    def forget(self) -> None:
        """Drop what was read ahead, what is on its way, and the error."""
        self.completed_fetches.clear()
        self.buffered_bytes = 0
        self.round += 1
        self.lost_reads = 0
        self.is_fetching = self.backing_off = False
        self.tables_before_ahead = _TABLES_AFTER_SEEK
        self.error = None
        if self.position is not None:
            self.fetch_offset = self.position

    def forget_stored(self) -> None:
        """Drop what was read ahead for tables only, if there is any."""
        if any(isinstance(each, StoredFetch) for each in self.completed_fetches):
            self.forget()

    def put(self, completed_fetch: CompletedFetch | StoredFetch) -> None:
        """Add what a fetch brought."""
        self.completed_fetches.append(completed_fetch)
        self.lost_reads = 0
        self.buffered_bytes += completed_fetch.held_bytes
        self.fetch_offset = completed_fetch.next_offset

    def take(self, limit: int) -> ConsumerRecords:
        """At most `limit` records from the position on, which moves behind them. None may be stored.

        One that can't be read sets `error`, and the position stays there.
        """
        taken = ConsumerRecords()
        while self.completed_fetches and len(taken) < limit:
            completed_fetch = self.completed_fetches[0]
            assert isinstance(completed_fetch, CompletedFetch)
            try:
                records = completed_fetch.take(limit - len(taken))
            except RaykaError as error:
                self.forget()
                self.error = error
                break
            taken.extend(records)
            self._moved(records)
        return taken

    def take_batches(self, enough_bytes: float) -> list[FetchedBatches]:
        """Of what is read ahead as many fetches as have `enough_bytes`, above 0. The position moves behind them."""
        taken: list[FetchedBatches] = []
        self.tables_before_ahead = max(self.tables_before_ahead - 1, 0)
        while self.completed_fetches and enough_bytes > 0:
            completed_fetch = self.completed_fetches.popleft()
            enough_bytes -= completed_fetch.size
            self.buffered_bytes -= completed_fetch.held_bytes
            batches = completed_fetch.batches
            position = max(batches.position, self.position or 0)
            taken.append(batches._replace(position=position, topic_id=self.topic_id))
            self.position = batches.next_offset
        return taken

    def _moved(self, records: ConsumerRecords) -> None:
        if records:
            self.position = records.last_offset + 1
        else:
            done = self.completed_fetches.popleft()
            self.buffered_bytes -= done.held_bytes
            self.position = done.next_offset


def require_topic_partition(partition: tuple[str, int]) -> TopicPartition:
    """What a program gave for a partition. Raises INVALID_REQUEST for anything else."""
    match partition:
        case (str(), int()):
            return TopicPartition(*partition)
    raise RaykaError(ErrorCode.INVALID_REQUEST, f"a partition is TopicPartition(topic, number), not {partition!r}")
