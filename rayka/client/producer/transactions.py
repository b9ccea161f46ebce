"""A producer's transactions, with an epoch for each (KIP-98, KIP-890).

Leaders add partitions to a transaction as batches come, so the client says only when it ends. Where the outcome of an
end stays unknown the producer asks before its next transaction: the coordinator then finishes what was decided, or
aborts what was not. It asks in the epoch of the transaction in doubt, since an InitProducerId without an epoch would
fence a producer that has replaced it meanwhile. A producer that was replaced can do nothing any more, and neither can
one that its coordinator has forgotten, as another may have come and gone since (KAFKA-18019).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

from rayka.client.calls import in_time
from rayka.client.group.coordinator import GroupMetadata, OffsetAndMetadata, ReadOffsets
from rayka.client.producer.batch import ProducerBatch
from rayka.client.settings import OpenTransaction, ProducerConfig
from rayka.coordinator.groups.requests import CommittedOffset, OffsetCommitResponse, TxnOffsetCommitRequest
from rayka.coordinator.request import Request
from rayka.coordinator.transactions.metadata import FIRST_WITH_EPOCH_BUMP
from rayka.coordinator.transactions.requests import EndTxnRequest, InitProducerIdRequest, ProducerIdResponse
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker, Groups
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition, TransactionSupport

R = TypeVar("R")

Offsets: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]
"""The offsets of the next records to read."""

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_NOBODY = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
_WAIT_MS = 100


class OffsetsReader(Protocol):
    """A consumer in a group."""

    def read_offsets(self) -> ReadOffsets: ...


class Transactions:
    """Lives in the event loop. `error` is why the open transaction can only be aborted."""

    def __init__(self, broker: Broker, config: ProducerConfig) -> None:
        joined = config.joins
        given = config.transactional_id if joined is None else joined.transactional_id
        assert given is not None
        self.transactional_id: str = given
        self.producer = _NOBODY if joined is None else joined[1:]
        self.is_open = joined is not None
        self.number = 0
        """Of the transaction that was begun last."""
        self.has_sent = False
        self.error: RaykaError | None = None
        self._broker = broker
        self._config = config
        self._fatal: RaykaError | None = None
        self._turn = asyncio.Lock()  # for what is asked of a coordinator: an interrupted end may still be about to stop
        self._is_ending = False
        self._in_doubt = _NOBODY
        """The producer whose last transaction may be open, decided or never begun."""

    def check_open(self, number: int | None = None) -> None:
        """Raise INVALID_TXN_STATE outside of a transaction, or outside of this one, and while it is being ended.

        From any thread.
        """
        self._require_begun()
        if number is not None and number != self.number:
            raise RaykaError(ErrorCode.INVALID_TXN_STATE, "The transaction in which this call has begun has ended")
        if self._is_ending:
            raise RaykaError(ErrorCode.INVALID_TXN_STATE, "The transaction is being committed or aborted")

    def _require_begun(self) -> None:
        if not self.is_open:
            raise RaykaError(
                ErrorCode.INVALID_TXN_STATE,
                "No transaction is open: a producer with a transactional_id must begin one first",
            )

    def share(self) -> OpenTransaction:
        """The open transaction, in which others may write from now on. Raises INVALID_TXN_STATE if none is open."""
        self.check_open()
        self.has_sent = True
        return OpenTransaction(self.transactional_id, *self.producer)

    def _check_own(self) -> None:
        if self._config.joins is not None:
            raise RaykaError(ErrorCode.INVALID_TXN_STATE, "Only the producer that began the transaction can end it")

    def failed(self, error: RaykaError) -> None:
        """A record of the transaction was not appended."""
        if self.error is None:
            self.error = error

    async def init(self) -> None:
        """Become the only producer of the transactional id, unless that is done.

        Raises PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING.
        """
        self._check_own()
        async with self._turn:
            await self._be_the_only_one()

    async def _be_the_only_one(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._in_doubt != _NOBODY:
            await self._resolve_doubt()
        elif self.producer == _NOBODY:
            timeout_ms = self._config.transaction_timeout_ms
            await self._take_producer(InitProducerIdRequest(self.transactional_id, timeout_ms, max_wait_ms=_WAIT_MS))

    async def _resolve_doubt(self) -> None:
        """Abort the transaction in doubt; if it is committed already, wait for that to be done."""
        try:
            await self._decide(False)
        except RaykaError as refused:
            if refused.code is not ErrorCode.INVALID_TXN_STATE:
                raise
            await self._decide(True)

    async def _decide(self, is_committed: bool) -> None:
        """End the transaction in doubt."""
        request = EndTxnRequest(self.transactional_id, *self._in_doubt, is_committed, FIRST_WITH_EPOCH_BUMP)
        await self._take_producer(request)

    async def begin(self) -> None:
        """Begin a transaction, after the end of another thread that has begun.

        Raises INVALID_TXN_STATE if one is open, PRODUCER_FENCED, and INVALID_PRODUCER_ID_MAPPING.
        """
        async with self._turn:
            if self.is_open:
                raise RaykaError(ErrorCode.INVALID_TXN_STATE, "A transaction is open already")
            await self._be_the_only_one()
            self.number += 1
            self.is_open, self.has_sent, self.error = True, False, None

    async def end(self, is_committed: bool, flush: Callable[[], Awaitable[None]]) -> None:
        """Flush, and commit or abort.

        Raises PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING, REQUEST_TIMED_OUT if in doubt.
        As in Kafka, an abort drops what is not sent yet, and it can't be taken back, even if it is interrupted.
        """
        self._check_own()
        self._require_begun()
        async with self._turn:
            self._require_begun()  # another thread's end may have come first
            await self._flush_and_end(is_committed, flush)

    async def _flush_and_end(self, is_committed: bool, flush: Callable[[], Awaitable[None]]) -> None:
        self._is_ending = True  # for what is sent from now on, by a callback, might be appended after the end
        if not is_committed:
            self.failed(RaykaError(ErrorCode.TRANSACTION_ABORTABLE, "The transaction was aborted before this was sent"))
        try:
            await flush()
            await self._end(is_committed)
        finally:
            self._is_ending = False

    async def _end(self, is_committed: bool) -> None:
        if is_committed and self.error is not None:
            raise RaykaError(ErrorCode.TRANSACTION_ABORTABLE, f"The transaction must be aborted: {self.error}")
        self.is_open = False
        if not self.has_sent:
            return
        # A request that is cancelled is on its way: in this epoch it could end another transaction.
        self._in_doubt, self.producer = self.producer, _NOBODY
        await self._decide(is_committed)

    async def leave(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Abort a transaction that is still open, as nobody will end it; its readers would wait for the timeout."""
        if not self.is_open or self._config.joins is not None:
            return
        async with self._turn:
            if self.is_open:
                await self._flush_and_end(False, flush)

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit offsets of a group with the transaction. Raises the error of the first that is refused.

        An end of another thread waits for this: the transaction would be committed without the offsets. For the same
        reason it can only be aborted after an interrupt: the offsets may not have arrived, or may have been refused.
        """
        committed = tuple(self._committed(*each) for each in offsets.items())  # now: topics may be created again
        try:
            async with self._turn:
                self.check_open()
                if committed:
                    await self._send_offsets(committed, group)
        except RaykaError:
            raise
        except BaseException:
            if not self._is_ending:  # while it waits for an end of another thread, that is not of its transaction
                self.failed(RaykaError(ErrorCode.TRANSACTION_ABORTABLE, "send_offsets was interrupted"))
            raise

    async def _send_offsets(self, offsets: tuple[CommittedOffset, ...], group: GroupMetadata) -> None:
        self.has_sent = True
        request = TxnOffsetCommitRequest(
            group.group_id,
            offsets,
            self.transactional_id,
            *self.producer,
            transaction_support=TransactionSupport.ADD_PARTITIONS,
            generation_id=group.member_epoch,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
        )
        try:
            response: OffsetCommitResponse = await self._until_answered(self._broker.groups, group.group_id, request)
            for error in response.errors:
                if error is not ErrorCode.NONE:
                    raise RaykaError(error, f"Offsets of group {group.group_id} were refused")
        except RaykaError as refused:
            self.failed(refused)
            raise

    def _committed(self, partition: tuple[str, int], where: int | OffsetAndMetadata) -> CommittedOffset:
        """With the id of the topic, without which the offset would count for the next topic of that name too."""
        one = OffsetAndMetadata(where) if isinstance(where, int) else where
        topic = self._broker.image.topics.get(partition[0])
        offset = CommittedOffset(*partition, one.offset, one.leader_epoch, one.metadata)
        return offset if topic is None else offset._replace(topic_id=topic.topic_id)

    async def _take_producer(self, request: InitProducerIdRequest | EndTxnRequest) -> None:
        answer: ProducerIdResponse = await self._until_answered(
            self._broker.transactions, self.transactional_id, request
        )
        if answer.needs_producer_id:
            new_producer_id = await self._broker.controller.allocate_producer_id()
            await self._take_producer(dataclasses.replace(request, new_producer_id=new_producer_id))
        elif answer.error is ErrorCode.NONE:
            self.producer, self._in_doubt = (answer.producer_id, answer.producer_epoch), _NOBODY
        else:
            raise self._refused(request, answer.error)

    def _refused(self, request: InitProducerIdRequest | EndTxnRequest, error: ErrorCode) -> RaykaError:
        """A commit is refused for a producer that was replaced, or for the timeout: the abort that follows tells."""
        if error in _FENCED:
            fenced = RaykaError(
                ErrorCode.PRODUCER_FENCED,
                f"Another producer with transactional id {self.transactional_id} has begun, or the transaction was "
                f"open for longer than transaction_timeout_ms={self._config.transaction_timeout_ms}",
            )
            if not (isinstance(request, EndTxnRequest) and request.is_committed):
                self._fatal = fenced
            return fenced
        if error is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            self._fatal = RaykaError(
                error,
                f"The coordinator no longer knows this producer of transactional id {self.transactional_id}: it was "
                "idle for transactional.id.expiration.ms, or another one has begun since. Create a new producer",
            )
            return self._fatal
        return RaykaError(error, f"The coordinator refused a request of transactional id {self.transactional_id}")

    async def _until_answered(self, coordinators: Groups, key: str, request: Request[R]) -> R:
        """Ask until there is an answer that is not to be asked again, for up to `max_block_ms`."""
        deadline_s = time.monotonic() + self._config.max_block_ms / 1000
        backoff_s = self._config.retry_backoff_ms / 1000
        while True:
            left_s = max(deadline_s - time.monotonic(), 0)
            try:
                await coordinators.coordinator_of(key)
                response = await in_time(
                    coordinators.execute(request),
                    min(left_s, self._config.request_timeout_ms / 1000),
                    f"the coordinator of {key}",
                )
                error = _retriable_error(response)
                if error is None:
                    return response
            except RaykaError as refused:
                if not refused.code.retriable:
                    raise
                error = refused.code
            if time.monotonic() + backoff_s > deadline_s:
                raise RaykaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"No answer for max_block_ms; the coordinator's last error was {error.name}",
                )
            await asyncio.sleep(backoff_s)


def in_one_transaction(transactions: Transactions | None, batches: Iterator[ProducerBatch]) -> Iterator[ProducerBatch]:
    """The batches of one call: another thread may end the transaction before all are sent, and begin the next."""
    number = None if transactions is None else transactions.number
    for batch in batches:
        batch.transaction = number
        yield batch


def _retriable_error(response: Any) -> ErrorCode | None:
    errors = response.errors if isinstance(response, OffsetCommitResponse) else (response.error,)
    return next((error for error in errors if error.retriable), None)
