"""The compiled half of writing columns: fields to the records of record batches.

A field is a position in the column's bytes and a length, -1 for null, as in `columns_decode`. A batch
begins with 61 bytes that are left for its header.
"""

from __future__ import annotations

from typing import NamedTuple

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes, Longs
from rayka.storage.columns.intrinsics import copy_block

_HEADER_SIZE = 61
_LARGE_BYTES = 512
_BIT_57_CLEAR = 0x01FF_FFFF_FFFF_FFFF


class Fields(NamedTuple):
    """One column of fields. `data` may be all memory (see `lists`), which must not be printed."""

    data: Bytes
    positions: Longs
    lengths: Longs

    def __repr__(self) -> str:
        return f"Fields({self.positions!r}, {self.lengths!r})"


@compiled
def varint_size(number: int) -> int:
    """Bytes of `number` as a zig-zag varint."""
    zigzag = (number << 1) ^ (number >> 63)
    size = 1
    while zigzag > 0x7F or zigzag < 0:
        zigzag = (zigzag >> 7) & _BIT_57_CLEAR
        size += 1
    return size


@compiled
def write_varint(out: Bytes, position: int, number: int) -> int:
    """Write `number` as a zig-zag varint; the position after it."""
    zigzag = (number << 1) ^ (number >> 63)
    while zigzag > 0x7F or zigzag < 0:
        out[position] = zigzag & 0x7F | 0x80
        zigzag = (zigzag >> 7) & _BIT_57_CLEAR
        position += 1
    out[position] = zigzag
    return position + 1


@compiled
def copy_bytes(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    """Copy the bytes of a field, none if it is null (-1); the position after them."""
    copy_block(out, position, data, start, length)
    return position + max(length, 0)


@compiled
def write_field(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    """Write length and bytes of a field; the position after it."""
    return copy_bytes(out, write_varint(out, position, length), data, start, length)


@compiled
def field_size(length: int) -> int:
    """Bytes of a field with its length."""
    return varint_size(length) + max(length, 0)


@compiled
def encode(
    keys: Fields,
    values: Fields,
    header_rows: Longs,
    header_keys: Fields,
    header_values: Fields,
    timestamps: Longs,
    max_batch_size: int,
    out: Bytes,
    batches: Longs,
    places: Longs,
) -> int:
    """Write all rows to `out` as batches of at most `max_batch_size` bytes, or of one record that is larger.

    Record i has the headers from `header_rows[i]` up to `header_rows[i + 1]`. `batches` has room for a row for
    each record; what is set of it: the position of a batch in `out`, its end, its first record, its record
    count, its largest timestamp. `places` has room for all records. Returns the number of batches.

    Large values are copied in a loop of their own, after all else: where they are not in the processor's cache, the
    copies take less than half as long as between the reads of all other columns.
    """
    batch = -1
    position = 0
    deferred = 0
    for row in range(len(timestamps)):
        fixed = 1 + field_size(keys.lengths[row]) + field_size(values.lengths[row])
        fixed += varint_size(header_rows[row + 1] - header_rows[row])
        for header in range(header_rows[row], header_rows[row + 1]):
            fixed += field_size(header_keys.lengths[header]) + field_size(header_values.lengths[header])
        delta = row - batches[batch, 2] if batch >= 0 else 0
        timestamp_delta = timestamps[row] - timestamps[row - delta]
        size = fixed + varint_size(timestamp_delta) + varint_size(delta)
        if batch < 0 or position + varint_size(size) + size > batches[batch, 0] + max_batch_size:
            batch += 1
            batches[batch, 0] = position
            batches[batch, 2] = row
            batches[batch, 3] = 0
            batches[batch, 4] = timestamps[row]
            position += _HEADER_SIZE
            delta = timestamp_delta = 0
            size = fixed + 2
        position = write_varint(out, position, size)
        out[position] = 0
        position = write_varint(out, position + 1, timestamp_delta)
        position = write_varint(out, position, delta)
        position = write_field(out, position, keys.data, keys.positions[row], keys.lengths[row])
        length = values.lengths[row]
        if length < _LARGE_BYTES:
            position = write_field(out, position, values.data, values.positions[row], length)
        else:
            position = places[row] = write_varint(out, position, length)
            position += length
            deferred += 1
        position = write_varint(out, position, header_rows[row + 1] - header_rows[row])
        for header in range(header_rows[row], header_rows[row + 1]):
            length = header_keys.lengths[header]
            position = write_field(out, position, header_keys.data, header_keys.positions[header], length)
            length = header_values.lengths[header]
            position = write_field(out, position, header_values.data, header_values.positions[header], length)
        batches[batch, 1] = position
        batches[batch, 3] += 1
        batches[batch, 4] = max(batches[batch, 4], timestamps[row])
    for row in range(len(timestamps) if deferred else 0):
        if values.lengths[row] >= _LARGE_BYTES:
            copy_bytes(out, places[row], values.data, values.positions[row], values.lengths[row])
    return batch + 1
