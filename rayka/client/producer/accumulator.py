"""The records that wait to be sent, in batches for each partition.

Any thread appends; the event loop's thread takes batches out. The lock is held for the few lines that
touch a queue, never while anything waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence

from rayka.client.producer.future import BatchMetadata, Completion, ProduceFuture, RecordMetadata
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, stamp_producer
from rayka.storage.format.builder import RecordBatchBuilder
from rayka.types import NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, TopicPartition

Headers = Sequence[tuple[str, bytes | None]]


class ProducerBatch(Completion):
    """A batch that is filling, then waits, is sent, maybe several times, and is done."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "buffer",
        "builder",
        "created_s",
        "error_message",
        "last_error",
        "record_count",
        "size",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, config: ProducerConfig) -> None:
        super().__init__()
        self.topic_partition = topic_partition
        self.created_s = time.monotonic()
        self.builder: RecordBatchBuilder | None = RecordBatchBuilder(config.codec, config.compression_level)
        self.size = RECORD_BATCH_OVERHEAD
        self.record_count = 0
        self.buffer: bytearray | None = None
        self.base_sequence = NO_SEQUENCE
        self.attempts = 0
        self.last_error = ErrorCode.NONE
        self.error_message: str | None = None

    @classmethod
    def of_buffer(
        cls, topic_partition: TopicPartition, config: ProducerConfig, buffer: bytearray, record_count: int
    ) -> ProducerBatch:
        """A batch whose bytes are built already."""
        batch = cls(topic_partition, config)
        batch.builder, batch.buffer = None, buffer
        batch.size, batch.record_count = len(buffer), record_count
        return batch

    def add(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> int:
        """Append a record and return its index."""
        assert self.builder is not None
        self.size = self.builder.append(key, value, timestamp, headers)
        self.record_count += 1
        return self.record_count - 1

    def build(self, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
        """Finish the bytes, as the batch with this sequence; the first time only."""
        self.base_sequence = base_sequence
        if self.builder is None:
            assert self.buffer is not None
            stamp_producer(self.buffer, 0, producer_id, producer_epoch, base_sequence)
            return self.buffer
        self.buffer = self.builder.build(
            producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
        )
        self.builder = None
        return self.buffer


class RecordFuture(ProduceFuture[RecordMetadata]):
    """The outcome of one `send`."""

    __slots__ = ("_index", "_timestamp")

    _completion: ProducerBatch

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._completion = batch
        self._index = index
        self._timestamp = timestamp

    def _value(self) -> RecordMetadata:
        batch = self._completion
        offset = NO_OFFSET if batch.base_offset == NO_OFFSET else batch.base_offset + self._index
        appended_ms = batch.log_append_time_ms
        timestamp = self._timestamp if appended_ms == NO_TIMESTAMP else appended_ms
        return RecordMetadata(*batch.topic_partition, offset, timestamp)


class BatchFuture(ProduceFuture[BatchMetadata]):
    """The outcome of one batch of `send_batch`."""

    __slots__ = ()

    _completion: ProducerBatch

    def __init__(self, batch: ProducerBatch) -> None:
        self._completion = batch

    def _value(self) -> BatchMetadata:
        batch = self._completion
        return BatchMetadata(*batch.topic_partition, batch.base_offset, batch.record_count)


class PartitionQueue:
    """One partition's batches in order: in flight, ready, and the one that is filling.

    `filling` and `ready` are the accumulator's, under its lock; the rest is the sender's, in the loop.
    `outstanding` counts requests without an answer. `has_sequence_gap`: a batch with a sequence was given up.
    `is_muted`: batches have to be sent again before any other. Until `known_until_s` (monotonic) the leader knows
    the producer.
    """

    __slots__ = (
        "filling",
        "has_sequence_gap",
        "in_flight",
        "is_muted",
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
        self.in_flight: list[ProducerBatch] = []
        self.outstanding = 0
        self.is_muted = False
        self.timer: asyncio.TimerHandle | None = None
        self.has_sequence_gap = False
        self.known_until_s = 0.0
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.next_sequence = NO_SEQUENCE

    def drop_done(self) -> None:
        """Remove the batches that are done from the front of the window in flight."""
        while self.in_flight and self.in_flight[0].done:
            del self.in_flight[0]


class Accumulator:
    """All partitions' queues and the memory that they may take together."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._batch_size = max(config.batch_size, RECORD_BATCH_OVERHEAD)
        self._lock = threading.Lock()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._used = 0
        self._limit = config.buffer_memory

    @property
    def used_bytes(self) -> int:
        """Bytes of all records that are not yet done."""
        return self._used

    @property
    def is_full(self) -> bool:
        """Whether `append` would refuse."""
        return self._used >= self._limit

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
    ) -> tuple[RecordFuture, bool] | None:
        """Add a record to the batch that is filling; None if there is no memory.

        `size` is the most that it can take. The flag tells that the sender has something new to look at.
        """
        with self._lock:
            if self._used >= self._limit:
                return None
            batch = queue.filling
            is_news = batch is None
            if batch is None or batch.size + size > min(self._batch_size, max_batch_size):
                batch, is_news = self._roll(queue), True
            self._used -= batch.size
            index = batch.add(key, value, timestamp, headers)
            self._used += batch.size
            if batch.size >= self._batch_size:
                queue.ready.append(batch)
                queue.filling, is_news = None, True
            return RecordFuture(batch, index, timestamp), is_news

    def put(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Add a whole batch behind what is there; False if there is no memory."""
        with self._lock:
            if self._used >= self._limit:
                return False
            if queue.filling is not None:
                queue.ready.append(queue.filling)
                queue.filling = None
            queue.ready.append(batch)
            self._used += batch.size
            return True

    def take(self, queue: PartitionQueue, filled_before_s: float) -> ProducerBatch | None:
        """The next batch to send: a closed one, else the one that is filling if it is older than that."""
        with self._lock:
            if queue.ready:
                return queue.ready.popleft()
            batch = queue.filling
            if batch is None or batch.created_s > filled_before_s:
                return None
            queue.filling = None
            return batch

    def waiting(self) -> list[ProducerBatch]:
        """The batches of all partitions that were not taken yet."""
        with self._lock:
            return [
                batch for queue in self._queues.values() for batch in (*queue.ready, queue.filling) if batch is not None
            ]

    def expire(self, queue: PartitionQueue, created_before_s: float) -> list[ProducerBatch]:
        """Take out the batches that are older than that."""
        with self._lock:
            expired = []
            while queue.ready and queue.ready[0].created_s < created_before_s:
                expired.append(queue.ready.popleft())
            if queue.filling is not None and queue.filling.created_s < created_before_s:
                expired.append(queue.filling)
                queue.filling = None
            return expired

    def release(self, batch: ProducerBatch) -> None:
        """Give back the memory of a batch that is done."""
        with self._lock:
            self._used -= batch.size

    def _roll(self, queue: PartitionQueue) -> ProducerBatch:
        if queue.filling is not None:
            queue.ready.append(queue.filling)
        queue.filling = ProducerBatch(queue.topic_partition, self._config)
        self._used += queue.filling.size
        return queue.filling
