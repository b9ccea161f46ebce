"""CRC32 in compiled code, eight bytes at a time ("slicing by 8", Kounavis and Berry 2005).

Each message of magic 0 and 1 has a CRC of its own. A call of `zlib.crc32` for each would cost more than all other
work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes

_POLYNOMIAL = 0xEDB88320
_ALL_ONES = 0xFFFF_FFFF


def _tables() -> Any:
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for table in range(1, 8):
        previous = tables[table - 1]
        tables[table] = (previous >> 8) ^ tables[0][previous & 0xFF]
    return tables


_TABLES = _tables()


@compiled
def crc32(data: Bytes, start: int, end: int) -> int:
    """The CRC32 of `data` from `start` to `end`. Indices are unsigned, as in `columns.decode.gather`."""
    crc: Any = np.uint32(_ALL_ONES)
    at: Any = np.uint64(start)
    stop: Any = np.uint64(end)
    while at + np.uint64(8) <= stop:
        crc ^= (
            np.uint32(data[at])
            | np.uint32(data[at + np.uint64(1)]) << np.uint32(8)
            | np.uint32(data[at + np.uint64(2)]) << np.uint32(16)
            | np.uint32(data[at + np.uint64(3)]) << np.uint32(24)
        )
        crc = (
            _TABLES[7, crc & np.uint32(0xFF)]
            ^ _TABLES[6, (crc >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _TABLES[5, (crc >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _TABLES[4, crc >> np.uint32(24)]
            ^ _TABLES[3, data[at + np.uint64(4)]]
            ^ _TABLES[2, data[at + np.uint64(5)]]
            ^ _TABLES[1, data[at + np.uint64(6)]]
            ^ _TABLES[0, data[at + np.uint64(7)]]
        )
        at += np.uint64(8)
    while at < stop:
        crc = (crc >> np.uint32(8)) ^ _TABLES[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)]
        at += np.uint64(1)
    return int(crc ^ np.uint32(_ALL_ONES))
