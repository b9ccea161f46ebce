"""The header of a record batch (magic 2), read, checked and stamped in place.

Layout, big-endian, offsets in bytes from the start of the batch:

     0 base_offset i64      12 partition_leader_epoch i32   21 attributes i16          27 base_timestamp i64
     8 batch_length i32     16 magic i8                     23 last_offset_delta i32   35 max_timestamp i64
                            17 crc u32                                                 43 producer_id i64
    51 producer_epoch i16   53 base_sequence i32   57 record_count i32   61 records

`batch_length` counts what follows it. The CRC32C covers everything from `attributes` on, so the leader
may set the base offset and its epoch in place. Attribute bits: 0-2 codec, 3 timestamp type,
4 transactional, 5 control, 6 delete horizon (KIP-534). Source: the protocol guide, "Record Batch".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.compression import Codec
from rayka.storage.format.crc_update import updated_crc
from rayka.types import NO_PRODUCER_ID, NO_SEQUENCE, TimestampType

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap

HEADER = struct.Struct(">qiibIhiqqqhii")
RECORD_BATCH_OVERHEAD = HEADER.size
LOG_OVERHEAD = 12
"""Bytes of base offset and batch length, which the batch length does not count."""
MAGIC = 2
BATCH_LENGTH_OFFSET = 8
MAGIC_OFFSET = 16
CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21
LAST_OFFSET_DELTA_OFFSET = 23
RECORD_COUNT_OFFSET = 57
MIN_BATCH_LENGTH = RECORD_BATCH_OVERHEAD - LOG_OVERHEAD

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_CRC = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhi")
_LEADER_EPOCH_OFFSET = 12
_MAX_TIMESTAMP_OFFSET = 35
_PRODUCER_OFFSET = 43
MAX_SEQUENCE = 0x7FFF_FFFF
_HIGHEST_CODEC = max(Codec)


class BatchHeader(NamedTuple):
    """The 61 bytes before the records. Timestamps in milliseconds since the epoch."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record that the batch had when it was produced."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap to 0 after 2^31 - 1. -1 without a producer."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def codec(self) -> Codec:
        """The compression codec; raises UNSUPPORTED_COMPRESSION_TYPE for ids that Kafka does not know."""
        codec = self.attributes & CODEC_MASK
        if codec > _HIGHEST_CODEC:
            raise RaykaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type id: {codec}")
        return Codec(codec)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the log set the timestamps."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_FLAG else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the records are markers that consumers do not see."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time at which tombstones may go (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id > NO_PRODUCER_ID


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`. CORRUPT_MESSAGE when fewer than 61 bytes are left."""
    try:
        return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))
    except struct.error:
        raise RaykaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{len(buffer) - position} bytes at position {position} are too few for a record batch header",
        ) from None


def iter_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each complete batch from `position` on, without checking the CRC.

    Ends before an incomplete last batch, as in a fetch answer. Raises CORRUPT_MESSAGE at an impossible
    length and UNSUPPORTED_FOR_MESSAGE_FORMAT at another magic.
    """
    end = len(buffer)
    while position + RECORD_BATCH_OVERHEAD <= end:
        header = read_header(buffer, position)
        check_frame(position, header)
        next_position = position + LOG_OVERHEAD + header.batch_length
        if next_position > end:
            return
        yield position, header
        position = next_position


def is_intact(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch is complete, of magic 2 and as its CRC says."""
    end = position + LOG_OVERHEAD + header.batch_length
    return (
        header.batch_length >= MIN_BATCH_LENGTH
        and header.magic == MAGIC
        and end <= len(buffer)
        and _crc(buffer, position, end) == header.crc
    )


def ensure_intact(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """What any batch must be: complete, of magic 2, with a right CRC and a known codec.

    Raises CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT or UNSUPPORTED_COMPRESSION_TYPE.
    """
    length = header.batch_length
    if header.magic != MAGIC or length < MIN_BATCH_LENGTH:
        check_frame(position, header)
    end = position + LOG_OVERHEAD + length
    if end > len(buffer):
        raise _corrupt(position, f"has {len(buffer) - position} of its {header.size_in_bytes} bytes")
    crc = _crc(buffer, position, end)
    if crc != header.crc:
        raise _corrupt(position, f"has CRC {crc:#010x}, its header says {header.crc:#010x}")
    if header.attributes & CODEC_MASK > _HIGHEST_CODEC:
        raise RaykaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type id: {header.attributes & CODEC_MASK}"
        )


def validate(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """What a batch from a producer must be: intact, not empty, without gaps, not a control batch.

    Raises INVALID_RECORD beside the errors of `ensure_intact`. The records inside are not decoded.
    """
    ensure_intact(buffer, position, header)
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        raise _invalid(
            position, f"has {header.record_count} records and a last offset delta of {header.last_offset_delta}"
        )
    if header.attributes & CONTROL_FLAG:
        raise _invalid(position, "is a control batch, which only brokers write")
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise _invalid(position, f"of producer {header.producer_id} has base sequence {header.base_sequence}")
    if header.attributes & TRANSACTIONAL_FLAG and header.producer_id <= NO_PRODUCER_ID:
        raise _invalid(position, "is transactional and has no producer id")


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch in place; the CRC does not cover them."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + _LEADER_EPOCH_OFFSET, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Make `now_ms` the timestamp of every record (`message.timestamp.type=LogAppendTime`), with a new CRC."""
    header, before = read_header(buffer, position), _crc_of_header(buffer, position)
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_OFFSET, header.attributes | LOG_APPEND_TIME_FLAG)
    _BASE_OFFSET.pack_into(buffer, position + _MAX_TIMESTAMP_OFFSET, now_ms)
    _seal_again(buffer, position, header, before)


def stamp_producer(
    buffer: bytearray | memoryview, position: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Give a built batch to another producer epoch, as an idempotent producer does when it starts over."""
    header, before = read_header(buffer, position), _crc_of_header(buffer, position)
    _PRODUCER.pack_into(buffer, position + _PRODUCER_OFFSET, producer_id, producer_epoch, base_sequence)
    _seal_again(buffer, position, header, before)


def stamp_transactional(buffer: bytearray | memoryview) -> None:
    """Make a built batch part of its producer's transaction."""
    header, before = read_header(buffer), _crc_of_header(buffer, 0)
    _ATTRIBUTES.pack_into(buffer, ATTRIBUTES_OFFSET, header.attributes | TRANSACTIONAL_FLAG)
    _seal_again(buffer, 0, header, before)


_KEEP_GIL, _MAY_RELEASE_GIL = 0, -1
_BRIEF_BYTES = 4 << 20
"""The CRC of this many bytes takes less time than to get the GIL back from a busy thread."""


def seal(buffer: bytearray | memoryview, position: int, end: int) -> None:
    """Write the CRC of the batch that lies from `position` to `end`."""
    seal_with(buffer, position, _crc(buffer, position, end))


def seal_with(buffer: bytearray | memoryview, position: int, crc: int) -> None:
    """Write a CRC that is known into the batch at `position`."""
    _CRC.pack_into(buffer, position + CRC_OFFSET, crc)


_UPDATED_BYTES = 128 << 10
"""The CRC of fewer bytes is computed in less time than it is updated."""


def _seal_again(buffer: bytearray | memoryview, position: int, header: BatchHeader, before: int) -> None:
    """Write the CRC of a batch that had a right one when its header was `header`, and the CRC of that `before`."""
    size = header.size_in_bytes
    if size < _UPDATED_BYTES:
        seal(buffer, position, position + size)
    else:
        after = _crc_of_header(buffer, position)
        seal_with(buffer, position, updated_crc(header.crc, before, after, size - RECORD_BATCH_OVERHEAD))


def _crc_of_header(buffer: Buffer, position: int) -> int:
    return _crc(buffer, position, position + RECORD_BATCH_OVERHEAD)


def _crc(buffer: Buffer, position: int, end: int) -> int:
    with memoryview(buffer)[position + ATTRIBUTES_OFFSET : end] as covered:
        return crc32c(covered, gil_release_mode=_KEEP_GIL if len(covered) <= _BRIEF_BYTES else _MAY_RELEASE_GIL)


def check_frame(position: int, header: BatchHeader) -> None:
    """Raises CORRUPT_MESSAGE at an impossible length and UNSUPPORTED_FOR_MESSAGE_FORMAT at another magic."""
    if header.magic != MAGIC:
        if header.magic in (0, 1):
            raise RaykaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                f"The message set at position {position} has magic {header.magic}; record batches have magic {MAGIC}",
            )
        raise _corrupt(position, f"has magic {header.magic}")
    if header.batch_length < MIN_BATCH_LENGTH:
        raise _corrupt(position, f"has a batch length of {header.batch_length}")


def _corrupt(position: int, what: str) -> RaykaError:
    return RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The record batch at position {position} {what}")


def _invalid(position: int, what: str) -> RaykaError:
    return RaykaError(ErrorCode.INVALID_RECORD, f"The record batch at position {position} {what}")
