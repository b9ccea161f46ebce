"""Plain batches straight to columns: one pass of compiled code over the bytes of a fetch.

Plain batches are not compressed, and their records have no headers, unless nobody asked for these. The pass finds the
records, copies keys and values to where Arrow's arrays have them, and computes the CRC just ahead, so that each byte
comes into the processor's cache once. It ends at the first batch that is not plain, or is not as its format says.
`read.py` continues there, by batch and column, and raises the errors. So nothing is raised in here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rayka.storage.columns.big_endian import read_int32, read_int64
from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.crc import add_blocks, begin_crc, crc32c, end_crc, end_of_blocks
from rayka.storage.columns.decode import Bytes, Ints, Longs, read_length, read_varint
from rayka.storage.columns.intrinsics import address_of, copy_block, copy_line, read_file
from rayka.storage.format.batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_OFFSET,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    RECORD_BATCH_OVERHEAD,
)
from rayka.storage.format.records import MIN_RECORD_SIZE

POSITION, NEXT_OFFSET, ROWS, VALUE_BYTES, KEY_BYTES, PIECES, FILLED, COUNTS = range(8)
"""Items of `counts`: behind the last batch that was read, what there is in the columns, the pieces of a file that are
done, and how many bytes of the next one are in memory."""
DONE, NOT_PLAIN, NO_ROOM, HAS_KEY = range(4)
"""Why `fill_plain` ends: at the end of its data, or before a batch with which something is the matter."""
WANTS_VALUES, WANTS_KEYS, WANTS_OFFSETS, WANTS_TIMESTAMPS, WANTS_TYPES, WANTS_HEADERS = 1, 2, 4, 8, 16, 32
COPIES_KEYS = 64
"""Unless this is set too, WANTS_KEYS says that there was no key yet."""
CHECKS_CRC = 128

_LENGTH_OFFSET = 8
_MAGIC_OFFSET = 16
_LAST_OFFSET_DELTA_OFFSET = 23
_BASE_TIMESTAMP_OFFSET = 27
_MAX_TIMESTAMP_OFFSET = 35
_COUNT_OFFSET = 57
_LINE = 64
_LARGE_VALUE = 512
_LARGE_COLUMN = 4 << 20
"""So much does not stay in the caches until somebody reads it, but what the cache held instead would have."""
_MAX_LONG = 2**63 - 1
_MICROSECONDS = 1000
_LEAST_AHEAD = 4096
_MOST_AHEAD = 32_768
"""So many bytes ahead of the records their CRC is computed: they fit in the processor's smallest cache."""
_READ_BYTES = 131_072
"""So much of a file is read at a time, or a record if that is larger: it fits in the cache of one core."""


class PlainColumns(NamedTuple):
    """The memory of all columns; empty for those that nobody asked for. Keys and values end at `*_ends[row + 1]`."""

    values: Bytes
    value_ends: Longs
    are_values: Bytes
    keys: Bytes
    key_ends: Longs
    are_keys: Bytes
    offsets: Longs
    timestamps: Longs
    timestamp_types: Ints


class Source(NamedTuple):
    """Where the bytes of a fetch are: in memory, or at a position of a file from where they are read to this memory."""

    data: Bytes
    descriptor: int
    file_position: int


@compiled
def fill_plain(
    data: Bytes,
    start_offset: int,
    end_offset: int,
    wants: int,
    max_rows: int,
    columns: PlainColumns,
    counts: Longs,
) -> int:
    """Append the records with offsets from `start_offset` up to `end_offset`, from `counts[POSITION]` on.

    Control batches are left out. `counts` is that of whole batches. Returns DONE, or why it ends before.
    """
    counts[FILLED] = len(data)
    return fill_batches(Source(data, 0, 0), start_offset, end_offset, wants, max_rows, columns, counts)


