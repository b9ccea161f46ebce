"""The compiled half of reading columns: first where each field lies, then its bytes, column by column.

The records come in chunks, each an array of bytes below 2 GiB, and the outputs here are those of one chunk.
A field is a position in the chunk and a length, -1 for null. `locate` finds the fields of the records,
`locate_headers` those of their headers, and `gather` copies the fields of one column to where an Arrow
array wants them. Nothing is raised in here: a broken format is a return value. Numbers are `Any` where
numpy's releases differ in what they say an operation with an int gives.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.intrinsics import copy_block

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]

MOST_INLINE_BYTES = 12
"""A field of so many bytes is in its view."""
SOUND = -1
"""In place of the index of the batch or row that breaks the format."""
_BROKEN = -1
_BROKEN_BATCH = 0
_LAST_SHIFT = 63
_BIT_63_CLEAR = 0x7FFF_FFFF_FFFF_FFFF
_PREFIX_BYTES = 4


class RecordPositions(NamedTuple):
    """Records as `locate` finds them, each an item of every array; its headers begin at their count."""

    offsets: Longs
    timestamps: Longs
    key_positions: Ints
    key_lengths: Ints
    value_positions: Ints
    value_lengths: Ints
    header_positions: Ints
    record_ends: Ints


@compiled
def read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The zig-zag varint at `position` and the position after it, -1 if it does not end before `end`."""
    number: Any = np.int64(0)
    shift: Any = np.int64(0)
    while position < end and shift <= _LAST_SHIFT:
        byte: Any = np.int64(data[np.uint64(position)])
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return int(((number >> 1) & _BIT_63_CLEAR) ^ -(number & 1)), position
        shift += 7
    return 0, _BROKEN


