"""Sends batches to their partitions, in order, until they are acknowledged or expire.

Each partition has at most `max_in_flight` batches in flight, which do not wait for one another. The window starts with
the oldest unacknowledged batch, because the leader remembers only so many batches. When a batch has to be sent again,
its partition is muted until all answers have arrived. Then the remaining batches are sent again in their order. So a
retry never overtakes another batch, and is never overtaken.

An idempotent producer numbers the records of each partition. A batch keeps its sequence numbers as long as its outcome
is unknown, so that the leader can tell a repeated batch from a new one (KIP-98). A numbered batch that fails leaves a
gap in the sequence. The leader refuses the batches after a gap, which proves that none of them was appended. Then it is
safe to number these batches again, from 0 in the next producer epoch (KIP-360). Requests reach a leader in the order in
which they were sent, even if their answers come too late. A leader that does not know the producer, or has forgotten
it, takes any sequence number for the first one. So the first batch of an epoch, or after a long silence, is sent
without others in flight.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial

from rayka.client.producer.accumulator import Accumulator, PartitionQueue
from rayka.client.producer.batch import APPENDED, ProducerBatch
from rayka.client.producer.direct_sender import DirectAppend, DirectSender
from rayka.client.producer.transactions import Transactions
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.storage.format.batch import stamp_transactional
from rayka.types import NO_PRODUCER_ID, AppendParams, AppendRequest, AppendResult, TransactionSupport

logger = logging.getLogger(__name__)

_OUT_OF_SEQUENCE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
_HIGHEST_EPOCH = 2**15 - 1
_FOREVER = float("inf")
_CLOSED = "The connection to the cluster is closed"
_CLOCK_TICK_S = 0.0006
"""How much too early uvloop's timers, which count in milliseconds, may be."""
_SOME_ROOM_S = 0.01
"""How long a program waits for plenty of memory when there is some: a leader that is gone may hold the rest."""
_NOT_APPENDED = AppendResult(ErrorCode.NONE)
_LOST = AppendResult(ErrorCode.NETWORK_EXCEPTION)


