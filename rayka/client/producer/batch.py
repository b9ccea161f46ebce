"""A batch of one partition: the columns of its records while it fills, its bytes from then on, and its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rayka.actors.channel.memory_file import take_memory
from rayka.client.compiled import Compiled
from rayka.client.producer.future import BatchCompletion, BatchMetadata, ProduceFuture, RecordMetadata
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, stamp_producer
from rayka.storage.format.builder import append_records, max_record_size
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import seal_batch
from rayka.types import NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from rayka.client.producer.direct_sender import DirectAppend

Headers = Sequence[tuple[str, bytes | None]]
T = TypeVar("T")

APPENDED = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
"""The answers to an append after which the batch is in the log."""
NS = 1_000_000
"""Nanoseconds in a millisecond."""
PLAIN_OVERHEAD = 3 + 1 + 6 + 3 + 1 + 3 + 1
"""The most bytes beside the value, if that is below 512 KB, of a record without key, headers and given timestamp."""
KEY_OVERHEAD = 4
"""The most bytes that a key takes beside itself, above what null takes."""
MAX_RECORD_OVERHEAD = max_record_size(None, None)
_RESERVE_BYTES = 16_384
_RESERVE_STEPS = 16
"""A batch grows to its limit in at most this many steps, or in steps of `_RESERVE_BYTES` if these are larger."""
_FEW_RECORDS = 16
"""Plain Python encodes this many records in less time than compiled code needs to begin."""
_compiled = Compiled(
    "rayka.storage.columns.rows", "encode_lists", lambda encode: encode([b"value"], [b"key"], [()], [0])
)


class ProducerBatch(BatchCompletion):
    """A batch that is filling, then waits, is sent, maybe several times, and is done.

    `size` is the most that its records can take, and it is closed before that is more than `limit`. `reserved` is what
    counts as used memory; it grows in steps, ahead of `size`, so that most records need not change it. `keys` and
    `headers` may be shorter than the other columns: the records behind their ends have none. `is_waited`: a thread
    waited for the outcome. `direct` is set once a thread has sent the batch itself.
    """

    __slots__ = (
        "attempts",
        "base_sequence",
        "buffer",
        "codec",
        "created_s",
        "direct",
        "error_message",
        "headers",
        "is_waited",
        "keys",
        "last_error",
        "level",
        "limit",
        "record_count",
        "reserved",
        "size",
        "timestamps_ns",
        "topic_partition",
        "values",
    )

    def __init__(self, topic_partition: TopicPartition, config: ProducerConfig, limit: int = 0) -> None:
        super().__init__()
        self.topic_partition = topic_partition
        self.created_s = time.monotonic()
        self.codec, self.level = config.codec, config.compression_level
        self.limit = limit
        self.size, self.reserved = RECORD_BATCH_OVERHEAD, 0
        self.values: list[bytes | None] = []
        self.timestamps_ns: list[int] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Headers] = []
        self.record_count = 0
        self.buffer: bytearray | memoryview | None = None
        self.base_sequence = NO_SEQUENCE
        self.attempts = 0
        self.last_error = ErrorCode.NONE
        self.error_message: str | None = None
        self.is_waited = False
        self.direct: DirectAppend | None = None

    @classmethod
    def of_buffer(
        cls, topic_partition: TopicPartition, config: ProducerConfig, buffer: bytearray | memoryview, record_count: int
    ) -> ProducerBatch:
        """A batch that is already encoded."""
        batch = cls(topic_partition, config)
        batch.buffer = buffer
        batch.size, batch.record_count = len(buffer), record_count
        return batch

    @property
    def is_empty(self) -> bool:
        """Whether it has no records."""
        return not self.values and not self.record_count

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
        if self.direct is not None and not self.done:
            self.direct.wait(timeout_s)
        if self.done:
            return True
        return super().wait(None if timeout_s is None else max(timeout_s - (time.monotonic() - began_s), 0))

    def when_done(self, callback: Callable[[], object]) -> None:
        """As `BatchCompletion.when_done`; the event loop sees to it."""
        super().when_done(callback)
        if self.direct is not None and not self.done:
            self.direct.hand_over()

    def add(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers, size: int) -> int:
        """Append a record of at most `size` bytes, and return its index."""
        index = len(self.values)
        try:
            self.values.append(value)
            self.timestamps_ns.append(timestamp * NS)
            if key is not None:
                put_at(self.keys, index, key, None)
            if headers:
                put_at(self.headers, index, headers, ())
        except BaseException:
            self.cut(index)
            raise
        self.size += size
        return index

    def cut(self, count: int) -> None:
        """Keep the first `count` records: Ctrl-C may come when only some columns have the next one."""
        for column in (self.values, self.timestamps_ns, self.keys, self.headers):
            del column[count:]

    def fill(self, values: Iterable[Any], timestamp: int, limit: int) -> bool:
        """Make these the records of an empty batch if they are a list of bytes and take at most `limit` bytes.

        Several times as quick as `add` for each. Returns whether it was done.
        """
        if not isinstance(values, list) or set(map(type, values)) != {bytes}:
            return False
        size = self.size + sum(map(len, values)) + len(values) * MAX_RECORD_OVERHEAD
        if size > limit:
            return False
        self.values, self.timestamps_ns, self.size = values.copy(), [timestamp * NS] * len(values), size
        return True

    def reserve(self) -> int:
        """Reserve memory for the records and some more. Returns the bytes added."""
        before = self.reserved
        if self.size > before:
            step = max(_RESERVE_BYTES, self.limit // _RESERVE_STEPS)
            self.reserved = max(self.size, min(self.size + step, self.limit))
        return self.reserved - before

    def build(self, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray | memoryview:
        """Encode the records, as the batch with this sequence; the first time only."""
        self.base_sequence = base_sequence
        if self.buffer is not None:
            stamp_producer(self.buffer, 0, producer_id, producer_epoch, base_sequence)
            return self.buffer
        self.record_count = len(self.values)
        self.buffer = seal_batch(
            self._encode(),
            record_count=self.record_count,
            base_timestamp=self.timestamps_ns[0] // NS,
            max_timestamp=max(self.timestamps_ns) // NS,
            codec=self.codec,
            level=self.level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        self._drop_columns()
        return self.buffer

    def finish(self) -> None:
        """Release the memory of the records; their timestamps stay for the futures."""
        self.record_count = self.record_count or len(self.values)
        self._drop_columns()
        self.buffer = None

    def _encode(self) -> memoryview:
        if self.record_count > _FEW_RECORDS and _compiled.function is not None:
            take = take_memory if self.codec is Codec.NONE else None
            encoded: memoryview | None = _compiled.function(
                self.values, self.keys, self.headers, self.timestamps_ns, take
            )
            if encoded is not None:
                return encoded
        _compiled.count(self.record_count)
        timestamps = [timestamp // NS for timestamp in self.timestamps_ns]
        return memoryview(append_records(self.values, self.keys, self.headers, timestamps))

    def _drop_columns(self) -> None:
        self.values, self.keys, self.headers = [], [], []


class RecordFuture(ProduceFuture[RecordMetadata], eq=False, gc=False):
    """The outcome of one `send`."""

    _completion: ProducerBatch
    _index: int

    def _value(self) -> RecordMetadata:
        batch = self._completion
        offset = NO_OFFSET if batch.base_offset == NO_OFFSET else batch.base_offset + self._index
        appended_ms = batch.log_append_time_ms
        timestamp = batch.timestamps_ns[self._index] // NS if appended_ms == NO_TIMESTAMP else appended_ms
        return RecordMetadata(*batch.topic_partition, offset, timestamp)


class BatchFuture(ProduceFuture[BatchMetadata], eq=False, gc=False):
    """The outcome of one batch of `send_batch`."""

    _completion: ProducerBatch

    def _value(self) -> BatchMetadata:
        batch = self._completion
        return BatchMetadata(*batch.topic_partition, batch.base_offset, batch.record_count)


def put_at(column: list[T], index: int, value: T, missing: T) -> None:
    """Append a value that is to have this index, behind missing ones if the column is shorter."""
    if len(column) != index:
        column.extend([missing] * (index - len(column)))
    column.append(value)