@compiled
def read_length(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The length of the field at `position` (-1: null) and the position of its bytes, -1 if they do not fit."""
    length, position = read_varint(data, position, end)
    if length < -1 or length > end - position:
        return 0, _BROKEN
    return length, position


@compiled
def locate_in_batch(
    data: Bytes, batch: Longs, first_offset: int, end_offset: int, row: int, found: RecordPositions
) -> tuple[int, int]:
    """As `locate`, for one row of its `batches`; `found` is set from `row` on."""
    position, least_delta = batch[0], 0
    for _ in range(batch[2]):
        length, position = read_length(data, position, batch[1])
        if position < 0 or length < 1:
            return row, _BROKEN_BATCH
        end = position + length
        timestamp_delta, position = read_varint(data, position + 1, end)
        if position < 0:
            return row, _BROKEN_BATCH
        offset_delta, position = read_varint(data, position, end)
        if position < 0 or offset_delta < least_delta or offset_delta > batch[6]:
            return row, _BROKEN_BATCH
        least_delta = offset_delta + 1
        if first_offset <= batch[3] + offset_delta < end_offset:
            if not locate_fields(data, position, end, row, found):
                return row, _BROKEN_BATCH
            found.offsets[row] = batch[3] + offset_delta
            found.timestamps[row] = batch[4] + timestamp_delta * batch[5]
            row += 1
        position = end
    return row, SOUND if position == batch[1] else _BROKEN_BATCH


@compiled
def locate_fields(data: Bytes, position: int, end: int, row: int, found: RecordPositions) -> bool:
    """Find key, value and headers of the record whose key is at `position`; False if they break the format."""
    key_length, key_position = read_length(data, position, end)
    if key_position < 0:
        return False
    value_length, value_position = read_length(data, key_position + max(key_length, 0), end)
    if value_position < 0:
        return False
    found.key_positions[row], found.key_lengths[row] = key_position, key_length
    found.value_positions[row], found.value_lengths[row] = value_position, value_length
    found.header_positions[row] = value_position + max(value_length, 0)
    found.record_ends[row] = end
    return True


@compiled
def locate(
    data: Bytes, batches: Longs, first_offset: int, end_offset: int, batch_rows: Longs, found: RecordPositions
) -> tuple[int, int]:
    """Find the records of offsets from `first_offset` up to `end_offset`.

    `batches` has a row for each batch: start and end of its records in `data`, record count, base offset,
    base timestamp and 1, or the log append time and 0, and the largest offset delta. `found` has room for all
    records; `batch_rows[i]` is set to the row at which batch i begins. Returns the number of rows and SOUND or the
    index of the broken batch: one of its records is malformed, or not above the one before, or not in its range.
    """
    row = 0
    for batch in range(len(batches)):
        batch_rows[batch] = row
        row, broken = locate_in_batch(data, batches[batch], first_offset, end_offset, row, found)
        if broken != SOUND:
            return row, batch
    return row, SOUND


@compiled
def locate_and_count(
    data: Bytes,
    batches: Longs,
    first_offset: int,
    end_offset: int,
    batch_rows: Longs,
    found: RecordPositions,
    totals: Longs,
) -> tuple[int, int]:
    """As `locate`; sets `totals` to the bytes and the number of keys, those of values, and how many records may have
    headers. One that is not counted has none and ends right behind their count.
    """
    rows, broken = locate(data, batches, first_offset, end_offset, batch_rows, found)
    totals[:] = 0
    for row in range(rows):
        key_length = found.key_lengths[row]
        value_length = found.value_lengths[row]
        if key_length >= 0:
            totals[0] += key_length
            totals[1] += 1
        if value_length >= 0:
            totals[2] += value_length
            totals[3] += 1
        position: Any = np.uint64(found.header_positions[row])
        if found.header_positions[row] + 1 != found.record_ends[row] or data[position] != 0:
            totals[4] += 1
    return rows, broken


@compiled
def count_headers(data: Bytes, positions: Ints, ends: Ints, header_rows: Longs) -> int:
    """Set `header_rows[i + 1]` to the number of headers of records 0 to i.

    Moves `positions` from the header counts to the first headers. Returns SOUND or the broken record.
    """
    header_rows[0] = 0
    for row in range(len(positions)):
        count, position = read_varint(data, positions[row], ends[row])
        if position < 0 or count < 0 or count > (ends[row] - position) // 2:
            return row
        positions[row] = position
        header_rows[row + 1] = header_rows[row] + count
    return SOUND


@compiled
def locate_headers(
    data: Bytes,
    positions: Ints,
    ends: Ints,
    header_rows: Longs,
    key_positions: Ints,
    key_lengths: Ints,
    value_positions: Ints,
    value_lengths: Ints,
) -> int:
    """Find keys and values of all headers. Returns SOUND or the record whose headers break the format."""
    for row in range(len(positions)):
        position = int(positions[row])
        end = int(ends[row])
        for header in range(header_rows[row], header_rows[row + 1]):
            key_length, key_position = read_length(data, position, end)
            if key_position < 0 or key_length < 0:
                return row
            value_length, value_position = read_length(data, key_position + key_length, end)
            if value_position < 0:
                return row
            key_positions[header] = key_position
            key_lengths[header] = key_length
            value_positions[header] = value_position
            value_lengths[header] = value_length
            position = value_position + max(value_length, 0)
        if position != end:
            return row
    return SOUND


@compiled
def write_view(
    views: Longs, row: int, data: Bytes, position: int, length: int, buffer: int, data_position: int
) -> None:
    """Set a row of Arrow's binary views to the field at `position`, in the buffer with this number, in which `data`
    begins at `data_position`. Source: "Variable-size Binary View Layout" in Arrow's columnar format.

    A view has the length in the first of four int32. Up to twelve bytes follow it; of a longer field the first four,
    the number of the buffer, and where it begins there. A null (-1) is all zeros.
    """
    first: Any = np.int64(0)
    second: Any = np.int64(0)
    for index in range(min(length, _PREFIX_BYTES)):
        first |= np.int64(data[np.uint64(position + index)]) << (32 + 8 * index)
    if length > MOST_INLINE_BYTES:
        second = np.int64(buffer) | np.int64(data_position + position) << 32
    else:
        for index in range(_PREFIX_BYTES, length):
            second |= np.int64(data[np.uint64(position + index)]) << (8 * (index - _PREFIX_BYTES))
    views[row, 0] = first | np.int64(max(length, 0))
    views[row, 1] = second


@compiled
def gather_views(
    data: Bytes, positions: Ints, lengths: Ints, copied: Bytes, buffer: int, start: int, views: Longs, is_valid: Bytes
) -> None:
    """Set views of the fields, and copy those that are longer than a view to `copied`, which begins at `start` in the
    buffer with this number.
    """
    end = 0
    for row in range(len(positions)):
        length = lengths[row]
        is_valid[row] = length >= 0
        write_view(views, row, data, positions[row], length, buffer, start + end - positions[row])
        if length > MOST_INLINE_BYTES:
            copy_block(copied, end, data, positions[row], length)
            end += length


@compiled
def gather(
    data: Bytes, positions: Ints, lengths: Ints, start: int, copied: Bytes, offsets: Longs, is_valid: Bytes
) -> None:
    """Copy the fields to `copied`; `offsets[i]` is `start` and the size of fields 0 to i."""
    end = 0
    for row in range(len(positions)):
        length = lengths[row]
        is_valid[row] = length >= 0
        copy_block(copied, end, data, positions[row], length)
        end += max(length, 0)
        offsets[row] = start + end
