"""Appends in transactions: the leader asks the coordinator before a transaction begins in its partition (KIP-890).

Once a transaction is open in a partition its batches need no question. Before that a request waits for the answer, and
the producer's later requests wait behind it, so that its batches keep their order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from rayka.actors.background import BackgroundTasks
from rayka.actors.channel.link import AppendDone
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.replicas import Replicas
from rayka.storage.format.batch import read_header
from rayka.storage.producers.verification import Verification
from rayka.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AppendParams,
    AppendRequest,
    AppendResult,
    TopicPartition,
    TransactionSupport,
    VerificationRequest,
)

Verify: TypeAlias = Callable[[VerificationRequest], Awaitable[Sequence[ErrorCode]]]
"""Asks the coordinator of the transactional id. Returns an error for each partition; never raises."""

_UNREACHABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


class _Batch(NamedTuple):
    """A batch of a request; with a `verification` it may begin a transaction."""

    place: int
    request: AppendRequest
    producer: tuple[int, int]
    verification: Verification | None


class TransactionalAppends:
    """`append` is the server's, with the verifications of the batches."""

    def __init__(self, replicas: Replicas, append: Callable[..., None], background: BackgroundTasks) -> None:
        self._replicas = replicas
        self._append = append
        self._background = background
        self._last: dict[tuple[TopicPartition, int], asyncio.Future[None]] = {}
        self.verify: Verify = _unavailable

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        """Append at once if every transaction is open, else when its coordinator has answered."""
        keys = [(request.topic_partition, _producer(request)[0]) for request in requests]
        before = {last for key in keys if (last := self._last.get(key)) is not None}
        batches = [] if before else self._batches(requests)
        if not before and all(batch.verification is None for batch in batches):
            self._append(requests, params, done)
            return
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last.update(dict.fromkeys(keys, finished))
        kept = [request._replace(records=memoryview(bytearray(request.records))) for request in requests]
        work = self._append_in_turn(kept, params, done, before, lambda: self._finish(keys, finished))
        task = self._background.start("transactional append", work)
        task.add_done_callback(lambda _: self._finish(keys, finished))  # it may have been cancelled

    def _finish(self, keys: Sequence[tuple[TopicPartition, int]], finished: asyncio.Future[None]) -> None:
        for key in keys:
            if self._last.get(key) is finished:
                del self._last[key]
        if not finished.done():
            finished.set_result(None)

    def _batches(self, requests: Sequence[AppendRequest]) -> list[_Batch]:
        now_ms = time.time_ns() // 1_000_000
        return [
            _Batch(index, request, _producer(request), self._verification(request, now_ms))
            for index, request in enumerate(requests)
        ]

    def _verification(self, request: AppendRequest, now_ms: int) -> Verification | None:
        """None also where the append itself will say what is wrong."""
        try:
            return self._replicas.get(request.topic_partition).begin_verification(request, now_ms)
        except RaykaError:
            return None

    async def _append_in_turn(
        self,
        requests: Sequence[AppendRequest],
        params: AppendParams,
        done: AppendDone,
        before: set[asyncio.Future[None]],
        finish: Callable[[], None],
    ) -> None:
        try:
            if before:
                await asyncio.wait(before)
            batches = self._batches(requests)
            faults = await self._verify(batches, params)
        except BaseException:
            done([AppendResult(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))] * len(requests))
            raise
        finish()  # those behind it continue in the next turn of the loop
        self._append_verified(batches, params, faults, done)

    async def _verify(self, batches: Sequence[_Batch], params: AppendParams) -> dict[int, AppendResult]:
        """The results of those batches whose transactions are not open."""
        by_producer: dict[tuple[int, int], list[_Batch]] = {}
        for batch in batches:
            if batch.verification is not None:
                by_producer.setdefault(batch.producer, []).append(batch)
        faults: dict[int, AppendResult] = {}
        support = TransactionSupport(params.transaction_support)
        for (producer_id, producer_epoch), asked in by_producer.items():
            partitions = tuple(batch.request.topic_partition for batch in asked)
            request = VerificationRequest(
                params.transactional_id or "", producer_id, producer_epoch, partitions, support
            )
            errors = await self.verify(request)
            for batch, error in zip(asked, errors, strict=True):
                if error is not ErrorCode.NONE:
                    self._forget(batch, error)
                    faults[batch.place] = _fault(error, support)
        return faults

    def _forget(self, batch: _Batch, error: ErrorCode) -> None:
        """A producer that is refused permanently leaves nothing behind."""
        if error.retriable or batch.verification is None or batch.request.topic_partition not in self._replicas:
            return
        log = self._replicas.get(batch.request.topic_partition).log
        log.end_verification(batch.producer[0], batch.verification)

    def _append_verified(
        self, batches: Sequence[_Batch], params: AppendParams, faults: dict[int, AppendResult], done: AppendDone
    ) -> None:
        verified = [batch for batch in batches if batch.place not in faults]

        def respond(results: Any) -> None:
            if isinstance(results, RaykaError):
                done(results)
                return
            answers = faults | {batch.place: result for batch, result in zip(verified, results, strict=True)}
            done([answers[index] for index in range(len(batches))])

        self._append([each.request for each in verified], params, respond, [each.verification for each in verified])


async def _unavailable(request: VerificationRequest) -> Sequence[ErrorCode]:
    return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(request.partitions)


def _producer(request: AppendRequest) -> tuple[int, int]:
    """The producer id and epoch of a batch; -1 for what is too short to be one."""
    try:
        header = read_header(request.records)
    except RaykaError:
        return NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    return header.producer_id, header.producer_epoch


def _fault(error: ErrorCode, support: TransactionSupport) -> AppendResult:
    """As Kafka translates it. NOT_ENOUGH_REPLICAS is what old clients retry without a look at the metadata."""
    if error is ErrorCode.PRODUCER_FENCED:
        return AppendResult(int(ErrorCode.INVALID_PRODUCER_EPOCH))
    if error is ErrorCode.TRANSACTION_ABORTABLE and support is TransactionSupport.VERIFY:
        return AppendResult(
            int(ErrorCode.INVALID_TXN_STATE), error_message="Partition was not added to the transaction"
        )
    is_old = support is not TransactionSupport.ADD_PARTITIONS
    if error in _UNREACHABLE or (error is ErrorCode.CONCURRENT_TRANSACTIONS and is_old):
        return AppendResult(
            int(ErrorCode.NOT_ENOUGH_REPLICAS),
            error_message="Unable to verify the partition has been added to the transaction."
            f" Underlying error: {error.name}",
        )
    return AppendResult(int(error))
