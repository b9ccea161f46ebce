"""Acquiring records for a member, from what was read from the log.

Records are acquired again where they are AVAILABLE, and for the first time beyond the highest offset acquired so far.
Offsets that the log does not have, or that hold nothing for this group's isolation level, are archived on the way, so
that the start offset can pass them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from rayka.share.config import AcquireMode, ShareGroupConfig
from rayka.share.in_flight import InFlightBatch, InFlightBatches
from rayka.share.record_state import ACQUIRED, ARCHIVED, AVAILABLE

_LEAST_LIMIT_TO_ISOLATE: Final = 3


class LogBatch(NamedTuple):
    """A batch of the log. `is_visible` is false for control batches, and for aborted ones under read_committed."""

    first_offset: int
    last_offset: int
    is_visible: bool = True


class AcquireParams(NamedTuple):
    """What a member asks for. In BATCH_OPTIMIZED mode acquired batches end when they have `batch_size` records."""

    member_id: str
    max_records: int
    batch_size: int = 1
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class AcquiredRecords(NamedTuple):
    """Records that a member got, each for the `delivery_count`th time."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acquisition:
    """One acquisition; `acquired` are its batches. It leaves other batches, and those with a transition, alone."""

    def __init__(
        self, batches: InFlightBatches, config: ShareGroupConfig, params: AcquireParams, lock_expires_ms: int
    ) -> None:
        self._batches = batches
        self._config = config
        self._params = params
        self._lock_expires_ms = lock_expires_ms
        self._is_stopped = False
        self._count = 0
        self.acquired: list[InFlightBatch] = []

    @property
    def _left(self) -> int:
        """How many more records this fetch may acquire."""
        return 0 if self._is_stopped else self._params.max_records - self._count

    @property
    def _is_limited(self) -> bool:
        return self._params.mode is AcquireMode.RECORD_LIMIT

    def run(self, fetch_offset: int, log_batches: Iterable[LogBatch]) -> None:
        """Acquire from what was read at `fetch_offset`, as many records as may be; batches are read as needed."""
        position = fetch_offset
        if self._left <= 0:
            return
        for log_batch in log_batches:
            if log_batch.last_offset < position:
                continue
            first_offset = max(position, log_batch.first_offset)
            self._archive(position, first_offset - 1)
            if log_batch.is_visible:
                self._acquire(first_offset, log_batch.last_offset)
            else:
                self._archive(first_offset, log_batch.last_offset)
            position = log_batch.last_offset + 1
            if self._left <= 0:
                return

    def _archive(self, first_offset: int, last_offset: int) -> None:
        """Archive offsets without records for this group."""
        for batch in self._acquirable(first_offset, last_offset):
            for part in self._cut_out(batch, first_offset, last_offset):
                self._batches.set_state(part, ARCHIVED)
        begin = max(first_offset, self._batches.end_offset)
        if begin <= last_offset:
            self._batches.append(InFlightBatch(begin, last_offset, ARCHIVED))

    def _acquire(self, first_offset: int, last_offset: int) -> None:
        for batch in self._acquirable(first_offset, last_offset):
            if self._left <= 0:
                return
            self._acquire_again(batch, first_offset, last_offset)
        if self._left > 0 and last_offset >= self._batches.end_offset:
            self._acquire_new(last_offset)

    def _acquirable(self, first_offset: int, last_offset: int) -> list[InFlightBatch]:
        return [batch for batch in self._batches.within(first_offset, last_offset) if batch.is_acquirable()]

    def _cut_out(self, batch: InFlightBatch, first_offset: int, last_offset: int) -> list[InFlightBatch]:
        return self._batches.cut_out(max(first_offset, batch.first_offset), min(last_offset, batch.last_offset))

    def _acquire_again(self, batch: InFlightBatch, first_offset: int, last_offset: int) -> None:
        """Acquire the part of an available batch that was read.

        Records that are near the delivery limit come in a response of their own, in ever smaller numbers, the last
        time one by one: a record that crashes its consumers must not use up the deliveries of those around it.
        """
        first_offset = max(first_offset, batch.first_offset)
        if self._is_limited:
            last_offset = min(last_offset, first_offset + self._left - 1)
        if self._is_near_limit(batch):
            self._is_stopped = True
            if self.acquired:
                return
            last_offset = min(last_offset, first_offset + self._isolated_count(batch) - 1)
        for part in self._cut_out(batch, first_offset, last_offset):
            self._take(part)

    def _is_near_limit(self, batch: InFlightBatch) -> bool:
        config = self._config
        return (
            config.delivery_count_limit >= _LEAST_LIMIT_TO_ISOLATE
            and batch.delivery_count >= config.throttled_delivery_count
        )

    def _isolated_count(self, batch: InFlightBatch) -> int:
        if batch.delivery_count >= self._config.delivery_count_limit - 1:
            return 1
        return max(1, batch.origin_size >> (batch.delivery_count - self._config.throttled_delivery_count + 1))

    def _acquire_new(self, last_offset: int) -> None:
        """Acquire records beyond the end offset, while there is room for records in flight.

        In BATCH_OPTIMIZED mode a batch of the log is acquired as a whole where there is room for its first record.
        """
        first_offset = self._batches.end_offset
        room = self._batches.room(self._config.partition_max_record_locks)
        if room <= 0:
            self._is_stopped = True
            return
        if self._is_limited and room < min(self._left, last_offset - first_offset + 1):
            self._is_stopped = True
            last_offset = first_offset + room - 1
        elif self._is_limited:
            last_offset = min(last_offset, first_offset + self._left - 1)
        batch = InFlightBatch(first_offset, last_offset, AVAILABLE)
        self._batches.append(batch)
        self._take(batch)

    def _take(self, batch: InFlightBatch) -> None:
        self._count += batch.size
        self._batches.set_state(batch, ACQUIRED)
        batch.delivery_count += 1
        batch.member_id = self._params.member_id
        batch.lock_expires_ms = self._lock_expires_ms
        last = self.acquired[-1] if self.acquired else None
        if last is not None and self._may_join(last, batch):
            self._batches.join(last, batch)
        else:
            self.acquired.append(batch)

    def _may_join(self, last: InFlightBatch, batch: InFlightBatch) -> bool:
        return (
            last.last_offset + 1 == batch.first_offset
            and last.delivery_count == batch.delivery_count
            and (self._is_limited or last.size < self._params.batch_size)
        )
