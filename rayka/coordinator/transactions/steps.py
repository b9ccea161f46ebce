"""Steps to take when the records of a command are in the log, and deadlines to wait for, as values."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

from rayka.coordinator.transactions.requests import TransactionRequest
from rayka.types import TopicPartition


class TransactionMarkers(NamedTuple):
    """Markers to be written to each of the partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_committed: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class TransactionTimer(enum.Enum):
    """The kinds of deadlines."""

    TRANSACTION = enum.auto()
    WAIT = enum.auto()
    EXPIRY = enum.auto()


class TransactionTimerKey(NamedTuple):
    """A deadline of the coordinator, of a transactional id, or of a request that waits."""

    timer: TransactionTimer
    transactional_id: str = ""
    request_id: int = 0


@dataclass(frozen=True, slots=True)
class MovePartitions:
    """Step: `count` partitions were added."""

    transactional_id: str
    count: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Step: a request waits until markers are written, and is carried out then; after `max_wait_ms` it gets `late`."""

    request_id: int
    request: TransactionRequest[Any]
    late: Any
    max_wait_ms: int


@dataclass(frozen=True, slots=True)
class Move:
    """Step: the transactional id has its next state. `failure` answers a failed append; `wait` begins with the step."""

    transactional_id: str
    failure: type[Any] | None = None
    wait: Wait | None = None
