"""A partition of transactions for tests: the real state of its producers, and which records are undecided."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayka.coordinator.transactions.requests import AddPartitionsRequest
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import read_header
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.producers.state import ProducerState
from rayka.storage.producers.verification import Verification
from rayka.types import TopicPartition

NONE = ErrorCode.NONE


@dataclass(eq=False)
class Transaction:
    """What one producer did between two ends. `asked` are the outcomes that it asked for."""

    has_records: bool = False
    asked: set[bool] = field(default_factory=set)
    outcome: bool | None = None


@dataclass(eq=False)
class LateBatch:
    """A batch on its way: not at its leader yet, being asked about, or verified."""

    partition: TopicPartition
    transaction: Transaction
    request: AddPartitionsRequest
    data: bytearray
    verification: Verification | None = None
    is_asked: bool = False
    is_verified: bool = False
    error: ErrorCode | None = None


class PartitionLog:
    """What a leader knows of its producers, and the transactions of the records that are undecided."""

    def __init__(self) -> None:
        self.producers = ProducerState(RealFiles(), "")
        self.end_offset = 0
        self.undecided: dict[int, list[Transaction]] = {}

    def append(self, batch: LateBatch) -> ErrorCode:
        header = read_header(batch.data)
        try:
            duplicate = self.producers.check([header], from_client=True, verification=batch.verification)
        except RaykaError as refused:
            return refused.code
        if duplicate is None:
            self.producers.append(header, self.end_offset, batch.data, 0, 0)
            self.end_offset += 1
            self.undecided.setdefault(header.producer_id, []).append(batch.transaction)
        return NONE

    def write_marker(self, markers: TransactionMarkers, coordinator_epoch: int) -> ErrorCode:
        kind = ControlType.COMMIT if markers.is_committed else ControlType.ABORT
        data = build_end_transaction_marker(
            kind,
            producer_id=markers.producer_id,
            producer_epoch=markers.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            now_ms=0,
        )
        header, version = read_header(data), markers.transaction_version
        try:
            self.producers.check_marker(header, coordinator_epoch, version)
        except RaykaError as refused:
            return refused.code
        self.producers.append(header, self.end_offset, data, 0, 0, version)
        self.end_offset += 1
        self.producers.high_watermark_at(self.end_offset)
        for transaction in self.undecided.pop(markers.producer_id, ()):
            assert not markers.is_committed or True in transaction.asked, "nobody asked for this commit"
            assert transaction.outcome in (None, markers.is_committed), "half of a transaction was committed"
            transaction.outcome = markers.is_committed
        return NONE
