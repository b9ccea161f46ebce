"""The compiled half of the cleaner: walks over batches, notes the offsets of keys, and copies what is kept.

`index_batches` and `filter_batches` do all the work on plain batches: not compressed, not of a transaction, no control
batches. They stop at any other, which the caller unpacks and gives to `index_records` or `filter_batch`. Nothing is
raised in here: what goes wrong is a return value. A batch is as `format.batch` lays it out.
"""

from __future__ import annotations

import numpy as np

from rayka.storage.cleaner.record_rows import (
    DELETE_RETENTION_MS,
    FIRST_DIRTY,
    HORIZON,
    INDEX_INTERVAL,
    LATEST_OFFSET,
    MIN_RECORD_BYTES,
    NOW_MS,
    UPPER_BOUND,
    Keys,
    choose_records,
    copy,
    locate_records,
    put_records,
    write_moved_records,
    write_records,
)
from rayka.storage.columns.big_endian import read_int32, read_int64, write_int32, write_int64
from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.crc import crc32c
from rayka.storage.columns.decode import Bytes, Longs

MORE = 0
"""The data ends, perhaps within a batch."""
SPECIAL = 1
"""At the position is a batch that is not plain."""
FULL = 2
"""The offset map has no room for the next record."""
NO_ROOM = 3
"""The output has no room for the next batch."""
CORRUPT = 4
"""At the position is no intact batch."""

DROPPED = 0
COPIED = 1
REWRITTEN = 2
EMPTIED = 3
BROKEN = 4

HEADER_BYTES = 61
_PLAIN_MASK = 0x37
_APPEND_TIME = 0x08
_CODEC = 0x07
VARINT_GROWTH = 10
"""By how many bytes a record may grow when its timestamp is written against another base."""

# Slots of `progress`: where filtering has got to. The last five are those of the segment that is written.
POSITION, OUT, ENTRIES, RECORDS_READ, RECORDS_KEPT, SEGMENT_SIZE, MAX_TIMESTAMP, OFFSET_OF_MAX, SINCE_ENTRY = range(9)


@compiled
def seal(batch: Bytes, position: int, end: int) -> None:
    """Write the length and the CRC of the batch that lies from `position` to `end`."""
    write_int32(batch, position + 8, end - position - 12)
    write_int32(batch, position + 17, crc32c(batch, position + 21, end))


@compiled
def is_intact(data: Bytes, position: int, end: int) -> bool:
    """Whether the CRC of a batch is right."""
    return (read_int32(data, position + 17) & 0xFFFF_FFFF) == crc32c(data, position + 21, end)


