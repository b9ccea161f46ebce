"""The transaction coordinator's core behind the gateway's port, in the event loop: one coordinator for all ids.

Markers are written to the replicas at once, before the response leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from rayka.coordinator.clock import Now
from rayka.coordinator.request import Request
from rayka.coordinator.result import Pending, Result
from rayka.coordinator.spec import partition_for
from rayka.coordinator.transactions.coordinator import TransactionCoordinator
from rayka.coordinator.transactions.requests import AddPartitionsRequest, MarkersWrittenRequest
from rayka.coordinator.transactions.settings import TransactionSettings
from rayka.coordinator.transactions.spec import TRANSACTIONS
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import BrokerImage
from rayka.storage.format.batch import read_header
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.producers.verification import Verification
from rayka.types import AppendParams, AppendRequest, TopicPartition, TransactionSupport, TxnMarker

if TYPE_CHECKING:
    from tests.support.local_broker import LocalBroker

COORDINATORS = 3
R = TypeVar("R")


class LocalTransactions:
    """`ports.Groups`, by transactional id."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self.core = TransactionCoordinator(TransactionSettings.parse(broker.config))
        self.core.on_loaded(self._now())
        self.failure: RaykaError | None = None
        self._waited: dict[int, Any] = {}

    async def coordinator_of(self, transactional_id: str) -> BrokerImage:
        return self._broker.image.brokers[self._broker.node_id]

    def partition_of(self, transactional_id: str) -> int:
        return partition_for(transactional_id, COORDINATORS)

    async def execute_all(self, request: Request[R], node_id: int | None = None) -> list[R]:
        return [await self.execute(request)]

    async def execute(self, request: Request[R]) -> R:
        return self.execute_now(request)

    def execute_now(self, request: Request[R]) -> R:
        if self.failure is not None:
            raise self.failure
        kind = type(request)
        if kind in TRANSACTIONS.queries:
            found: R = TRANSACTIONS.queries[kind](self.core, request)
            return found
        result = TRANSACTIONS.commands[kind](self.core, request, self._now())
        self._carry_out(result)
        for markers in self.core.take_markers():
            self._write(markers)
        waits = isinstance(result.response, Pending)
        answer: R = self._waited.pop(result.response.request_id) if waits else result.response
        return answer

    def _carry_out(self, result: Result[Any]) -> None:
        for record in result.records:
            key, value = TRANSACTIONS.encode(record)
            self.core.replay(TRANSACTIONS.decode(key, value))
        if result.step is not None:
            for request_id, response in self.core.commit(result.step, self._now()):
                self._waited[request_id] = self.execute_now(response.request)

    def _write(self, markers: TransactionMarkers) -> None:
        producer = markers.producer_id, markers.producer_epoch
        marker = TxnMarker(*producer, 0, markers.is_committed, markers.transaction_version, markers.partitions)
        # Offsets of groups are in no log here.
        assert set(write_marker(self._broker, marker)) <= {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        self.execute_now(MarkersWrittenRequest(markers.transactional_id, *producer))

    def verify(self, request: AppendRequest, params: AppendParams) -> Verification | None:
        """What the append of a batch needs. Raises the coordinator's error."""
        if params.transactional_id is None or request.topic_partition not in self._broker.partitions.replicas:
            return None
        partition = self._broker.partitions.replicas.get(request.topic_partition)
        verification = partition.begin_verification(request, self._broker.now_ms())
        if verification is not None:
            header = read_header(request.records)
            adds = params.transaction_support == TransactionSupport.ADD_PARTITIONS
            (error,) = self.execute_now(
                AddPartitionsRequest(
                    params.transactional_id,
                    header.producer_id,
                    header.producer_epoch,
                    (request.topic_partition,),
                    not adds,
                    2,
                )
            ).errors
            if error is not ErrorCode.NONE:
                raise RaykaError(error)
        return verification

    def _now(self) -> Now:
        return Now(self._broker.now_ms(), self._broker.now_ms())


def write_marker(broker: LocalBroker, marker: TxnMarker) -> list[ErrorCode]:
    """Write the end of a transaction to each of its partitions."""
    return [_write_one(broker, partition, marker) for partition in marker.partitions]


def _write_one(broker: LocalBroker, topic_partition: TopicPartition, marker: TxnMarker) -> ErrorCode:
    kind = ControlType.COMMIT if marker.is_committed else ControlType.ABORT
    batch = build_end_transaction_marker(
        kind,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        now_ms=broker.now_ms(),
    )
    try:
        partition = broker.partitions.replicas.get(topic_partition)
        partition.append_as_coordinator(
            memoryview(batch), broker.now_ms(), transaction_version=marker.transaction_version
        )
    except RaykaError as error:
        return error.code
    return ErrorCode.NONE
