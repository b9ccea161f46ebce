"""Batches of one large record, whose value is written and read without a copy of the batch.

The record has no key and no headers: what is before its value is a few bytes, and behind it is the number of headers.
"""

from __future__ import annotations

from typing import Final

from rayka.storage.format.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)
from rayka.storage.format.records import NULL_ZIGZAG
from rayka.storage.format.varint import continue_unsigned, encode_varint

PREFIX_BYTES: Final = RECORD_BATCH_OVERHEAD + 5 + 1 + 10 + 5 + 1 + 5
"""The most that is before the value of such a record: header, length, attributes, deltas, key and length."""
SUFFIX: Final = b"\x00"
"""No headers."""
_BEFORE_LENGTH: Final = b"\x00\x00\x00\x01"
"""Attributes, timestamp delta, offset delta, no key."""


def record_prefix(value_size: int) -> bytes:
    """What is before the value of the record, behind the header of the batch."""
    fields = _BEFORE_LENGTH + encode_varint(value_size)
    return encode_varint(len(fields) + value_size + len(SUFFIX)) + fields


def value_place(start: bytes, header: BatchHeader) -> tuple[int, int] | None:
    """Position in the batch, and size, of the value of its only record; None if the batch is not as above.

    `start` has the first `PREFIX_BYTES` of the batch.
    """
    if header.record_count != 1 or header.last_offset_delta or header.magic != MAGIC:
        return None
    if header.attributes & (CODEC_MASK | CONTROL_FLAG):
        return None
    try:
        _, position = _unsigned(start, RECORD_BATCH_OVERHEAD)
        _, position = _unsigned(start, position + 1)
        _, position = _unsigned(start, position)
        if start[position] != NULL_ZIGZAG:
            return None
        length, position = _unsigned(start, position + 1)
    except IndexError:
        return None
    end = header.batch_length + LOG_OVERHEAD
    return (position, length >> 1) if not length & 1 and position + (length >> 1) + len(SUFFIX) == end else None


def _unsigned(data: bytes, position: int) -> tuple[int, int]:
    number = data[position]
    return (number, position + 1) if number < 0x80 else continue_unsigned(data, position + 1, number)
