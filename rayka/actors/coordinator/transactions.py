"""The requests between transaction coordinators and the partitions of their transactions: verifications and markers.

One for each process. Markers are sent until every leader has written them: what has to be retried is retried with
growing pauses. A partition that does not exist in metadata as new as the controller's was deleted, and needs none. If
a leader knows a newer coordinator or a newer epoch of the producer, this coordinator leaves the transaction as it is,
as Kafka's does: the newer coordinator ends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rayka.actors.channel.router import Router
from rayka.actors.coordinator.outside import Verified
from rayka.actors.coordinator.router import CoordinatorRouter
from rayka.config import BrokerConfig
from rayka.coordinator.request import Request, TransactionalRequest
from rayka.coordinator.transactions.metadata import FIRST_WITH_EPOCH_BUMP
from rayka.coordinator.transactions.requests import AddPartitionsRequest, MarkersWrittenRequest
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.types import TopicPartition, TransactionSupport, TxnMarker, VerificationRequest

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_ANSWER_TIMEOUT_S = 10.0
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
_UNREACHABLE = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT})


class TransactionLinks:
    """Implements `Outside`. `coordinators` are the ways to transaction coordinators, `partitions` those to leaders.

    `catch_up` returns when the metadata of this process is as new as the controller's, and raises RaykaError if it
    can't tell.
    """

    def __init__(
        self,
        coordinators: CoordinatorRouter,
        partitions: Router,
        config: Callable[[], BrokerConfig],
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._coordinators = coordinators
        self._partitions = partitions
        self._config = config
        self._catch_up = catch_up
        self._asking: Counter[tuple[TopicPartition, int]] = Counter()

    async def verify(self, request: VerificationRequest) -> Sequence[ErrorCode]:
        """Whether a transaction has the partitions; those of newer clients are added. An error for each."""
        adds = request.support is TransactionSupport.ADD_PARTITIONS
        config = self._config()
        if not adds and not config["transaction.partition.verification.enable"]:
            return [ErrorCode.NONE] * len(request.partitions)
        addition = AddPartitionsRequest(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.partitions,
            is_verify_only=not adds,
            transaction_version=FIRST_WITH_EPOCH_BUMP,
            max_wait_ms=config["add.partitions.to.txn.retry.backoff.max.ms"],
        )
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return (await self._coordinators.execute(addition)).errors
        except TimeoutError:
            return [ErrorCode.REQUEST_TIMED_OUT] * len(request.partitions)
        except RaykaError as error:
            return [error.code] * len(request.partitions)

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
            (error,) = await self.verify(
                VerificationRequest(request.transactional_id, *producer, (partition,), support)
            )
        finally:
            self._asking[key] -= 1
            if not self._asking[key]:
                del self._asking[key]
        return error

    async def perform(self, markers: TransactionMarkers, coordinator_epoch: int) -> Request[Any] | None:
        """Write the markers of a transaction, however long it takes. None: it is for a newer coordinator to end it."""
        pending, pause_s = markers.partitions, _FIRST_PAUSE_S
        while pending:
            marker = TxnMarker(
                markers.producer_id,
                markers.producer_epoch,
                coordinator_epoch,
                markers.is_committed,
                markers.transaction_version,
                pending,
            )
            errors = dict(zip(pending, await self._write(marker), strict=True))
            if not _FENCED.isdisjoint(errors.values()):
                refusals = ", ".join(f"{one}: {error.name}" for one, error in errors.items() if error in _FENCED)
                logger.error("The markers of %s are refused (%s)", markers.transactional_id, refusals)
                return None
            pending = await self._existing(tuple(one for one in pending if errors[one] is not ErrorCode.NONE))
            if pending:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return MarkersWrittenRequest(markers.transactional_id, markers.producer_id, markers.producer_epoch)

    async def _write(self, marker: TxnMarker) -> Sequence[ErrorCode]:
        """An error for each partition, also where writing fails for a reason that was not expected.

        Nobody else would write these markers before the coordinator loads again, and readers wait for them.
        """
        try:
            return await self._partitions.write_txn_marker(marker)
        except Exception:
            logger.exception("The markers of producer %d cannot be written yet", marker.producer_id)
            return [ErrorCode.UNKNOWN_SERVER_ERROR] * len(marker.partitions)

    async def _existing(self, partitions: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        """Without those that were deleted. Metadata that lags behind may not know a new topic yet, so it catches up."""
        if not any(self._is_unknown(partition) for partition in partitions):
            return partitions
        try:
            await self._catch_up()
        except RaykaError as error:
            logger.warning("cannot tell yet whether partitions of a transaction were deleted: %s", error)
            return partitions
        deleted = frozenset(filter(self._is_unknown, partitions))
        for partition in deleted:
            logger.warning("%s was deleted; its transaction ends without a marker there", partition)
        return tuple(partition for partition in partitions if partition not in deleted)

    def _is_unknown(self, partition: TopicPartition) -> bool:
        return self._partitions.locate(partition) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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
