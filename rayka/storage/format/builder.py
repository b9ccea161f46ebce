"""Building record batches: record by record, as a producer fills them, and again with another codec."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rayka.storage.format.batch import (
    CODEC_MASK,
    HEADER,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    seal,
)
from rayka.storage.format.compression import DEFAULT_MAX_SIZE, Codec, compress
from rayka.storage.format.records import KeyOrValue, encode_record, record_bytes, seal_batch
from rayka.storage.format.varint import SMALL, VARINTS, encode_varint
from rayka.types import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""Length, attributes, timestamp and offset delta, key and value length, header count: each at its longest."""
MAX_HEADER_OVERHEAD = 5 + 5


def max_record_size(key: KeyOrValue, value: KeyOrValue, headers: Sequence[tuple[str, bytes | None]] = ()) -> int:
    """The most bytes that a record with these fields can take in a batch."""
    size = MAX_RECORD_OVERHEAD + (0 if key is None else len(key)) + (0 if value is None else len(value))
    for name, header_value in headers:
        size += MAX_HEADER_OVERHEAD + len(name.encode()) + (0 if header_value is None else len(header_value))
    return size


class RecordBatchBuilder:
    """One batch in the making. Sizes are those before compression."""

    __slots__ = ("_base_timestamp", "_batch", "_codec", "_level", "max_timestamp", "record_count")

    def __init__(self, codec: Codec = Codec.NONE, level: int | None = None) -> None:
        self._codec = codec
        self._level = level
        self._batch = bytearray(RECORD_BATCH_OVERHEAD)
        self._base_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.record_count = 0

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the batch as it is now, not compressed: exact for Codec.NONE."""
        return len(self._batch)

    def append(
        self,
        key: KeyOrValue,
        value: KeyOrValue,
        timestamp: int,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int:
        """Add a record and return `size_in_bytes`. `timestamp` in milliseconds since the epoch."""
        count = self.record_count
        if not count:
            self._base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        record = encode_record(count, timestamp - self._base_timestamp, key, value, headers)
        size = len(record)
        self._batch += VARINTS[size] if size < SMALL else encode_varint(size)
        self._batch += record
        self.record_count = count + 1
        return len(self._batch)

    def has_room_for(
        self,
        key: KeyOrValue,
        value: KeyOrValue,
        headers: Sequence[tuple[str, bytes | None]],
        max_batch_size: int,
    ) -> bool:
        """Whether the record fits below `max_batch_size` bytes; the first record of a batch always does."""
        return not self.record_count or len(self._batch) + max_record_size(key, value, headers) <= max_batch_size

    def build(
        self,
        *,
        base_offset: int = 0,
        partition_leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
    ) -> bytearray:
        """The finished batch; the builder is used up. Another epoch or sequence: `batch.stamp_producer`."""
        return seal_batch(
            self._batch,
            record_count=self.record_count,
            base_timestamp=self._base_timestamp,
            max_timestamp=self.max_timestamp,
            base_offset=base_offset,
            codec=self._codec,
            level=self._level,
            partition_leader_epoch=partition_leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            flags=TRANSACTIONAL_FLAG if is_transactional else 0,
        )


def append_records(
    values: Sequence[KeyOrValue],
    keys: Sequence[KeyOrValue],
    headers: Sequence[Sequence[tuple[str, bytes | None]]],
    timestamps: Sequence[int],
) -> bytearray:
    """The records of one batch behind 61 bytes for its header; `keys` and `headers` may end early."""
    batch, base_timestamp = bytearray(RECORD_BATCH_OVERHEAD), timestamps[0] if timestamps else NO_TIMESTAMP
    columns = zip_longest(values, timestamps, keys, headers)
    for index, (value, timestamp, key, of_record) in enumerate(columns):
        record = encode_record(index, timestamp - base_timestamp, key, value, of_record or ())
        size = len(record)
        batch += VARINTS[size] if size < SMALL else encode_varint(size)
        batch += record
    return batch


def recompress(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    codec: Codec,
    level: int | None = None,
    max_size: int = DEFAULT_MAX_SIZE,
) -> bytearray:
    """Compress the records of a batch with another codec: for topics whose `compression.type` is not "producer".

    Only length, attributes and CRC of the header change. `max_size` bounds the bytes of records in between.
    Raises CORRUPT_MESSAGE if they do not decompress.
    """
    records = compress(codec, record_bytes(buffer, position, header, max_size), level)
    batch = bytearray(RECORD_BATCH_OVERHEAD)
    batch += records
    changed = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD, attributes=header.attributes & ~CODEC_MASK | codec, crc=0
    )
    HEADER.pack_into(batch, 0, *changed)
    seal(batch, 0, len(batch))
    return batch
