"""The compiled half of finding batches in a file: from header to header, without Python between them.

What the page cache does not have is not waited for, and nothing is raised: `rayka/client/consumer/stored.py` finds the
same in plain Python, waits, and says what is wrong.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from rayka.storage.columns.big_endian import read_int32, read_int64
from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes, Longs
from rayka.storage.columns.intrinsics import address_of, read_vector
from rayka.storage.format.batch import (
    BATCH_LENGTH_OFFSET,
    CRC_OFFSET,
    LAST_OFFSET_DELTA_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    RECORD_BATCH_OVERHEAD,
    RECORD_COUNT_OFFSET,
)

END, REFUSED, NOT_READ = range(3)
"""Why `find_batches` ends: no whole batch follows, or those that there are are not wanted, or a header is not in the
page cache, or could not be read."""
COUNT, NEXT_OFFSET, PIECES, FIRST = range(4)
LANDMARK_ITEMS = 3
LAST = FIRST + LANDMARK_ITEMS
"""Items of `found`: how many batches and pieces there are, and the offset behind them; then the position, the offset
and the CRC of the first batch, and those of the last one."""
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_NONE_BEHIND = 2**63 - 1


class BatchesInFile(NamedTuple):
    """Whole batches that follow each other in a file; none if those that are there are not wanted."""

    pieces: list[list[int]]
    """The position in the file of each, its size, and how many records its headers count."""
    next_offset: int
    first: list[int]
    """Position, offset and CRC of the first batch."""
    last: list[int]


class HeaderMemory(NamedTuple):
    """What `find_batches` reads into, and sets."""

    header: Bytes
    vector: Longs
    """Address and size of `header`, for the system."""
    found: Longs
    pieces: Longs


def batches_in_file(
    descriptor: int,
    position: int,
    end: int,
    fetch_offset: int,
    end_offset: float,
    piece_bytes: int,
    few_batches: int,
    least_mean_bytes: int,
) -> BatchesInFile | None:
    """As `find_batches`; None if a header was not read."""
    most_pieces = 2 * ((end - position) // piece_bytes + 1)  # two that follow each other have more than `piece_bytes`
    found, pieces = np.zeros(LAST + LANDMARK_ITEMS, np.int64), np.zeros((most_pieces, 3), np.int64)
    memory = HeaderMemory(np.empty(RECORD_BATCH_OVERHEAD, np.uint8), np.zeros(2, np.int64), found, pieces)
    last_end = int(min(end_offset, _NONE_BEHIND))
    limits = piece_bytes, few_batches, least_mean_bytes
    ended = find_batches(descriptor, position, end, fetch_offset, last_end, *limits, memory)
    if ended == NOT_READ:
        return None
    count = found[PIECES] if ended == END else 0
    return BatchesInFile(
        pieces[:count].tolist(), int(found[NEXT_OFFSET]), found[FIRST:LAST].tolist(), found[LAST:].tolist()
    )


def ensure_available() -> None:
    """Raise OSError if this system lacks what `find_batches` calls."""
    if not _NOWAIT or not read_vector.is_available:
        raise OSError("this system can't be asked for what the page cache has (preadv2)")


@compiled
def find_batches(
    descriptor: int,
    position: int,
    end: int,
    fetch_offset: int,
    end_offset: int,
    piece_bytes: int,
    few_batches: int,
    least_mean_bytes: int,
    memory: HeaderMemory,
) -> int:
    """Find the whole batches from `position` up to `end` of a file, in pieces of up to `piece_bytes`, or of one batch
    that has more. Returns why it ends.

    They are wanted if their headers are as the format says, and if they are few or have `least_mean_bytes` on average.
    The first batch has `fetch_offset`, or begins behind it; each one begins behind the one before, and all end before
    `end_offset`.
    """
    header, found, start = memory.header, memory.found, position
    memory.vector[0], memory.vector[1] = address_of(header), len(header)
    piece_start, piece_records, next_offset = position, 0, fetch_offset
    while position + RECORD_BATCH_OVERHEAD <= end:
        if read_vector((descriptor, address_of(memory.vector), 1, position, _NOWAIT)) < RECORD_BATCH_OVERHEAD:
            return NOT_READ
        size = LOG_OVERHEAD + read_int32(header, BATCH_LENGTH_OFFSET)
        base_offset, last_delta = read_int64(header, 0), read_int32(header, LAST_OFFSET_DELTA_OFFSET)
        if header[np.uint64(MAGIC_OFFSET)] != MAGIC or size < RECORD_BATCH_OVERHEAD or last_delta < 0:
            return REFUSED
        if base_offset >= end_offset - last_delta or base_offset + last_delta < next_offset:
            return REFUSED
        if found[COUNT] and base_offset < next_offset:
            return REFUSED
        if position + size > end:
            break
        if position > piece_start and position + size - piece_start > piece_bytes:
            add_piece(memory, piece_start, position, piece_records)
            piece_start, piece_records = position, 0
        piece_records += max(read_int32(header, RECORD_COUNT_OFFSET), 0)
        for landmark in range(LAST if found[COUNT] else FIRST, LAST + 1, LANDMARK_ITEMS):  # the first may be the last
            found[landmark], found[landmark + 1] = position, base_offset
            found[landmark + 2] = read_int32(header, CRC_OFFSET) & 0xFFFF_FFFF
        position, next_offset = position + size, base_offset + last_delta + 1
        found[COUNT], found[NEXT_OFFSET] = found[COUNT] + 1, next_offset
        if found[COUNT] > few_batches and found[COUNT] * least_mean_bytes > position - start:
            return REFUSED
    add_piece(memory, piece_start, position, piece_records)
    return END


@compiled
def add_piece(memory: HeaderMemory, start: int, end: int, records: int) -> None:
    """Append a piece of the file, unless there is nothing in it."""
    if end > start:
        piece = memory.pieces[memory.found[PIECES]]
        piece[0], piece[1], piece[2] = start, end - start, records
        memory.found[PIECES] += 1
