"""The compiled part of the cleaner for the records of one batch: each step does one thing for all records.

`locate_records` finds the records and hashes their keys, `put_records` notes them in the offset map, `choose_records`
looks them up there and moves what is kept to the front, `write_records` copies it. As steps of their own the lookups,
which are what memory makes slow, run side by side. Nothing is raised in here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rayka.storage.cleaner.hashing import Words, siphash
from rayka.storage.cleaner.offset_map import Table, last_offset_of, put
from rayka.storage.columns.big_endian import read_int32, read_int64
from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes, Longs, read_length, read_varint
from rayka.storage.columns.encode import varint_size, write_varint

HORIZON = 0x40
MIN_RECORD_BYTES = 7
_CONTROL = 0x20

# Columns of `fields`: where a record begins, where its fields begin behind its length, and where it ends; its deltas;
# the sizes of its key and its value, -1 for null; the last offset of its key.
_START, _BODY, _END, _TIMESTAMP_DELTA, _OFFSET_DELTA, _KEY_SIZE, _VALUE_SIZE, _LATEST = range(8)
# Slots of `rules`: what holds for a whole log.
LATEST_OFFSET, UPPER_BOUND, NOW_MS, DELETE_RETENTION_MS, INDEX_INTERVAL, FIRST_DIRTY = range(6)


class Keys(NamedTuple):
    """The offset map, and a row for each record of one batch: where it lies and what it is, and the hash of its key."""

    table: Table
    secret: Words
    fields: Longs
    hashes: Words


def with_rows(keys: Keys, size: int) -> Keys:
    """The same map, with a row for each record of a batch of `size` bytes."""
    rows = size // MIN_RECORD_BYTES + 1
    if rows <= len(keys.fields):
        return keys
    return keys._replace(fields=np.empty((rows, _LATEST + 1), np.int64), hashes=np.empty((rows, 2), np.uint64))


@compiled
def locate_records(records: Bytes, position: int, end: int, count: int, keys: Keys) -> bool:
    """Fill a row for each record; whether they are as the format says."""
    for row in range(np.uint64(max(count, 0))):
        position = locate_record(records, position, end, keys, row)
        if position < 0:
            return False
    return position == end


@compiled
def locate_record(records: Bytes, start: int, end: int, keys: Keys, row: Any) -> int:
    """Fill the row of the record at `start`; where it ends, -1 if it is broken."""
    fields = keys.fields
    length, body = read_length(records, start, end)
    if body < 0 or length < 1:
        return -1
    record_end = body + length
    timestamp_delta, position = read_varint(records, body + 1, record_end)
    if position < 0:
        return -1
    offset_delta, position = read_varint(records, position, record_end)
    if position < 0:
        return -1
    key_size, key = read_length(records, position, record_end)
    if key < 0:
        return -1
    value_size, value = read_length(records, key + max(key_size, 0), record_end)
    if value < 0:
        return -1
    fields[row, _START], fields[row, _BODY], fields[row, _END] = start, body, record_end
    fields[row, _TIMESTAMP_DELTA], fields[row, _OFFSET_DELTA] = timestamp_delta, offset_delta
    fields[row, _KEY_SIZE], fields[row, _VALUE_SIZE] = key_size, value_size
    keys.hashes[row, 0], keys.hashes[row, 1] = siphash(records, key, max(key_size, 0), keys.secret)
    return record_end


@compiled
def offset_of(row: Any, keys: Keys, base_offset: int, last_offset_delta: int) -> int:
    """The offset of a record. A wrong delta counts as the nearest of its batch: it must not hide later records."""
    return base_offset + int(max(min(keys.fields[row, _OFFSET_DELTA], last_offset_delta), 0))


@compiled
def put_records(
    count: int, base_offset: int, last_offset_delta: int, first_offset: int,
    keys: Keys, entries: Longs, max_entries: int,
) -> bool:  # fmt: skip
    """Note the keys of the records from `first_offset` on; whether the map had room for all of them."""
    for row in range(np.uint64(count)):
        offset = offset_of(row, keys, base_offset, last_offset_delta)
        if (
            keys.fields[row, _KEY_SIZE] >= 0
            and offset >= first_offset
            and not put(keys.hashes[row, 0], keys.hashes[row, 1], offset, keys.table, entries, max_entries)
        ):
            return False
    return True


@compiled
def choose_records(header: Bytes, at: int, count: int, keys: Keys, rules: Longs) -> tuple[int, bool, int]:
    """How many records are kept, whether a tombstone is among them, and their newest timestamp.

    The kept ones have the first rows afterwards.
    """
    fields, hashes = keys.fields, keys.hashes
    for row in range(np.uint64(count)):
        fields[row, _LATEST] = last_offset_of(hashes[row, 0], hashes[row, 1], keys.table)
    kept = 0
    has_tombstone = False
    newest: Any = np.int64(-1)
    base_timestamp = read_int64(header, at + 27)
    for row in range(np.uint64(count)):
        if stays(header, at, row, keys, rules):
            has_tombstone = has_tombstone or fields[row, _VALUE_SIZE] < 0
            newest = max(newest, base_timestamp + fields[row, _TIMESTAMP_DELTA])
            for column in range(_END + 1):
                fields[kept, column] = fields[row, column]
            kept += 1
    return kept, has_tombstone, newest


@compiled
def stays(header: Bytes, at: int, row: Any, keys: Keys, rules: Longs) -> bool:
    """Whether a record is kept: the map doesn't know its offset, or it is the last of its key, and its time isn't over.

    All records of a control batch are kept.
    """
    offset = offset_of(row, keys, read_int64(header, at), read_int32(header, at + 23))
    if header[at + 22] & _CONTROL or offset > rules[LATEST_OFFSET]:
        return True
    is_over = (
        keys.fields[row, _VALUE_SIZE] < 0 and header[at + 22] & HORIZON and rules[NOW_MS] >= read_int64(header, at + 27)
    )
    return bool(keys.fields[row, _KEY_SIZE] >= 0 and offset >= keys.fields[row, _LATEST] and not is_over)


@compiled
def copy(source: Bytes, start: int, end: int, target: Bytes, position: int) -> None:
    """Copy source[start:end]; the indices are unsigned so that the compiler makes a block copy of the loop."""
    begin: Any = np.uint64(start)
    into: Any = np.uint64(position)
    for index in range(np.uint64(end - start)):
        target[into + index] = source[begin + index]


@compiled
def write_records(records: Bytes, keys: Keys, kept: int, out: Bytes, position: int) -> int:
    """Copy the records that are kept, neighbours in one piece; where they end."""
    fields = keys.fields
    start = end = int(fields[0, _START])
    for row in range(np.uint64(kept)):
        if fields[row, _START] != end:
            copy(records, start, end, out, position)
            position += end - start
            start = int(fields[row, _START])
        end = int(fields[row, _END])
    copy(records, start, end, out, position)
    return position + end - start


@compiled
def write_moved_records(records: Bytes, keys: Keys, kept: int, moved_by: int, out: Bytes, position: int) -> int:
    """Copy the records that are kept into a batch whose base timestamp is `moved_by` lower; where they end."""
    for row in range(kept):
        body, end = keys.fields[row, _BODY], keys.fields[row, _END]
        delta, rest = read_varint(records, body + 1, end)
        delta += moved_by
        position = write_varint(out, position, 1 + varint_size(delta) + end - rest)
        out[position] = records[body]
        position = write_varint(out, position + 1, delta)
        copy(records, rest, end, out, position)
        position += end - rest
    return position
