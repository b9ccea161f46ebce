"""What a coordinator knows of one transactional id, as an immutable value with its transitions.

A transition returns the next value and changes nothing; what may happen in which state is for the coordinator to say.

Producer epochs end at 32767, which only fences: no client is ever given it. With transaction version 2 (KIP-890) each
end of a transaction moves to the next epoch. Where that would be the last, the markers are written with it, and the
producer continues with a new id, which was chosen beforehand, from epoch 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayka.coordinator.transactions.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    VALID_PREVIOUS_STATES,
    TransactionState,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

MAX_EPOCH = 0x7FFF
NO_TIMEOUT_MS = 0x7FFF_FFFF
"""The timeout of a transaction that never times out, with two-phase commit (KIP-939)."""
FIRST_WITH_EPOCH_BUMP = 2
"""The transaction version from which on every transaction has an epoch of its own (KIP-890)."""


def is_epoch_exhausted(producer_epoch: int) -> bool:
    """Whether a producer id has no epoch left after this one."""
    return producer_epoch >= MAX_EPOCH - 1


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """Times are wall-clock milliseconds, -1 for none.

    `last_producer_epoch` is not stored: it lets a producer repeat an InitProducerId that was carried out.
    `previous_producer_id` is the id before the last transition, `next_producer_id` the one after the present markers.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    last_update_ms: int
    state: TransactionState = EMPTY
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    client_transaction_version: int = 0

    @property
    def times_out(self) -> bool:
        """Whether the coordinator aborts a transaction that is open for too long."""
        return self.timeout_ms != NO_TIMEOUT_MS

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the producer needs a new id next."""
        return is_epoch_exhausted(self.producer_epoch)

    @property
    def next_producer(self) -> tuple[int, int]:
        """The producer id and epoch of the next transaction: its client has them before the markers are written."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch

    def needs_new_id(self, expected_epoch: int) -> bool:
        """Whether a producer that begins needs a new id; `expected_epoch` is the one that it had, -1 if it is new.

        That is also so for one which was fenced in the last epoch of its id.
        """
        last = self.last_producer_epoch if self.producer_epoch == MAX_EPOCH else NO_PRODUCER_EPOCH
        return self.is_epoch_exhausted and expected_epoch in (NO_PRODUCER_EPOCH, self.producer_epoch, last)

    def increment_epoch(self, timeout_ms: int, expected_epoch: int, now_ms: int) -> TransactionMetadata:
        """A producer begins, or continues after an error with the epoch that it had (KIP-360), else -1.

        A producer that repeats its request gets the same epoch. Raises PRODUCER_FENCED for any other epoch.
        """
        epoch, last = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected_epoch != NO_PRODUCER_EPOCH:
            if expected_epoch == self.producer_epoch:
                last = self.producer_epoch
            elif expected_epoch == self.last_producer_epoch:
                epoch, last = self.producer_epoch, self.last_producer_epoch
            else:
                raise RaykaError(ErrorCode.PRODUCER_FENCED)
        return self._begin(self.producer_id, epoch, last, timeout_ms, now_ms)

    def rotate_producer_id(
        self, producer_id: int, expected_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        """A producer begins with a new id because the epochs of the old one are used up."""
        return self._begin(producer_id, 0, expected_epoch, timeout_ms, now_ms)

    def _begin(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        return self._move(
            EMPTY,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=NO_PRODUCER_ID,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            last_update_ms=now_ms,
        )

    def add_partitions(
        self, partitions: frozenset[TopicPartition], transaction_version: int, now_ms: int
    ) -> TransactionMetadata:
        """Add partitions. The first ones begin the transaction."""
        return self._move(
            ONGOING,
            partitions=self.partitions | partitions,
            start_ms=self.start_ms if self.state is ONGOING else now_ms,
            client_transaction_version=transaction_version,
            last_update_ms=now_ms,
        )

    def decide(
        self, *, is_committed: bool, transaction_version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """Commit or abort, as the client asked. `next_producer_id` is -1 unless the epochs of this id are used up."""
        bumps = transaction_version >= FIRST_WITH_EPOCH_BUMP and self.producer_epoch < MAX_EPOCH
        return self._move(
            PREPARE_COMMIT if is_committed else PREPARE_ABORT,
            producer_epoch=self.producer_epoch + 1 if bumps else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if bumps else self.last_producer_epoch,
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if self.state is ONGOING else now_ms,
            client_transaction_version=transaction_version,
            last_update_ms=now_ms,
        )

    def fence(self, now_ms: int) -> TransactionMetadata:
        """Abort in the next epoch. Unless another producer replaces this one, it may continue in that epoch."""
        return self._move(
            PREPARE_ABORT,
            producer_epoch=min(self.producer_epoch + 1, MAX_EPOCH),
            last_producer_epoch=self.producer_epoch,
            last_update_ms=now_ms,
        )

    def complete(self, now_ms: int) -> TransactionMetadata:
        """All markers are written."""
        producer_id, producer_epoch = self.next_producer
        return self._move(
            COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )

    def _move(self, state: TransactionState, **changes: object) -> TransactionMetadata:
        assert self.state in VALID_PREVIOUS_STATES[state], (self.state, state)
        return replace(self, state=state, previous_producer_id=self.producer_id, **changes)  # type: ignore[arg-type]
