"""A batch of one partition: its records while it fills, its bytes from then on, and its outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rayka.client.producer.filling import FillingRecords, Headers, new_records
from rayka.client.producer.future import BatchCompletion, BatchMetadata, ProduceFuture, RecordMetadata
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, stamp_producer
from rayka.storage.format.builder import max_record_size
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import seal_batch
from rayka.types import NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from rayka.client.producer.direct_sender import DirectAppend

APPENDED = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
"""The answers to an append after which the batch is in the log."""
MAX_RECORD_OVERHEAD = max_record_size(None, None)
_UNUSED = threading.Lock()


class ProducerBatch(BatchCompletion):
    """A batch that is filling, then waits, is sent, maybe several times, and is done.

    `append` is that of its records, for any thread. `reserved` is what counts as used memory. `is_waited`: a thread
    waited for the outcome. `direct` is set once a thread has sent the batch itself, until `finish`: the two refer to
    each other, and garbage in cycles would cost a program that waits for each record a collection every 128 records.
    `transaction` is the number of that in which it must be sent, if there is one.
    """

    __slots__ = (
        "append",
        "attempts",
        "base_sequence",
        "buffer",
        "codec",
        "created_s",
        "direct",
        "error_message",
        "is_waited",
        "last_error",
        "level",
        "record_count",
        "records",
        "reserved",
        "topic_partition",
        "transaction",
    )

    def __init__(
        self, topic_partition: TopicPartition, config: ProducerConfig, limit: int, lock: threading.Lock = _UNUSED
    ) -> None:
        """It takes at most `limit` bytes, or one record. `lock` is the accumulator's, if that has the batch filled."""
        super().__init__()
        self.topic_partition = topic_partition
        self.created_s = time.monotonic()
        self.codec, self.level = config.codec, config.compression_level
        self.records: FillingRecords = new_records(limit, lock)
        self.append = self.records.append
        self.reserved = 0
        self.record_count = 0
        self.buffer: bytearray | memoryview | None = None
        self.base_sequence = NO_SEQUENCE
        self.attempts = 0
        self.last_error = ErrorCode.NONE
        self.error_message: str | None = None
        self.is_waited = False
        self.direct: DirectAppend | None = None
        self.transaction: int | None = None

    @classmethod
    def of_buffer(
        cls, topic_partition: TopicPartition, config: ProducerConfig, buffer: bytearray | memoryview, record_count: int
    ) -> ProducerBatch:
        """A batch that is already encoded."""
        batch = cls(topic_partition, config, 0)
        batch.buffer = buffer
        batch.record_count = record_count
        batch.records.drop()
        return batch

    @property
    def size(self) -> int:
        """The most bytes that it takes, before compression."""
        return self.records.size if self.buffer is None else len(self.buffer)

    @property
    def count(self) -> int:
        """The number of its records."""
        return self.record_count or len(self.records)

    @property
    def is_encoded(self) -> bool:
        """Whether its records were encoded, or given up."""
        return self.records.is_dropped

    @property
    def refusal(self) -> RaykaError:
        """The leader's last error, as a RaykaError for the program."""
        message = f": {self.error_message}" if self.error_message else ""
        return RaykaError(
            self.last_error, f"{self.record_count} records for {self.topic_partition} were refused{message}"
        )

    def wait(self, timeout_s: float | None) -> bool:
        """As `BatchCompletion.wait`; if a thread has sent the batch, this one reads the answer."""
        self.is_waited = True
        began_s = time.monotonic()
        direct = self.direct
        if direct is not None and not self.done:
            direct.wait(timeout_s)
        if self.done:
            return True
        return super().wait(None if timeout_s is None else max(timeout_s - (time.monotonic() - began_s), 0))

    def when_done(self, callback: Callable[[], object], *, may_repeat: bool = False) -> None:
        """As `BatchCompletion.when_done`; the event loop sees to it."""
        super().when_done(callback, may_repeat=may_repeat)
        direct = self.direct
        if direct is not None and not self.done:
            direct.hand_over()

    def add(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers, size: int) -> int | None:
        """Append a record of at most `size` bytes, and return its index; None if that is too much.

        An empty batch takes any record.
        """
        return self.records.add(value, key, timestamp, headers, size)

    def fill(self, values: Iterable[Any], timestamp: int, limit: int) -> bool:
        """Make these the records of an empty batch if they are a list of bytes and take at most `limit` bytes.

        Several times as quick as `add` for each. Returns whether it was done.
        """
        if not isinstance(values, list) or set(map(type, values)) != {bytes}:
            return False
        size = sum(map(len, values)) + len(values) * MAX_RECORD_OVERHEAD
        if size + RECORD_BATCH_OVERHEAD > limit:
            return False
        self.records.fill(values, timestamp, size)
        return True

    def close(self) -> None:
        """Take no more records."""
        self.records.close()

    def reserve(self) -> int:
        """Count the memory that is reserved for the records. Returns the bytes added."""
        before, self.reserved = self.reserved, self.records.reserved
        return self.reserved - before

    def build(self, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray | memoryview:
        """Encode the records, as the batch with this sequence; the first time only."""
        self.base_sequence = base_sequence
        if self.buffer is not None:
            stamp_producer(self.buffer, 0, producer_id, producer_epoch, base_sequence)
            return self.buffer
        records = self.records
        self.record_count = len(records)
        self.buffer = seal_batch(
            records.encoded(self.codec is Codec.NONE),
            record_count=self.record_count,
            base_timestamp=records.timestamp(0),
            max_timestamp=records.max_timestamp,
            codec=self.codec,
            level=self.level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        records.drop()
        return self.buffer

    def finish(self) -> None:
        """Release the memory of the records; their timestamps stay for the futures. The outcome comes next."""
        self.record_count = self.count
        self.records.drop()
        self.buffer = None
        self.direct = None


class RecordFuture(ProduceFuture[RecordMetadata], eq=False, gc=False):
    """The outcome of one `send`."""

    _completion: ProducerBatch
    _index: int

    def _value(self) -> RecordMetadata:
        batch = self._completion
        offset = NO_OFFSET if batch.base_offset == NO_OFFSET else batch.base_offset + self._index
        appended_ms = batch.log_append_time_ms
        timestamp = batch.records.timestamp(self._index) if appended_ms == NO_TIMESTAMP else appended_ms
        return RecordMetadata(*batch.topic_partition, offset, timestamp)


class BatchFuture(ProduceFuture[BatchMetadata], eq=False, gc=False):
    """The outcome of one batch of `send_batch`."""

    _completion: ProducerBatch

    def _value(self) -> BatchMetadata:
        batch = self._completion
        return BatchMetadata(*batch.topic_partition, batch.base_offset, batch.record_count)
