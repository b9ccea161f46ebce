"""The compiled half of reading a journal: frames to fields."""

from __future__ import annotations

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.crc import crc32c
from rayka.storage.columns.decode import Bytes, Longs

_HEADER_BYTES = 20
_CRC_BYTES = 4
_LENGTH_BYTES = 4


@compiled
def _read_uint32(data: Bytes, position: int) -> int:
    return (
        int(data[position])
        | int(data[position + 1]) << 8
        | int(data[position + 2]) << 16
        | int(data[position + 3]) << 24
    )


@compiled
def scan_frames(data: Bytes, next_number: int, positions: Longs, lengths: Longs) -> tuple[int, int]:
    """Find the records of the frames that follow each other from number `next_number` on.

    Sets where they lie in `data`; where their arrays are full, the frame is left. Returns the size of the frames and
    the number of their records.
    """
    position = 0
    count = 0
    while position + _HEADER_BYTES <= len(data):
        size = _read_uint32(data, position + 4)
        number = _read_uint32(data, position + 8) | _read_uint32(data, position + 12) << 32
        records = _read_uint32(data, position + 16)
        body = position + _HEADER_BYTES
        table = _LENGTH_BYTES * records if records > 1 else 0
        if size > len(data) - body or records < 1 or records > len(positions) - count or table > size:
            break
        if number != next_number + count or crc32c(data, position + _CRC_BYTES, body + size) != _read_uint32(
            data, position
        ):
            break
        start = body + table
        for index in range(records):
            length = _read_uint32(data, body + _LENGTH_BYTES * index) if table else size
            if length > body + size - start:
                return position, count
            positions[count + index] = start
            lengths[count + index] = length
            start += length
        count += records
        position = body + size
    return position, count