@compiled
def size_of_plain(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """MORE and the size of the plain batch at `position`, or why there is none (MORE and 0: it is not all there)."""
    if position + HEADER_BYTES > end:
        return MORE, 0
    size = read_int32(data, position + 8) + 12
    if size < HEADER_BYTES:
        return CORRUPT, 0
    if position + size > end:
        return MORE, 0
    if data[position + 16] != 2 or data[position + 22] & _PLAIN_MASK:
        return SPECIAL, size
    if not 0 <= read_int32(data, position + 57) * MIN_RECORD_BYTES <= size:
        return CORRUPT, 0
    return MORE, size


# -- noting offsets -------------------------------------------------------------------------------------------------


@compiled
def index_batches(
    data: Bytes, position: int, end: int, first_offset: int, end_offset: int, latest: Longs,
    keys: Keys, entries: Longs, max_entries: int,
) -> tuple[int, int]:  # fmt: skip
    """Note the keys of records from `first_offset` on. Returns a status and the position of the next batch.

    `latest[0]` follows the last offset of the batches that were noted as a whole. No CRC covers the base offsets, so
    one that does not lie behind that and before `end_offset` is damage: it would hide the later records of its keys.
    """
    while True:
        status, size = size_of_plain(data, position, end)
        if status != MORE or size == 0:
            return status, position
        base_offset = read_int64(data, position)
        last_offset = base_offset + read_int32(data, position + 23)
        if not (is_intact(data, position, position + size) and latest[0] < base_offset <= last_offset < end_offset):
            return CORRUPT, position
        status = index_records(
            data, position, data, position + HEADER_BYTES, position + size, first_offset, keys, entries, max_entries
        )
        if status != MORE:
            return status, position
        latest[0] = last_offset
        position += size


@compiled
def index_records(
    header: Bytes, at: int, records: Bytes, start: int, end: int, first_offset: int,
    keys: Keys, entries: Longs, max_entries: int,
) -> int:  # fmt: skip
    """Note the keys of the records of one batch, as `filter_batch` has it. Returns MORE, FULL or CORRUPT."""
    count = read_int32(header, at + 57)
    if not locate_records(records, start, end, count, keys):
        return CORRUPT
    base_offset, last_offset_delta = read_int64(header, at), read_int32(header, at + 23)
    if not put_records(count, base_offset, last_offset_delta, first_offset, keys, entries, max_entries):
        return FULL
    return MORE


# -- keeping records ------------------------------------------------------------------------------------------------


@compiled
def filter_batches(
    data: Bytes, end: int, last_of_producers: Longs, keys: Keys, rules: Longs,
    out: Bytes, index: Longs, progress: Longs,
) -> int:  # fmt: skip
    """Copy to `out` what is kept of the plain batches; returns a status. `index` gets the index entries (`note`).

    The CRC of a batch that stays as it is goes with it, and that of a batch in the map was checked before.
    """
    while True:
        position = progress[POSITION]
        status, size = size_of_plain(data, position, end)
        if status != MORE or size == 0:
            return status
        count = read_int32(data, position + 57)
        if progress[OUT] + size + VARINT_GROWTH * count > len(out) or progress[ENTRIES] == len(index):
            return NO_ROOM
        base_offset = read_int64(data, position)
        last_offset = base_offset + read_int32(data, position + 23)
        was_checked = base_offset >= rules[FIRST_DIRTY] and last_offset <= rules[LATEST_OFFSET]
        is_kept = last_offset + 1 == rules[UPPER_BOUND] or (
            read_int64(data, position + 43) >= 0 and contains(last_of_producers, last_offset)
        )
        outcome, written = filter_batch(
            data, position, data, position + HEADER_BYTES, position + size, False, False, is_kept,
            keys, rules, out, progress,
        )  # fmt: skip
        if outcome == BROKEN:
            return CORRUPT
        if outcome != COPIED and not was_checked and not is_intact(data, position, position + size):
            return CORRUPT
        if outcome == COPIED:
            copy(data, position, position + size, out, progress[OUT])
            written = size
        elif outcome != DROPPED:
            seal(out, progress[OUT], progress[OUT] + written)
        if outcome != DROPPED:
            note(out, progress[OUT], written, rules[INDEX_INTERVAL], index, progress)
            progress[OUT] += written
        progress[POSITION] += size


@compiled
def contains(rising: Longs, number: int) -> bool:
    """Whether a number is among numbers that rise."""
    slot = np.searchsorted(rising, number)
    return bool(slot < len(rising) and rising[slot] == number)


@compiled
def filter_batch(
    header: Bytes, at: int, records: Bytes, start: int, end: int, drops_all: bool, ends_empty: bool, is_kept: bool,
    keys: Keys, rules: Longs, out: Bytes, progress: Longs,
) -> tuple[int, int]:  # fmt: skip
    """What is kept of one batch, with the header at `header[at]` and `records[start:end]`, not compressed.

    Returns DROPPED, COPIED (it stays as it is and nothing is written), REWRITTEN, EMPTIED or BROKEN, and how many bytes
    were written to `out` from `progress[OUT]` on, without length and CRC. `drops_all`: no record is kept. `ends_empty`:
    the marker of a transaction of which no record is left. `is_kept`: the batch stays without records too.
    """
    count = read_int32(header, at + 57)
    if not locate_records(records, start, end, count, keys):
        return BROKEN, 0
    kept, has_tombstone, newest = choose_records(header, at, 0 if drops_all else count, keys, rules)
    progress[RECORDS_READ] += count
    progress[RECORDS_KEPT] += kept
    has_horizon = header[at + 22] & HORIZON
    begins_horizon = not has_horizon and (ends_empty or has_tombstone) and kept > 0
    if kept == 0 and not is_kept:
        return DROPPED, 0
    if kept == count and not begins_horizon and (kept > 0 or not has_horizon):
        return COPIED, 0
    into = progress[OUT]
    copy(header, at, at + HEADER_BYTES, out, into)
    write_int32(out, into + 57, kept)
    if kept == 0:
        out[into + 22] = header[at + 22] & ~(HORIZON | _CODEC)
        write_int64(out, into + 27, read_int64(header, at + 35))
        return EMPTIED, HEADER_BYTES
    if not header[at + 22] & _APPEND_TIME:
        write_int64(out, into + 35, newest)
    if not begins_horizon:
        return REWRITTEN, write_records(records, keys, kept, out, into + HEADER_BYTES) - into
    horizon = rules[NOW_MS] + rules[DELETE_RETENTION_MS]
    out[into + 22] = header[at + 22] | HORIZON
    write_int64(out, into + 27, horizon)
    moved_by = read_int64(header, at + 27) - horizon
    return REWRITTEN, write_moved_records(records, keys, kept, moved_by, out, into + HEADER_BYTES) - into


@compiled
def note(batch: Bytes, position: int, size: int, interval: int, index: Longs, progress: Longs) -> None:
    """Take a batch that was written into account, as `Segment.index_batch` does.

    An index entry is a row: last offset, position in the segment, largest timestamp so far, and its offset.
    """
    last_offset = read_int64(batch, position) + read_int32(batch, position + 23)
    max_timestamp = read_int64(batch, position + 35)
    if max_timestamp > progress[MAX_TIMESTAMP]:
        progress[MAX_TIMESTAMP] = max_timestamp
        progress[OFFSET_OF_MAX] = last_offset
    if progress[SINCE_ENTRY] > interval:
        row = progress[ENTRIES]
        index[row, 0] = last_offset
        index[row, 1] = progress[SEGMENT_SIZE]
        index[row, 2] = progress[MAX_TIMESTAMP]
        index[row, 3] = progress[OFFSET_OF_MAX]
        progress[ENTRIES] = row + 1
        progress[SINCE_ENTRY] = 0
    progress[SINCE_ENTRY] += size
    progress[SEGMENT_SIZE] += size
