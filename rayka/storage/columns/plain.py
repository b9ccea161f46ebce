"""Plain batches straight to columns: one pass of compiled code over the bytes of a fetch.

Plain batches are not compressed, and their records have no headers, unless nobody asked for these. The pass finds the
records, copies keys and values to where Arrow's arrays have them, and computes the CRC just ahead, so that each byte
comes into the processor's cache once. It ends at the first batch that is not plain, or is not as its format says.
`read.py` continues there, by batch and column, and raises the errors. So nothing is raised in here.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np

from rayka.storage.columns.big_endian import read_int32, read_int64
from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.crc import add_blocks, begin_crc, crc32c, end_crc, end_of_blocks
from rayka.storage.columns.decode import Bytes, Ints, Longs, read_length, read_varint, write_view
from rayka.storage.columns.intrinsics import (
    address_of,
    advise,
    bytes_at,
    copy_block,
    copy_line,
    map_memory,
    unmap_memory,
)
from rayka.storage.format.batch import (
    ATTRIBUTES_OFFSET,
    BATCH_LENGTH_OFFSET,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_OFFSET,
    LAST_OFFSET_DELTA_OFFSET,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    RECORD_BATCH_OVERHEAD,
    RECORD_COUNT_OFFSET,
)
from rayka.storage.format.records import MIN_RECORD_SIZE

POSITION, NEXT_OFFSET, ROWS, VALUE_BYTES, KEY_BYTES, PIECES, PIECE_BYTES, BATCH_ROWS, BATCH_BYTES = range(9)
"""Items of `counts`: behind the last batch that was read, what there is in the columns, the pieces of files that are
done, and, where there is no room for a batch or its keys, how many records its header counts, and its bytes."""
VIEWED_BUFFER, VIEWED_FROM, COUNTS = range(9, 12)
"""More of them, for views of values: the number of the buffer that they look into, and where in it the data begins."""
DESCRIPTOR, POSITION_IN_FILE, SIZE, START_OFFSET, LAST_ROW = range(5)
"""Columns of `pieces`: where a piece of a file is, its bytes, the first offset that is wanted of it, and how many rows
there were when it had been read."""
FILE_ADDRESS, BUFFER, BUFFER_POSITION, PIECE_COLUMNS = range(5, 9)
"""More of them, for views of values: the address at which the file would begin, or `NOT_MAPPED`, the number of the
buffer that is mapped there, and where in the file that begins."""
NOT_READ = (0,) * (PIECE_COLUMNS - LAST_ROW)
"""What these columns have at first."""
NOT_MAPPED = -1
DONE, NOT_PLAIN, NO_ROOM, HAS_KEY = range(4)
"""Why `fill_plain` ends: at the end of its data, or before a batch with which something is the matter."""
WANTS_VALUES, WANTS_KEYS, WANTS_OFFSETS, WANTS_TIMESTAMPS, WANTS_TYPES, WANTS_HEADERS = 1, 2, 4, 8, 16, 32
COPIES_KEYS = 64
"""Unless this is set too, WANTS_KEYS says that there was no key yet."""
CHECKS_CRC = 128
WANTS_VIEWS = 256
"""Instead of WANTS_VALUES: values stay where they are (`views.py`)."""

_BASE_TIMESTAMP_OFFSET = 27
_MAX_TIMESTAMP_OFFSET = 35
LINE_BYTES = 64
_LARGE_VALUE = 512
_LARGE_COLUMN = 4 << 20
"""So much does not stay in the caches until somebody reads it, but what the cache held instead would have."""
_MAX_LONG = 2**63 - 1
_MICROSECONDS = 1000
_FAILED = -1
_LEAST_AHEAD = 4096
_MOST_AHEAD = 8192
"""So many bytes ahead of the records their CRC is computed: they fit in the processor's smallest cache. With more, the
processor could less often do both at a time."""
_PAGE_BYTES = mmap.PAGESIZE
_READABLE, _SHARED = mmap.PROT_READ, mmap.MAP_SHARED
_POPULATE_READ = 22
"""`MADV_POPULATE_READ` of Linux 5.14: get the pages of a mapped file, from the disk if need be. To read one that the
disk does not give, or that is behind the end of the file, would end the process; this call says so instead."""


class PlainColumns(NamedTuple):
    """The memory of all columns; empty for those that nobody asked for. Keys and values end at `*_ends[row + 1]`.

    A view is two numbers for each row, as `write_view` writes them.
    """

    values: Bytes
    value_ends: Longs
    are_values: Bytes
    keys: Bytes
    key_ends: Longs
    are_keys: Bytes
    offsets: Longs
    timestamps: Longs
    timestamp_types: Ints
    line: Bytes
    """What was appended to a line of large values that is not full yet."""
    views: Longs


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
    position = int(counts[POSITION])
    while position + RECORD_BATCH_OVERHEAD <= len(data):
        end = position + LOG_OVERHEAD + read_int32(data, position + BATCH_LENGTH_OFFSET)
        is_framed = position + RECORD_BATCH_OVERHEAD <= end <= len(data)
        if not is_framed or data[np.uint64(position + MAGIC_OFFSET)] != MAGIC:
            return NOT_PLAIN
        base_offset = read_int64(data, position)
        last_offset_delta = read_int32(data, position + LAST_OFFSET_DELTA_OFFSET)
        if last_offset_delta < 0 or base_offset >= _MAX_LONG - last_offset_delta:  # maybe beyond 64 bits
            return NOT_PLAIN
        next_offset = base_offset + last_offset_delta + 1
        attributes = int(data[np.uint64(position + ATTRIBUTES_OFFSET + 1)])
        is_wanted = next_offset > start_offset and base_offset < end_offset
        if is_wanted and not attributes & CONTROL_FLAG:
            if attributes & CODEC_MASK:
                return NOT_PLAIN
            ended = fill_batch(data, position, end, start_offset, end_offset, wants, max_rows, columns, counts)
            if ended != DONE:
                return ended
        elif is_wanted and wants & CHECKS_CRC:  # else they may be records, and not of a control batch
            crc = crc32c(data, position + ATTRIBUTES_OFFSET, end)
            if crc != read_int32(data, position + CRC_OFFSET) & 0xFFFF_FFFF:
                return NOT_PLAIN
        position = end
        counts[POSITION] = position
        counts[NEXT_OFFSET] = next_offset
    return DONE


@compiled
def fill_from_files(pieces: Longs, wants: int, max_rows: int, columns: PlainColumns, counts: Longs) -> int:
    """As `fill_plain`, with pieces of files, from `counts[PIECES]` on. Each is some whole batches.

    Those that are side by side in a file are mapped at once; with views of the values they are mapped already.
    NOT_PLAIN also means that a piece can't be read like this.
    """
    number, ended = int(counts[PIECES]), DONE
    while number < len(pieces) and ended == DONE:
        if wants & WANTS_VIEWS:
            ended = fill_piece(pieces[number], pieces[number, FILE_ADDRESS], wants, max_rows, columns, counts)
            number += ended == DONE
            continue
        last = last_beside(pieces, number)
        start = pieces[number, POSITION_IN_FILE] // _PAGE_BYTES * _PAGE_BYTES
        size = pieces[last, POSITION_IN_FILE] + pieces[last, SIZE] - start
        address = map_memory((0, size, _READABLE, _SHARED, pieces[number, DESCRIPTOR], start))
        if address == _FAILED:
            return NOT_PLAIN
        while number <= last and ended == DONE:
            ended = fill_piece(pieces[number], address - start, wants, max_rows, columns, counts)
            number += ended == DONE
        unmap_memory((address, size))
    return ended


@compiled
def last_beside(pieces: Longs, number: int) -> int:
    """The last of the pieces from this one on that each begin where the one before ends."""
    while number + 1 < len(pieces):
        this, following = pieces[number], pieces[number + 1]
        is_beside = following[POSITION_IN_FILE] == this[POSITION_IN_FILE] + this[SIZE]
        if not is_beside or following[DESCRIPTOR] != this[DESCRIPTOR]:
            break
        number += 1
    return number


@compiled
def fill_piece(piece: Longs, file_address: int, wants: int, max_rows: int, columns: PlainColumns, counts: Longs) -> int:
    """As `fill_plain`, with one piece of a file that is mapped as if it began at this address."""
    if file_address == NOT_MAPPED:
        return NOT_PLAIN
    counts[VIEWED_BUFFER], counts[VIEWED_FROM] = piece[BUFFER], piece[POSITION_IN_FILE] - piece[BUFFER_POSITION]
    address, size = file_address + piece[POSITION_IN_FILE], piece[SIZE]
    page = address // _PAGE_BYTES * _PAGE_BYTES
    if advise((page, address + size - page, _POPULATE_READ)) == _FAILED:
        return NOT_PLAIN
    data = bytes_at(address, size)
    ended = fill_plain(data, piece[START_OFFSET], _MAX_LONG, wants, max_rows, columns, counts)
    if ended != DONE:
        return ended
    if counts[POSITION] != size:
        return NOT_PLAIN
    piece[LAST_ROW] = counts[ROWS]
    counts[PIECES] += 1
    counts[PIECE_BYTES] += size
    counts[POSITION] = 0
    return DONE


@compiled
def fill_batch(
    data: Bytes,
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
    record = position + RECORD_BATCH_OVERHEAD
    record_count = read_int32(data, position + RECORD_COUNT_OFFSET)
    if record_count < 0 or record_count * MIN_RECORD_SIZE > end - record:
        return NOT_PLAIN
    counts[BATCH_ROWS], counts[BATCH_BYTES] = record_count, end - position
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
    least_delta, last_delta = 0, read_int32(data, position + LAST_OFFSET_DELTA_OFFSET)
    crc, crc_position = begin_crc(), position + ATTRIBUTES_OFFSET
    is_large = len(columns.values) >= _LARGE_COLUMN and end - record >= record_count * _LARGE_VALUE
    is_large = is_large and address_of(columns.values) % LINE_BYTES == 0
    if is_large:
        begin_line(columns.values, value_bytes, columns.line)
    for _ in range(record_count):
        if wants & CHECKS_CRC and crc_position < record + _LEAST_AHEAD:
            crc_end = end_of_blocks(crc_position, min(record + _MOST_AHEAD, end))
            crc = add_blocks(crc, data, crc_position, crc_end)
            crc_position = max(crc_position, crc_end)
        length, at = read_length(data, record, end)
        if at < 0 or length < 1:
            return NOT_PLAIN
        record = at + length
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
            if is_large:
                append_past_caches(columns.values, value_bytes, columns.line, data, value, value_length)
            else:
                copy_block(columns.values, value_bytes, data, value, value_length)
            value_bytes += max(value_length, 0)
            columns.value_ends[row + 1] = value_bytes
            columns.are_values[row] = value_length >= 0
        if wants & WANTS_VIEWS:
            write_view(columns.views, row, data, value, value_length, counts[VIEWED_BUFFER], counts[VIEWED_FROM])
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
    if is_large:
        end_line(columns.values, value_bytes, columns.line)
    counts[ROWS], counts[VALUE_BYTES], counts[KEY_BYTES] = row, value_bytes, key_bytes
    return DONE


@compiled
def begin_line(target: Bytes, position: int, line: Bytes) -> None:
    """Take what the line of `position` has already, for `append_past_caches`."""
    filled = position % LINE_BYTES
    copy_block(line, 0, target, position - filled, filled)


@compiled
def append_past_caches(target: Bytes, position: int, line: Bytes, source: Bytes, start: int, length: int) -> None:
    """As `copy_block`, with fewer accesses to the memory: only whole lines are written, past the caches, and what is
    less stays in `line`. `target` begins with a line. Other threads see it after a lock, such as the GIL.
    """
    filled = position % LINE_BYTES
    head = min(LINE_BYTES - filled, max(length, 0))
    copy_block(line, filled, source, start, head)
    if filled + head < LINE_BYTES:
        return
    copy_line(target, position - filled, line, 0)
    lines = (length - head) // LINE_BYTES * LINE_BYTES
    for at in range(head, head + lines, LINE_BYTES):
        copy_line(target, position + at, source, start + at)
    copy_block(line, 0, source, start + head + lines, length - head - lines)


@compiled
def end_line(target: Bytes, position: int, line: Bytes) -> None:
    """Write the last line, which is not full."""
    filled = position % LINE_BYTES
    copy_block(target, position - filled, line, 0, filled)
