"""The compiled half of reading message sets: counts the messages, then finds the fields of each.

A message is a row of `COLUMNS` numbers. A key or value is a position in the bytes and a length, -1 for null. Nothing is
raised in here: a broken format is a return value.
"""

from __future__ import annotations

from rayka.storage.columns.big_endian import read_int32, read_int64
from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes, Longs
from rayka.storage.format.legacy.checksum import crc32
from rayka.types import NO_TIMESTAMP

OFFSET, TIMESTAMP, MAGIC, ATTRIBUTES, KEY_POSITION, KEY_LENGTH, VALUE_POSITION, VALUE_LENGTH = range(8)
COLUMNS = 8

SOUND = 0
BROKEN = 1
WRONG_CRC = 2

_HIGHEST_MAGIC = 1
_MIN_SIZE = 14


@compiled
def count_messages(data: Bytes, start: int) -> tuple[int, int]:
    """How many whole messages lie from `start` on, and where the last of them ends.

    What follows is a part of a message, a record batch, or damage.
    """
    count = 0
    position = start
    end = len(data)
    while position + 12 + _MIN_SIZE <= end:
        size = read_int32(data, position + 8)
        magic = data[position + 16]
        if magic > _HIGHEST_MAGIC or size < _MIN_SIZE + 8 * magic or size > end - position - 12:
            break
        position += 12 + size
        count += 1
    return count, position


@compiled
def locate_messages(data: Bytes, start: int, rows: Longs) -> tuple[int, int]:
    """Fill a row for each of the messages that `count_messages` counted, CRCs checked.

    Returns the number of sound rows, and SOUND or what is wrong with the next.
    """
    position = start
    for row in range(len(rows)):
        message = position + 12
        end = message + read_int32(data, position + 8)
        if crc32(data, message + 4, end) != read_int32(data, message) & 0xFFFF_FFFF:
            return row, WRONG_CRC
        magic = data[message + 4]
        key_at = message + 6 + 8 * magic
        key_length = read_int32(data, key_at)
        key_at += 4
        if key_length < -1 or key_length > end - key_at - 4:
            return row, BROKEN
        value_at = key_at + max(key_length, 0)
        value_length = read_int32(data, value_at)
        value_at += 4
        if value_length < -1 or value_at + max(value_length, 0) != end:
            return row, BROKEN
        rows[row, OFFSET] = read_int64(data, position)
        rows[row, TIMESTAMP] = read_int64(data, message + 6) if magic else NO_TIMESTAMP
        rows[row, MAGIC] = magic
        rows[row, ATTRIBUTES] = data[message + 5]
        rows[row, KEY_POSITION] = key_at
        rows[row, KEY_LENGTH] = key_length
        rows[row, VALUE_POSITION] = value_at
        rows[row, VALUE_LENGTH] = value_length
        position = end
    return len(rows), SOUND
