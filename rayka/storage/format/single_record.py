"""Batches of one large record, whose value is written and read in place, without a copy of the batch.

Such a record has no key and no headers. A few bytes come before its value (the prefix), and one comes after it: the
number of its headers (the suffix). `rayka.storage.format.records` describes all fields.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from crc32c import crc32c

from rayka.storage.format.batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER,
    LOG_OVERHEAD,
    MAGIC,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    seal_with,
)
from rayka.storage.format.crc_update import updated_crc
from rayka.storage.format.records import NULL_ZIGZAG
from rayka.storage.format.varint import continue_unsigned, encode_varint
from rayka.types import NO_LEADER_EPOCH

PREFIX_BYTES: Final = RECORD_BATCH_OVERHEAD + 5 + 1 + 10 + 5 + 1 + 5
"""The most bytes from the start of a batch to the value: the batch's header, then the record's length, attributes,
timestamp delta, offset delta, null key, and the length of its value."""
SUFFIX: Final = b"\x00"
"""No headers."""
_BEFORE_LENGTH: Final = b"\x00\x00\x00\x01"
"""Attributes, timestamp delta, offset delta, no key."""


class ValueCrc(NamedTuple):
    """What the CRC of other bytes with a value behind them is, and what it was `before` the value."""

    crc: int
    before: int


def seal_single(
    batch: memoryview, value_size: int, known: ValueCrc, now_ms: int, producer_id: int, epoch: int, sequence: int
) -> None:
    """Write the header of a batch whose record is in its place.

    The value is not read again. If it does not have the CRC that is `known` of it, the batch's CRC is wrong too.
    """
    HEADER.pack_into(
        batch, 0, 0, len(batch) - LOG_OVERHEAD, NO_LEADER_EPOCH, MAGIC, 0, 0, 0, now_ms, now_ms,
        producer_id, epoch, sequence, 1,
    )  # fmt: skip
    before = crc32c(batch[ATTRIBUTES_OFFSET : len(batch) - len(SUFFIX) - value_size])
    seal_with(batch, 0, crc32c(SUFFIX, updated_crc(known.crc, known.before, before, value_size)))


def record_prefix(value_size: int) -> bytes:
    """The bytes of the record before its value; the header of the batch comes before them."""
    fields = _BEFORE_LENGTH + encode_varint(value_size)
    return encode_varint(len(fields) + value_size + len(SUFFIX)) + fields


def value_place(start: bytes, header: BatchHeader) -> tuple[int, int] | None:
    """The position in the batch, and the size, of the value of its only record; None if the batch is another one.

    `start` has the first `PREFIX_BYTES` of the batch. Sizes are zig-zag varints: an odd one is negative, a null value.
    """
    if header.record_count != 1 or header.last_offset_delta or header.magic != MAGIC:
        return None
    if header.attributes & (CODEC_MASK | CONTROL_FLAG):
        return None
    try:
        _, position = _unsigned(start, RECORD_BATCH_OVERHEAD)  # the length of the record
        _, position = _unsigned(start, position + 1)  # the timestamp delta, behind the attributes
        _, position = _unsigned(start, position)  # the offset delta
        if start[position] != NULL_ZIGZAG:
            return None
        zigzag, position = _unsigned(start, position + 1)
    except IndexError:
        return None
    is_null, size = zigzag & 1, zigzag >> 1
    has_headers = position + size + len(SUFFIX) != header.size_in_bytes
    return None if is_null or has_headers else (position, size)


def _unsigned(data: bytes, position: int) -> tuple[int, int]:
    number = data[position]
    return (number, position + 1) if number < 0x80 else continue_unsigned(data, position + 1, number)