@compiled
def fill_from_file(
    descriptor: int,
    pieces: Longs,
    room: Bytes,
    start_offset: int,
    end_offset: int,
    wants: int,
    max_rows: int,
    columns: PlainColumns,
    counts: Longs,
) -> int:
    """As `fill_plain`, with pieces of a file, from `counts[PIECES]` on. Each is read to `room`.

    Each row of `pieces` is a position in the file and a size, that of some whole batches. NOT_PLAIN also means that the
    file can't be read, or ends before.
    """
    for number in range(counts[PIECES], len(pieces)):
        source = Source(room[: pieces[number, 1]], descriptor, pieces[number, 0])
        ended = fill_batches(source, start_offset, end_offset, wants, max_rows, columns, counts)
        if ended != DONE:
            return ended
        if counts[POSITION] != len(source.data):
            return NOT_PLAIN
        counts[PIECES] = number + 1
        counts[POSITION] = counts[FILLED] = 0
    return DONE


@compiled
def fill_batches(
    source: Source,
    start_offset: int,
    end_offset: int,
    wants: int,
    max_rows: int,
    columns: PlainColumns,
    counts: Longs,
) -> int:
    """As `fill_plain`."""
    data = source.data
    position = int(counts[POSITION])
    while position + RECORD_BATCH_OVERHEAD <= len(data):
        if not have(source, position + RECORD_BATCH_OVERHEAD, counts):
            return NOT_PLAIN
        end = position + LOG_OVERHEAD + read_int32(data, position + _LENGTH_OFFSET)
        is_framed = position + RECORD_BATCH_OVERHEAD <= end <= len(data)
        if not is_framed or data[np.uint64(position + _MAGIC_OFFSET)] != MAGIC:
            return NOT_PLAIN
        base_offset = read_int64(data, position)
        last_offset_delta = read_int32(data, position + _LAST_OFFSET_DELTA_OFFSET)
        if last_offset_delta < 0 or base_offset >= _MAX_LONG - last_offset_delta:  # maybe beyond 64 bits
            return NOT_PLAIN
        next_offset = base_offset + last_offset_delta + 1
        attributes = int(data[np.uint64(position + ATTRIBUTES_OFFSET + 1)])
        is_wanted = next_offset > start_offset and base_offset < end_offset
        if is_wanted and not attributes & CONTROL_FLAG:
            if attributes & CODEC_MASK:
                return NOT_PLAIN
            ended = fill_batch(source, position, end, start_offset, end_offset, wants, max_rows, columns, counts)
            if ended != DONE:
                return ended
        elif is_wanted and wants & CHECKS_CRC:  # else they may be records, and not of a control batch
            if not have(source, end, counts):
                return NOT_PLAIN
            crc = crc32c(data, position + ATTRIBUTES_OFFSET, end)
            if crc != read_int32(data, position + CRC_OFFSET) & 0xFFFF_FFFF:
                return NOT_PLAIN
        position = end
        counts[POSITION] = position
        counts[NEXT_OFFSET] = next_offset
    return DONE


@compiled
def have(source: Source, end: int, counts: Longs) -> bool:
    """Whether the bytes up to `end` are in memory. Reads the next ones of the file, as many as the cache likes."""
    filled = int(counts[FILLED])
    if filled < end:
        size = min(max(end - filled, _READ_BYTES), len(source.data) - filled)
        if read_file(source.descriptor, source.data[filled : filled + size], source.file_position + filled) != size:
            return False
        counts[FILLED] = filled + size
    return True


