"""The compiled half of both conversions: located messages written as records, located records written as messages."""

from __future__ import annotations

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes, Ints, Longs
from rayka.storage.columns.encode import copy_bytes, field_size, varint_size, write_field, write_varint
from rayka.storage.format.batch import LOG_APPEND_TIME_FLAG, RECORD_BATCH_OVERHEAD
from rayka.storage.format.legacy.checksum import crc32
from rayka.storage.format.legacy.locate import (
    ATTRIBUTES,
    KEY_LENGTH,
    KEY_POSITION,
    OFFSET,
    TIMESTAMP,
    VALUE_LENGTH,
    VALUE_POSITION,
)

MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 1
"""Bytes of a record without headers beside its key and value, each number at its longest."""
_MAX_OFFSET_DELTA = 0x7FFF_FFFF


@compiled
def write_records(data: Bytes, rows: Longs, first: int, max_batch_size: int, out: Bytes) -> tuple[int, int, int]:
    """Write messages from row `first` on as the records of one batch, behind the 61 bytes of its header.

    The batch ends before `max_batch_size` bytes, and where one timestamp type or log append time ends: a batch has one
    of each. Returns the row after the last, the size of the batch, and the largest timestamp.
    """
    base_offset = rows[first, OFFSET]
    base_timestamp = max_timestamp = rows[first, TIMESTAMP]
    kind = rows[first, ATTRIBUTES] & LOG_APPEND_TIME_FLAG
    position = RECORD_BATCH_OVERHEAD
    for row in range(first, len(rows)):
        timestamp = rows[row, TIMESTAMP]
        if rows[row, ATTRIBUTES] & LOG_APPEND_TIME_FLAG != kind or (kind and timestamp != base_timestamp):
            return row, position, max_timestamp
        delta = rows[row, OFFSET] - base_offset
        size = 2 + varint_size(timestamp - base_timestamp) + varint_size(delta)
        size += field_size(rows[row, KEY_LENGTH]) + field_size(rows[row, VALUE_LENGTH])
        is_full = position + varint_size(size) + size > max_batch_size
        if row > first and (is_full or delta > _MAX_OFFSET_DELTA):
            return row, position, max_timestamp
        position = write_varint(out, position, size)
        out[position] = 0
        position = write_varint(out, position + 1, timestamp - base_timestamp)
        position = write_varint(out, position, delta)
        position = write_field(out, position, data, rows[row, KEY_POSITION], rows[row, KEY_LENGTH])
        position = write_field(out, position, data, rows[row, VALUE_POSITION], rows[row, VALUE_LENGTH])
        out[position] = 0
        position += 1
        max_timestamp = max(max_timestamp, timestamp)
    return len(rows), position, max_timestamp


@compiled
def write_int32(out: Bytes, position: int, number: int) -> int:
    """Write a big-endian int32 (or uint32); the position after it."""
    for i in range(4):
        out[position + i] = (number >> (24 - 8 * i)) & 0xFF
    return position + 4


@compiled
def write_int64(out: Bytes, position: int, number: int) -> int:
    """Write a big-endian int64; the position after it."""
    for i in range(8):
        out[position + i] = (number >> (56 - 8 * i)) & 0xFF
    return position + 8


@compiled
def write_bytes(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    """Write an int32 length and so many bytes; the position after them."""
    return copy_bytes(out, write_int32(out, position, length), data, start, length)


@compiled
def write_messages(
    data: Bytes,
    first: int,
    end: int,
    magic: int,
    attributes: int,
    base_offset: int,
    offsets: Longs,
    timestamps: Longs,
    key_positions: Ints,
    key_lengths: Ints,
    value_positions: Ints,
    value_lengths: Ints,
    out: Bytes,
) -> int:
    """Write records from row `first` up to `end` as messages whose offsets count from `base_offset`; their size."""
    position = 0
    for row in range(first, end):
        position = write_int64(out, position, offsets[row] - base_offset)
        message = position + 4
        out[message + 4] = magic
        out[message + 5] = attributes
        position = message + 6
        if magic:
            position = write_int64(out, position, timestamps[row])
        position = write_bytes(out, position, data, key_positions[row], key_lengths[row])
        position = write_bytes(out, position, data, value_positions[row], value_lengths[row])
        write_int32(out, message - 4, position - message)
        write_int32(out, message, crc32(out, message + 4, position))
    return position
