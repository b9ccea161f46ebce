"""What a log remembers of one producer: its epoch and its last five batches (KIP-98, KIP-360)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import MAX_SEQUENCE, BatchHeader
from rayka.types import NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

RETAINED_BATCHES = 5
"""A producer has at most this many requests in flight, so a duplicate is one of them."""
NO_COORDINATOR_EPOCH = -1


class AppendedBatch(NamedTuple):
    """A batch that was appended: `offset_delta` is its last offset less its first, `timestamp` its largest."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        """Sequences wrap to 0 after 2^31 - 1."""
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE


class ProducerEntry:
    """One producer's state. `current_txn_first_offset` is -1 outside a transaction."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_seen_ms",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, producer_id: int, producer_epoch: int = NO_PRODUCER_EPOCH) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.batches: deque[AppendedBatch] = deque(maxlen=RETAINED_BATCHES)
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.last_seen_ms = NO_TIMESTAMP
        """When the broker appended the last batch, by the broker's clock: old records do not make an old producer."""
        self.current_txn_first_offset = NO_OFFSET

    def copy(self) -> ProducerEntry:
        """An entry to try changes on."""
        entry = ProducerEntry(self.producer_id, self.producer_epoch)
        entry.batches = self.batches.copy()
        entry.coordinator_epoch = self.coordinator_epoch
        entry.last_seen_ms = self.last_seen_ms
        entry.current_txn_first_offset = self.current_txn_first_offset
        return entry

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 when no batch is remembered."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the last record, -1 when no batch is remembered."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def find_duplicate(self, header: BatchHeader) -> AppendedBatch | None:
        """The remembered batch with the same sequences, if the producer sent this one before."""
        if header.producer_epoch != self.producer_epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        return None

    def is_next(self, header: BatchHeader) -> bool:
        """Whether the batch has the epoch and the sequence that come next. One that has not may follow all the same."""
        batches = self.batches
        last_sequence = batches[-1].last_sequence if batches else NO_SEQUENCE
        return header.base_sequence == last_sequence + 1 and header.producer_epoch == self.producer_epoch

    def check(self, header: BatchHeader) -> None:
        """Whether the batch may follow.

        Raises INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or INVALID_TXN_STATE.
        """
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch == self.producer_epoch:
            last = self.last_sequence
            if sequence != last + 1 and not (sequence == 0 and last == MAX_SEQUENCE):
                self._refuse_sequence(header, f"after {last}")
        elif epoch < self.producer_epoch:
            raise RaykaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch {epoch} of producer {self.producer_id} is older than the last seen epoch {self.producer_epoch}",
            )
        elif sequence != 0 and self.producer_epoch != NO_PRODUCER_EPOCH:
            self._refuse_sequence(header, f"at the start of an epoch; the epoch before was {self.producer_epoch}")
        if self.current_txn_first_offset >= 0 and not header.is_transactional:
            raise RaykaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {self.producer_id} has a transaction open since offset {self.current_txn_first_offset}"
                " and sent a batch outside of it",
            )

    def _refuse_sequence(self, header: BatchHeader, where: str) -> None:
        raise RaykaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Sequence {header.base_sequence} of producer {self.producer_id} in epoch {header.producer_epoch}"
            f" came {where}",
        )

    def append(self, header: BatchHeader, last_offset: int, seen_ms: int) -> None:
        """Remember a batch that was appended at `seen_ms`."""
        if header.producer_epoch != self.producer_epoch:
            self.move_to_epoch(header.producer_epoch)
        delta, timestamp = header.last_offset_delta, header.max_timestamp
        self.batches.append(AppendedBatch(header.last_sequence, last_offset, delta, timestamp))
        self.last_seen_ms = seen_ms

    def move_to_epoch(self, producer_epoch: int) -> None:
        """A new epoch begins with no batches."""
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches.clear()