@compiled
def fill_batch(
    source: Source,
    position: int,
    end: int,
    start_offset: int,
    end_offset: int,
    wants: int,
    max_rows: int,
    columns: PlainColumns,
    counts: Longs,
) -> int:
    """As `fill_plain`, for one batch, which begins at `position`. Nothing is counted unless it is DONE."""
    data = source.data
    record = position + RECORD_BATCH_OVERHEAD
    record_count = read_int32(data, position + _COUNT_OFFSET)
    if record_count < 0 or record_count * MIN_RECORD_SIZE > end - record:
        return NOT_PLAIN
    row, value_bytes, key_bytes = int(counts[ROWS]), int(counts[VALUE_BYTES]), int(counts[KEY_BYTES])
    if (
        row + record_count > max_rows
        or (wants & WANTS_VALUES and value_bytes + end - record > len(columns.values))
        or (wants & COPIES_KEYS and key_bytes + end - record > len(columns.keys))
    ):
        return NO_ROOM
    base_offset, base_timestamp = read_int64(data, position), read_int64(data, position + _BASE_TIMESTAMP_OFFSET)
    timestamp_type = 0
    if data[np.uint64(position + ATTRIBUTES_OFFSET + 1)] & LOG_APPEND_TIME_FLAG:
        timestamp_type, base_timestamp = 1, read_int64(data, position + _MAX_TIMESTAMP_OFFSET)
    least_delta, last_delta = 0, read_int32(data, position + _LAST_OFFSET_DELTA_OFFSET)
    crc, crc_position = begin_crc(), position + ATTRIBUTES_OFFSET
    for _ in range(record_count):
        if not have(source, min(record + _LEAST_AHEAD, end), counts):
            return NOT_PLAIN
        if wants & CHECKS_CRC and crc_position < record + _LEAST_AHEAD:
            crc_end = end_of_blocks(crc_position, min(record + _MOST_AHEAD, counts[FILLED], end))
            crc = add_blocks(crc, data, crc_position, crc_end)
            crc_position = max(crc_position, crc_end)
        length, at = read_length(data, record, end)
        if at < 0 or length < 1:
            return NOT_PLAIN
        record = at + length
        if not have(source, record, counts):
            return NOT_PLAIN
        timestamp_delta, at = read_varint(data, at + 1, record)
        if at < 0:
            return NOT_PLAIN
        offset_delta, at = read_varint(data, at, record)
        if at < 0 or offset_delta < least_delta or offset_delta > last_delta:
            return NOT_PLAIN
        least_delta = offset_delta + 1
        offset = base_offset + offset_delta
        if offset < start_offset or offset >= end_offset:
            continue
        key_length, key = read_length(data, at, record)
        if key < 0:
            return NOT_PLAIN
        value_length, value = read_length(data, key + max(key_length, 0), record)
        if value < 0:
            return NOT_PLAIN
        if wants & WANTS_HEADERS:
            headers = value + max(value_length, 0)
            if headers + 1 != record or data[np.uint64(headers)]:
                return NOT_PLAIN
        if wants & WANTS_KEYS:
            if wants & COPIES_KEYS:
                copy_block(columns.keys, key_bytes, data, key, key_length)
                key_bytes += max(key_length, 0)
                columns.key_ends[row + 1] = key_bytes
                columns.are_keys[row] = key_length >= 0
            elif key_length >= 0:
                return HAS_KEY
        if wants & WANTS_VALUES:
            if value_length >= _LARGE_VALUE and len(columns.values) >= _LARGE_COLUMN:
                copy_past_caches(columns.values, value_bytes, data, value, value_length)
            else:
                copy_block(columns.values, value_bytes, data, value, value_length)
            value_bytes += max(value_length, 0)
            columns.value_ends[row + 1] = value_bytes
            columns.are_values[row] = value_length >= 0
        if wants & WANTS_OFFSETS:
            columns.offsets[row] = offset
        if wants & WANTS_TIMESTAMPS:
            timestamp = base_timestamp + timestamp_delta * (1 - timestamp_type)
            columns.timestamps[row] = timestamp * _MICROSECONDS
        if wants & WANTS_TYPES:
            columns.timestamp_types[row] = timestamp_type
        row += 1
    if record != end:
        return NOT_PLAIN
    if wants & CHECKS_CRC:
        crc_end = end_of_blocks(crc_position, end)
        crc = add_blocks(crc, data, crc_position, crc_end)
        if end_crc(crc, data, max(crc_position, crc_end), end) != read_int32(data, position + CRC_OFFSET) & 0xFFFF_FFFF:
            return NOT_PLAIN
    counts[ROWS], counts[VALUE_BYTES], counts[KEY_BYTES] = row, value_bytes, key_bytes
    return DONE


@compiled
def copy_past_caches(target: Bytes, position: int, source: Bytes, start: int, length: int) -> None:
    """As `copy_block`, with fewer accesses to the memory. Other threads see it after a lock, such as the GIL."""
    head = -(address_of(target) + position) & (_LINE - 1)
    copy_block(target, position, source, start, head)
    lines = (length - head) // _LINE * _LINE
    for at in range(head, head + lines, _LINE):
        copy_line(target, position + at, source, start + at)
    copy_block(target, position + head + lines, source, start + head + lines, length - head - lines)
