"""Records waiting to be sent, in batches for each partition.

Any thread appends; the event loop's thread takes batches out. The lock is held for the few lines that
touch a queue, never while anything waits. `Producer.send` appends to a batch that is filling without looking at its
queue: such a batch takes records until it is closed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from rayka.client.producer.batch import ProducerBatch, RecordFuture
from rayka.client.producer.filling import Headers
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import MAX_SEQUENCE, RECORD_BATCH_OVERHEAD, stamp_producer
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition

if TYPE_CHECKING:
    from rayka.client.producer.direct_sender import DirectAppend

_MOST_BYTES_ALONE = 65_536
_KNOWN_FOR_S = 60.0
"""How long after an acknowledgement a leader surely knows the producer (`producer.id.expiration.ms` is a day)."""
_FORKED = "A producer can't be used after fork"


class PartitionQueue:
    """One partition's batches in order: in flight, ready, and the one that is filling.

    `filling`, `ready`, `is_in_flight` and `direct` are the accumulator's, under its lock; the rest is the sender's, in
    the loop, or that of the thread whose append is `direct`: then nothing else is in progress. `is_in_flight`: a batch
    was taken, and it is not known that all are done.
    `closed_bytes` counts what was ever in batches that are full or taken. `outstanding` counts requests without an
    answer. `has_sequence_gap`: a batch with a sequence was given up.
    `is_muted`: batches have to be sent again before any other. Until `known_until_s` (monotonic) the leader knows
    the producer. `is_waited_for`: a thread waited for the outcome of the last record.
    """

    __slots__ = (
        "closed_bytes",
        "direct",
        "filling",
        "has_sequence_gap",
        "in_flight",
        "is_in_flight",
        "is_muted",
        "is_waited_for",
        "known_until_s",
        "next_sequence",
        "outstanding",
        "producer_epoch",
        "producer_id",
        "ready",
        "timer",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.filling: ProducerBatch | None = None
        self.ready: deque[ProducerBatch] = deque()
        self.is_in_flight = False
        self.direct: DirectAppend | None = None
        self.is_waited_for = False
        self.closed_bytes = 0
        self.in_flight: list[ProducerBatch] = []
        self.outstanding = 0
        self.is_muted = False
        self.timer: asyncio.TimerHandle | None = None
        self.has_sequence_gap = False
        self.known_until_s = 0.0
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.next_sequence = NO_SEQUENCE

    @property
    def appended_bytes(self) -> int:
        """Bytes of all records that were ever appended one by one."""
        filling = self.filling
        return self.closed_bytes + (0 if filling is None else filling.size)

    def make_ready(self) -> None:
        """Let the batch that is filling take no more records, and be sent next.

        It goes from one place to the other without a call in between, in which an interrupt (Ctrl-C) could come.
        """
        batch = self.filling
        if batch is not None:
            batch.close()
            size = batch.size
            self.ready += (batch,)
            self.filling = None
            self.closed_bytes += size

    def waiting(self) -> list[ProducerBatch]:
        """The batches that the loop has not taken."""
        direct = () if self.direct is None else (self.direct.batch,)
        return [*direct, *self.ready, *(() if self.filling is None else (self.filling,))]

    def number(self, batch: ProducerBatch) -> bytearray | memoryview:
        """Encode the batch, with the producer's next sequences if it has an id."""
        sequence = self.next_sequence
        if self.producer_id != NO_PRODUCER_ID:  # at once: an interrupt must not let two batches have one sequence
            self.next_sequence = (sequence + batch.count) & MAX_SEQUENCE
        try:
            return batch.build(self.producer_id, self.producer_epoch, sequence)
        except BaseException:  # Ctrl-C too
            if batch.buffer is None:  # else a batch has these sequences
                self.next_sequence = sequence
            raise

    def start_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Begin a new producer epoch: batches still in flight, and later ones, get sequences from 0 on."""
        self.producer_id, self.producer_epoch, self.next_sequence = producer_id, producer_epoch, 0
        self.has_sequence_gap, self.known_until_s = False, 0.0
        self.in_flight = [batch for batch in self.in_flight if not batch.done]
        for batch in self.in_flight:
            assert batch.buffer is not None
            stamp_producer(batch.buffer, 0, producer_id, producer_epoch, self.next_sequence)
            self.next_sequence = (self.next_sequence + batch.record_count) & MAX_SEQUENCE

    def acknowledged(self) -> None:
        """The leader has answered, so it knows the producer."""
        self.known_until_s = monotonic() + _KNOWN_FOR_S

    def drop_done(self) -> None:
        """Remove the batches that are done from the front of the window in flight."""
        while self.in_flight and self.in_flight[0].done:
            del self.in_flight[0]


class BufferFull(RaykaError, BufferError):
    """The records that are not acknowledged yet fill `buffer_memory`, and `max_block_ms` are over."""


class Accumulator:
    """All partitions' queues and the memory that they may take together.

    A fork of the process has no thread that sends, and must not send in its parent's name: there the accumulator
    forgets what it has and takes nothing more.
    """

    def __init__(self, config: ProducerConfig, check: Callable[[int | None], None] | None = None) -> None:
        """`check` raises if nothing may be sent, or not in this transaction.

        It runs under the lock: a later flush finds all that it let pass.
        """
        self._config = config
        self._check = check
        self._refusal: str | None = None
        self._batch_size = max(config.batch_size, RECORD_BATCH_OVERHEAD)
        self.lock = self._lock = threading.Lock()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._used = 0
        self._limit = config.buffer_memory
        self.unfinished: set[ProducerBatch] = set()
        """The batches that the sender has taken and that are not done; the sender takes them out."""
        _of_this_process.add(self)

    def refuse(self, reason: str) -> None:
        """Take no more records and batches: `append` and `put` raise INVALID_REQUEST from now on."""
        with self._lock:
            self._refusal = self._refusal or reason
            self._check = self._raise_refusal

    def _raise_refusal(self, _transaction: int | None) -> None:
        raise RaykaError(ErrorCode.INVALID_REQUEST, str(self._refusal))

    def forked(self) -> None:
        """This is a fork: what the parent has not sent is the parent's."""
        if self._lock.locked():  # by a thread that this process does not have
            self._lock.release()
        self.refuse(_FORKED)
        for batch in self.unfinished:
            batch.forked(RaykaError(ErrorCode.INVALID_REQUEST, _FORKED))
        for queue in self._queues.values():
            for batch in queue.waiting():
                batch.forked(RaykaError(ErrorCode.INVALID_REQUEST, _FORKED))
            queue.ready.clear()
            queue.filling = queue.direct = None

    @property
    def used_bytes(self) -> int:
        """Bytes of all batches that are not yet done, with what is reserved for those that are filling."""
        return self._used

    @property
    def is_full(self) -> bool:
        """Whether `append` would refuse."""
        return self._used >= self._limit

    @property
    def has_plenty(self) -> bool:
        """Whether a quarter of the memory is free."""
        return self._used <= self._limit - self._limit // 4

    @property
    def overflow(self) -> BufferFull:
        """The error for a record for which there was no room in time."""
        return BufferFull(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{self._used} bytes wait to be acknowledged, buffer_memory is {self._limit}, "
            f"and max_block_ms={self._config.max_block_ms} are over",
        )

    def queues(self) -> list[PartitionQueue]:
        """The queues of all partitions that were sent to."""
        with self._lock:
            return list(self._queues.values())

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The partition's queue."""
        with self._lock:
            queue = self._queues.get(topic_partition)
            if queue is None:
                queue = self._queues[topic_partition] = PartitionQueue(topic_partition)
            return queue

    def append(
        self,
        queue: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int,
        size: int,
        max_batch_size: int,
        transaction: int | None,
    ) -> tuple[RecordFuture, bool] | None:
        """Add a record to the batch that is filling; None if there is no memory.

        `size` is the most that it can take. The flag tells that the sender has something new to look at.
        Raises what `check` raises, and INVALID_REQUEST after `refuse`.
        """
        with self._lock:
            if self._check is not None:
                self._check(transaction)
            if self._used >= self._limit:
                return None
            batch, is_news = queue.filling, False
            index = None if batch is None else batch.add(key, value, timestamp, headers, size)
            if batch is None or index is None:
                batch, is_news = self._roll(queue, max_batch_size), True
                index = batch.add(key, value, timestamp, headers, size)
                assert index == 0
                self._used += batch.reserve()
                queue.filling = batch  # only now: Ctrl-C before this must not leave an empty batch
            else:
                self._used += batch.reserve()
            if batch.size >= self._batch_size:
                queue.make_ready()
                is_news = True
        return RecordFuture(batch, index), is_news

    def put(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Append a whole batch; False if there is no memory. Raises as `append`."""
        with self._lock:
            if self._check is not None:
                self._check(batch.transaction)
            if self._used >= self._limit:
                return False
            batch.reserved = batch.size
            queue.make_ready()
            queue.ready += (batch,)  # from here on nothing is called, as in `make_ready`
            self._used += batch.reserved
            return True

    def take(self, queue: PartitionQueue, filled_before_s: float) -> ProducerBatch | None:
        """The next batch to send: a closed one, else the one that is filling if it is older than that."""
        with self._lock:
            batch = queue.filling
            if queue.direct is not None or (not queue.ready and (batch is None or batch.created_s > filled_before_s)):
                return None
            queue.is_in_flight = True
            if not queue.ready:
                queue.make_ready()
            self.unfinished.add(queue.ready[0])
            return queue.ready.popleft()

    def take_alone(self, append: DirectAppend) -> bool:
        """Give the batch that is filling to the append of a thread, if it is small and nothing is before it."""
        queue = append.queue
        with self._lock:
            filling = queue.filling
            if append.link.user is not None or append.link.channel.is_closed:
                return False
            if queue.is_in_flight or queue.ready or filling is None or filling.size > _MOST_BYTES_ALONE:
                return False
            filling.close()
            size = filling.size
            append.batch = filling  # first: a thread may look at `direct` without the lock
            append.link.user = queue.direct = append  # from here on nothing is called, as in `make_ready`
            queue.filling, queue.is_in_flight = None, True
            queue.closed_bytes += size
            return True

    def claim(self, append: DirectAppend) -> bool:
        """Let a thread handle the answer to an append, unless another one or the loop does."""
        with self._lock:
            is_free = append.queue.direct is append and append.claimed_by is None
            if is_free:
                append.claimed_by = threading.get_ident()
            return is_free

    def claim_for_loop(self, queue: PartitionQueue) -> DirectAppend | None:
        """The append of a thread, which becomes the loop's; None if there is none, or the thread handles its answer."""
        with self._lock:
            append = queue.direct
            if append is None or append.claimed_by is not None:
                if append is not None:
                    append.is_wanted = True
                return None
            append.claimed_by, queue.direct = threading.get_ident(), None
            self.unfinished.add(append.batch)
            return append

    def unclaim(self, append: DirectAppend) -> bool:
        """Let others handle the answer, unless others do already. Returns whether the loop wants to."""
        with self._lock:
            if append.claimed_by == threading.get_ident():
                append.claimed_by = None
            return append.is_wanted

    def release_alone(self, append: DirectAppend) -> bool:
        """Release the memory of a thread's append. Returns whether the loop waits for the partition."""
        with self._lock:
            self._used -= append.batch.reserved
            append.queue.is_in_flight, append.queue.direct = False, None
            return append.is_wanted

    def rest(self, queue: PartitionQueue) -> None:
        """No batch of the queue is in flight."""
        with self._lock:
            queue.is_in_flight = False

    def waiting(self) -> list[ProducerBatch]:
        """The batches of all partitions that the loop has not taken yet."""
        with self._lock:
            return [batch for queue in self._queues.values() for batch in queue.waiting()]

    def expire(self, queue: PartitionQueue, created_before_s: float) -> list[ProducerBatch]:
        """Take out the batches that are older than that."""
        with self._lock:
            expired = []
            if queue.filling is not None and queue.filling.created_s < created_before_s:
                queue.make_ready()
            while queue.ready and queue.ready[0].created_s < created_before_s:
                expired.append(queue.ready.popleft())
            return expired

    def clear(self) -> list[ProducerBatch]:
        """Take out all batches."""
        with self._lock:
            cleared = [batch for queue in self._queues.values() for batch in queue.waiting()]
            for queue in self._queues.values():
                queue.make_ready()
                queue.ready.clear()
            return cleared

    def release(self, batch: ProducerBatch) -> None:
        """Release the memory of a batch that is done."""
        with self._lock:
            self._used -= batch.reserved

    def _roll(self, queue: PartitionQueue, max_batch_size: int) -> ProducerBatch:
        queue.make_ready()
        limit = min(self._batch_size, max_batch_size)
        return ProducerBatch(queue.topic_partition, self._config, limit, self._lock)


_of_this_process: weakref.WeakSet[Accumulator] = weakref.WeakSet()


def _refuse_in_fork() -> None:
    for accumulator in list(_of_this_process):
        accumulator.forked()


os.register_at_fork(after_in_child=_refuse_in_fork)