class Sender:
    """Sends one producer's batches. Other threads may only call `wake`, `take_over` and `flush_here`."""

    def __init__(
        self,
        broker: Broker,
        accumulator: Accumulator,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        transactions: Transactions | None = None,
    ) -> None:
        self._broker = broker
        self._accumulator = accumulator
        self._config = config
        self._loop = loop
        self._transactions = transactions
        self._woken: deque[PartitionQueue] = deque()
        self._is_awake = False
        self._flushing = 0
        self._producer_id = NO_PRODUCER_ID
        self._allocating: asyncio.Task[None] | None = None
        self._unfinished = accumulator.unfinished
        self._room: list[asyncio.Future[None]] = []
        self._room_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._direct: DirectSender | None = None
        if config.is_idempotent and transactions is None and not config.linger_ms:
            self._direct = DirectSender(broker, accumulator, config, loop, self)

    def wake(self, queue: PartitionQueue) -> None:
        """A queue has a new batch to send. From any thread.

        If as many as may be are in flight, the loop looks at the queue when it has an answer: it removes the batch
        from `in_flight` before it looks for another one, as the caller added that before this.
        """
        if len(queue.in_flight) >= self._config.max_in_flight:
            return
        if not (queue.is_waited_for and self._direct is not None and self._direct.send(queue)):
            self.take_over(queue)

    def take_over(self, queue: PartitionQueue) -> None:
        """As `LoopSide.take_over`."""
        self._woken.append(queue)
        if not self._is_awake:
            self._is_awake = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed
                self.loop_ends()
            except BaseException:  # Ctrl-C
                self._is_awake = False
                raise

    def loop_ends(self) -> None:
        """Take nothing more, and fail what is not done: whoever closed the loop did not know of this producer."""
        self._accumulator.refuse(_CLOSED)
        self.abandon(RaykaError(ErrorCode.INVALID_REQUEST, _CLOSED))

    def look_again(self) -> None:
        """Check all queues: a thread that was interrupted while it sent may not have reported new batches."""
        self._woken.extend(self._accumulator.queues())
        self._drain()

    async def flush(self) -> None:
        """Send everything that was appended so far, and wait for the outcome."""
        self._flushing += 1
        try:
            self.look_again()
            for batch in self._pending():
                await batch.done_in(self._loop)
        finally:
            self._flushing -= 1

    def flush_here(self, timeout_s: float | None) -> bool:
        """Wait for batches that threads sent; return whether everything sent so far has an outcome. From any thread."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for queue in self._accumulator.queues():
            append = queue.direct
            if append is not None:
                append.batch.wait(None if deadline_s is None else max(deadline_s - time.monotonic(), 0))
        if not self._accumulator.used_bytes and not self._unfinished:
            return True
        for batch in self._pending():
            batch.is_waited = True
        return False

    async def room(self) -> None:
        """Wait until there is plenty of memory, or some for a while; lingering batches are sent in the meantime."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._room.append(waiter)
        self._flushing += 1
        try:
            self.look_again()
            if self._accumulator.is_full:
                await waiter
        finally:
            self._flushing -= 1

    def abandon(self, error: RaykaError) -> None:
        """Fail everything that is not done, and send no more."""
        self._is_closed = True
        if self._direct is not None:
            self._direct.close()
        if self._allocating is not None:
            self._allocating.cancel()
        for batch in (*self._unfinished, *self._accumulator.clear()):
            self._finish(batch, error=error)
        for queue in self._accumulator.queues():
            queue.in_flight.clear()
        self._end_waits_for_room()

    def _pending(self) -> list[ProducerBatch]:
        """Every batch that is not done, in flight or not. From any thread."""
        return [*self._accumulator.waiting(), *self._unfinished]

    def _drain(self) -> None:
        self._is_awake = False
        news = self._woken
        while news:
            self._send_from(news.popleft())
        if self._room:  # a thread may have made some
            self._tell_of_room()

    def _send_from(self, queue: PartitionQueue) -> None:
        """Send what is ready, as far as the number in flight allows."""
        if queue.direct is not None:
            self._take_over(queue)
            return
        if queue.is_muted or self._is_closed or not self._has_producer_id(queue):
            return
        while len(queue.in_flight) < self._window(queue):
            batch = self._accumulator.take(queue, self._filled_before())
            if batch is None:
                self._start_linger(queue)
                return
            if self._transactions is not None and self._transactions.error is not None:
                self._finish(batch, error=self._transactions.error)
                continue
            if self._remaining_ms(batch) <= 0:
                self._finish(batch, error=self._expired(batch))
                continue
            if self._assign_sequence(queue, batch):
                queue.in_flight.append(batch)
                self._transmit(queue, batch)

    def _take_over(self, queue: PartitionQueue) -> None:
        """Wait here for the answer to what a thread has sent, unless the thread does: then it wakes the queue."""
        assert self._direct is not None
        append = self._accumulator.claim_for_loop(queue)
        if append is not None and self._hold(append):
            self._direct.watch(append)

    def _hold(self, append: DirectAppend) -> bool:
        """The batch of a thread becomes the only one in flight, until the leader has answered. False if it fails."""
        queue, batch = append.queue, append.batch
        queue.direct, queue.is_waited_for, queue.in_flight = None, False, []
        queue.known_until_s = 0.0
        self._unfinished.add(batch)
        is_encoded = batch.buffer is not None or batch.is_encoded  # not if the thread failed or was interrupted
        if not is_encoded and not self._assign_sequence(queue, batch):
            self._go_on(queue)
            return False
        queue.in_flight = [batch]
        queue.outstanding += 1
        return True

    def answered_directly(self, append: DirectAppend, result: AppendResult) -> None:
        """As `LoopSide.answered_directly`."""
        if append.queue.direct is append and not self._hold(append):
            return
        if append.batch in append.queue.in_flight:  # else the thread was interrupted when all was done
            self._take_answer(append.queue, append.batch, result)

    def _window(self, queue: PartitionQueue) -> int:
        is_known = not self._config.is_idempotent or queue.known_until_s > time.monotonic()
        return self._config.max_in_flight if is_known else 1

    def _filled_before(self) -> float:
        if self._flushing or self._accumulator.is_full:
            return _FOREVER
        return time.monotonic() + _CLOCK_TICK_S - self._config.linger_ms / 1000 if self._config.linger_ms else _FOREVER

    def _start_linger(self, queue: PartitionQueue) -> None:
        filling = queue.filling
        if filling is not None and queue.timer is None:
            due_s = filling.created_s + self._config.linger_ms / 1000 - time.monotonic()
            queue.timer = self._loop.call_later(max(due_s, 0), self._linger_elapsed, queue)

    def _linger_elapsed(self, queue: PartitionQueue) -> None:
        queue.timer = None
        self._send_from(queue)

    def _assign_sequence(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Encode the batch with its sequence. False if that is not possible, say for lack of memory: then it fails."""
        try:
            buffer = queue.number(batch)
        except Exception as error:
            message = f"the records for {batch.topic_partition} can't be encoded: {error!r}"
            self._finish(batch, error=RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, message))
            return False
        if self._transactions is not None:
            stamp_transactional(buffer)
            self._transactions.has_sent = True
        return True

    def _transmit(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        assert batch.buffer is not None
        batch.attempts += 1
        batch.last_error = ErrorCode.NONE
        queue.outstanding += 1
        request = AppendRequest(batch.topic_partition, memoryview(batch.buffer))
        timeout_ms = max(1, min(self._config.request_timeout_ms, int(self._remaining_ms(batch))))
        params = AppendParams(
            self._config.required_acks,
            timeout_ms,
            transactional_id=None if self._transactions is None else self._transactions.transactional_id,
            transaction_support=TransactionSupport.ADD_PARTITIONS,
        )
        future = self._broker.partitions.append([request], params)
        future.add_done_callback(partial(self._answered, queue, batch))

    def _answered(
        self, queue: PartitionQueue, batch: ProducerBatch, future: asyncio.Future[list[AppendResult]]
    ) -> None:
        self._take_answer(queue, batch, _LOST if future.cancelled() or future.exception() else future.result()[0])

    def _take_answer(self, queue: PartitionQueue, batch: ProducerBatch, result: AppendResult) -> None:
        queue.outstanding -= 1
        if self._is_closed:
            return
        if result.error in APPENDED:
            queue.has_sequence_gap = False
            queue.acknowledged()
            queue.is_waited_for = batch.is_waited and batch.record_count == 1
            self._finish(batch, result)
            queue.drop_done()
        else:
            batch.last_error = ErrorCode(result.error)
            batch.error_message = result.error_message
            queue.is_muted = True
        if not queue.is_muted:
            self._go_on(queue)
        elif not queue.outstanding:
            self._settle(queue)

    def _go_on(self, queue: PartitionQueue) -> None:
        """Send what comes next, or let threads send again."""
        self._send_from(queue)
        if not queue.in_flight:
            self._accumulator.rest(queue)

    def _settle(self, queue: PartitionQueue) -> None:
        """All answers are in, and some are errors: fail what can't be delivered, and send the rest again."""
        undeliverable = self._undeliverable(queue)
        if undeliverable and self._transactions is not None:
            self._fail_transaction(queue, undeliverable[0][1])
            return
        for batch, error in undeliverable:
            self._finish(batch, error=error)
            queue.has_sequence_gap = self._config.is_idempotent
        queue.drop_done()
        head = queue.in_flight[0] if queue.in_flight else None
        if queue.has_sequence_gap and (head is None or head.last_error in _OUT_OF_SEQUENCE):
            self._bump_epoch(queue)  # KIP-360: nothing after the gap was appended
        elif head is not None:
            self._back_off(queue, head)
            return
        self._resend(queue)

    def _fail_transaction(self, queue: PartitionQueue, error: RaykaError) -> None:
        """The transaction can only be aborted, so nothing of it is sent any more."""
        for batch in queue.in_flight:
            if not batch.done:
                self._finish(batch, error=error)
        queue.in_flight.clear()
        queue.is_muted = False
        self._send_from(queue)

    def _undeliverable(self, queue: PartitionQueue) -> list[tuple[ProducerBatch, RaykaError]]:
        """The first batches in flight that can't be sent again, and why. It changes nothing.

        A batch that is out of sequence is sent again, in the next epoch, if there is a gap before it.
        """
        undeliverable: list[tuple[ProducerBatch, RaykaError]] = []
        for batch in queue.in_flight:
            if batch.done:
                continue
            has_gap = queue.has_sequence_gap or (bool(undeliverable) and self._config.is_idempotent)
            if self._remaining_ms(batch) <= 0 or batch.attempts > self._config.retries:
                undeliverable.append((batch, self._expired(batch)))
            elif batch.last_error.retriable or (batch.last_error in _OUT_OF_SEQUENCE and has_gap):
                break
            else:
                undeliverable.append((batch, batch.refusal))
        return undeliverable

    def _has_producer_id(self, queue: PartitionQueue) -> bool:
        """Whether batches may be sent: with idempotence a producer id is needed first."""
        if self._transactions is not None:
            if (queue.producer_id, queue.producer_epoch) != self._transactions.producer:
                queue.start_epoch(*self._transactions.producer)
            return True
        if not self._config.is_idempotent or queue.producer_id != NO_PRODUCER_ID:
            return True
        if self._producer_id != NO_PRODUCER_ID:
            queue.start_epoch(self._producer_id, 0)
            return True
        if self._allocating is None:
            self._allocating = self._loop.create_task(self._get_producer_id())
        return False

    async def _get_producer_id(self) -> None:
        while self._producer_id == NO_PRODUCER_ID:
            try:
                self._producer_id = await self._broker.controller.allocate_producer_id()
            except RaykaError as error:
                logger.debug("no producer id yet: %s", error)
                self._expire_unsent(error)
                await asyncio.sleep(self._config.retry_backoff_ms / 1000)
        self._allocating = None
        for queue in self._accumulator.queues():
            if queue.producer_id == NO_PRODUCER_ID:
                self._resend(queue)

    def _expire_unsent(self, cause: RaykaError) -> None:
        for queue in self._accumulator.queues():
            for batch in self._accumulator.expire(queue, time.monotonic() - self._config.delivery_timeout_ms / 1000):
                batch.last_error = cause.code
                self._finish(batch, error=self._expired(batch))

    def _bump_epoch(self, queue: PartitionQueue) -> None:
        """Give what is left new sequence numbers: none of it was appended."""
        if queue.producer_epoch == _HIGHEST_EPOCH:
            queue.producer_id = self._producer_id = NO_PRODUCER_ID
            queue.has_sequence_gap = False
            return
        queue.start_epoch(queue.producer_id, queue.producer_epoch + 1)

    def _back_off(self, queue: PartitionQueue, head: ProducerBatch) -> None:
        logger.debug("%s: %s, sending again", queue.topic_partition, head.last_error.name)
        pause_ms = min(self._config.retry_backoff_ms, max(self._remaining_ms(head), 0))
        self._loop.call_later(pause_ms / 1000, self._resend, queue)

    def _resend(self, queue: PartitionQueue) -> None:
        """Continue: first with what is in flight, then with what is new."""
        if self._is_closed or not self._has_producer_id(queue):
            return
        queue.is_muted = False
        for batch in queue.in_flight:
            if not batch.done:
                self._transmit(queue, batch)
        self._send_from(queue)

    def _finish(
        self, batch: ProducerBatch, result: AppendResult = _NOT_APPENDED, error: RaykaError | None = None
    ) -> None:
        if error is not None and self._transactions is not None:
            self._transactions.failed(error)
        batch.finish()
        self._accumulator.release(batch)
        batch.complete(result.base_offset, result.log_append_time_ms, error)
        self._unfinished.discard(batch)
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        """End the waits for memory when there is plenty, so that the next one is not soon, or some for a while."""
        if self._is_closed or self._accumulator.has_plenty:
            self._end_waits_for_room()
        elif self._room and self._room_timer is None and not self._accumulator.is_full:
            self._room_timer = self._loop.call_later(_SOME_ROOM_S, self._end_waits_for_room)

    def _end_waits_for_room(self) -> None:
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None
        waiters, self._room = self._room, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _remaining_ms(self, batch: ProducerBatch) -> float:
        return (batch.created_s - time.monotonic()) * 1000 + self._config.delivery_timeout_ms

    def _expired(self, batch: ProducerBatch) -> RaykaError:
        last = f"; the last answer was {batch.last_error.name}" if batch.last_error else ""
        return RaykaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{batch.record_count} records for {batch.topic_partition} were not acknowledged after {batch.attempts} "
            f"attempts within delivery_timeout_ms={self._config.delivery_timeout_ms}{last}",
        )
