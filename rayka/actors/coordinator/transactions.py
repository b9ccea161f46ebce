"""Between transaction coordinators and the partitions of their transactions: questions one way, markers the other.

One for each process. Markers are sent until every leader has written them: what has to be retried is retried with
growing pauses. A partition that the metadata has not known for a while was deleted, and needs none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rayka.actors.channel.router import Router
from rayka.actors.coordinator.outside import Outside, Verified
from rayka.actors.coordinator.router import CoordinatorRouter
from rayka.config import BrokerConfig
from rayka.coordinator.request import Request, TransactionalRequest
from rayka.coordinator.transactions.metadata import FIRST_WITH_EPOCH_BUMP
from rayka.coordinator.transactions.requests import AddPartitionsRequest, MarkersWrittenRequest
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.coordinator.transactions.turns import add_partitions_in_turn
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.types import TopicPartition, TransactionSupport, TxnMarker

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_DELETED_AFTER_S = 3.0
_ANSWER_TIMEOUT_S = 10.0
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
_UNREACHABLE = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT})


class TransactionLinks:
    """`coordinators` are the ways to transaction coordinators, `partitions` those to leaders."""

    def __init__(self, coordinators: CoordinatorRouter, partitions: Router, config: Callable[[], BrokerConfig]) -> None:
        self._coordinators = coordinators
        self._partitions = partitions
        self._config = config
        self._asking: Counter[tuple[TopicPartition, int]] = Counter()
        self.outside = Outside(self.verified, self.write_markers)

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        support: TransactionSupport,
    ) -> Sequence[ErrorCode]:
        """Whether a transaction has the partitions; those of newer clients are added. An error for each."""
        adds = support is TransactionSupport.ADD_PARTITIONS
        config = self._config()
        if not adds and not config["transaction.partition.verification.enable"]:
            return [ErrorCode.NONE] * len(partitions)
        request = AddPartitionsRequest(
            transactional_id,
            producer_id,
            producer_epoch,
            tuple(partitions),
            is_verify_only=not adds,
            transaction_version=FIRST_WITH_EPOCH_BUMP,
            max_wait_ms=config["add.partitions.to.txn.retry.backoff.max.ms"],
        )
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return (await add_partitions_in_turn(self._coordinators.execute, request)).errors
        except TimeoutError:
            return [ErrorCode.REQUEST_TIMED_OUT] * len(partitions)
        except RaykaError as error:
            return [error.code] * len(partitions)

    async def verified(self, partition: Partition, request: TransactionalRequest[Any]) -> Verified:
        """Whether a coordinator may write a request to its partition.

        A producer that is refused leaves nothing behind, and takes nothing from another of the same id that still asks.
        """
        now_ms = time.time_ns() // 1_000_000
        verification = partition.log.begin_verification(request.producer_id, request.producer_epoch, 0, now_ms)
        if verification is None:
            return ErrorCode.NONE, None
        support = TransactionSupport(request.transaction_support)
        error = await self._ask(partition.topic_partition, request, support)
        is_last = (partition.topic_partition, request.producer_id) not in self._asking
        if error is not ErrorCode.NONE and not error.retriable and is_last:
            partition.log.end_verification(request.producer_id, verification)
        return _for_client(error, support), verification

    async def _ask(
        self, partition: TopicPartition, request: TransactionalRequest[Any], support: TransactionSupport
    ) -> ErrorCode:
        key, producer = (partition, request.producer_id), (request.producer_id, request.producer_epoch)
        self._asking[key] += 1
        try:
            (error,) = await self.verify(request.transactional_id, *producer, (partition,), support)
        finally:
            self._asking[key] -= 1
            if not self._asking[key]:
                del self._asking[key]
        return error

    async def write_markers(self, markers: TransactionMarkers, coordinator_epoch: int) -> Request[Any]:
        """Write the markers of a transaction, however long it takes."""
        pending, pause_s = markers.partitions, _FIRST_PAUSE_S
        unknown_since: dict[TopicPartition, float] = {}
        while pending:
            marker = TxnMarker(
                markers.producer_id,
                markers.producer_epoch,
                coordinator_epoch,
                markers.is_committed,
                markers.transaction_version,
                pending,
            )
            errors = dict(zip(pending, await self._partitions.write_txn_marker(marker), strict=True))
            pending = tuple(self._unwritten(errors, unknown_since))
            if pending:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return MarkersWrittenRequest(markers.transactional_id, markers.producer_id, markers.producer_epoch)

    def _unwritten(
        self, errors: dict[TopicPartition, ErrorCode], unknown_since: dict[TopicPartition, float]
    ) -> list[TopicPartition]:
        """The partitions to try again."""
        now_s = time.monotonic()
        left = []
        for partition, error in errors.items():
            if error is ErrorCode.NONE:
                continue
            if error in _FENCED:
                logger.error("%s refuses the marker of a transaction: %s", partition, error.name)
                continue
            is_known = self._partitions.locate(partition) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_known:
                unknown_since.pop(partition, None)
            elif now_s - unknown_since.setdefault(partition, now_s) > _DELETED_AFTER_S:
                logger.warning("%s was deleted; its transaction ends without a marker there", partition)
                continue
            left.append(partition)
        return left


def _for_client(error: ErrorCode, support: TransactionSupport) -> ErrorCode:
    """What a group coordinator answers: clients must not take the other coordinator's errors for its own."""
    if error in _UNREACHABLE:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and support is not TransactionSupport.ADD_PARTITIONS:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and support is TransactionSupport.VERIFY:
        return ErrorCode.INVALID_TXN_STATE
    return error
