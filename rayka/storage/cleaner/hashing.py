"""Compiled hashes: SipHash-1-3 of record keys with 128 bits, and the CRC32C of batches.

The cleaner takes keys with equal hashes for equal. With a secret that is drawn for each run nobody can make keys that
collide, and by chance two of a trillion keys do so once in 10^14 runs. Source: Aumasson and Bernstein, "SipHash: a fast
short-input PRF", and its 128-bit variant; RFC 3720, appendix B.4, for the polynomial.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes

Words = npt.NDArray[np.uint64]

_POLYNOMIAL = 0x82F63B78
_STRIDE = 8
_INVERTED = 0xFFFF_FFFF


def _crc_tables() -> npt.NDArray[np.uint32]:
    """What each byte value does to the CRC from each of eight distances (slicing by eight)."""
    tables = np.zeros((_STRIDE, 256), np.uint32)
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[0, value] = crc
    for distance in range(1, _STRIDE):
        before = tables[distance - 1]
        tables[distance] = (before >> 8) ^ tables[0][before & 0xFF]
    return tables


_CRC = _crc_tables()


@compiled
def crc32c(data: Bytes, start: int, end: int) -> int:
    """The CRC32C of data[start:end]."""
    crc: Any = np.uint32(_INVERTED)
    position = start
    while position + 8 <= end:
        low: Any = crc ^ (
            np.uint32(data[position])
            | np.uint32(data[position + 1]) << np.uint32(8)
            | np.uint32(data[position + 2]) << np.uint32(16)
            | np.uint32(data[position + 3]) << np.uint32(24)
        )
        crc = (
            _CRC[7, low & np.uint32(0xFF)]
            ^ _CRC[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _CRC[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _CRC[4, (low >> np.uint32(24)) & np.uint32(0xFF)]
            ^ _CRC[3, data[position + 4]]
            ^ _CRC[2, data[position + 5]]
            ^ _CRC[1, data[position + 6]]
            ^ _CRC[0, data[position + 7]]
        )
        position += 8
    while position < end:
        crc = (crc >> np.uint32(8)) ^ _CRC[0, (crc ^ np.uint32(data[position])) & np.uint32(0xFF)]
        position += 1
    return int(crc ^ np.uint32(_INVERTED))


@compiled
def _rotated(word: Any, bits: int) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@compiled
def _round(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    a += b
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c += d
    d = _rotated(d, 16) ^ c
    a += d
    d = _rotated(d, 21) ^ a
    c += b
    b = _rotated(b, 17) ^ c
    c = _rotated(c, 32)
    return a, b, c, d


@compiled
def siphash(data: Bytes, start: int, size: int, secret: Words) -> tuple[Any, Any]:
    """The two words of the hash of data[start:start + size]; `secret` has two words."""
    a: Any = secret[0] ^ np.uint64(0x736F6D6570736575)
    b: Any = secret[1] ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    c: Any = secret[0] ^ np.uint64(0x6C7967656E657261)
    d: Any = secret[1] ^ np.uint64(0x7465646279746573)
    end = start + size
    position = start
    while position + 8 <= end:
        word: Any = np.uint64(0)
        for index in range(8):
            word |= np.uint64(data[position + index]) << np.uint64(8 * index)
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a ^= word
        position += 8
    word = np.uint64(size & 0xFF) << np.uint64(56)
    for index in range(end - position):
        word |= np.uint64(data[position + index]) << np.uint64(8 * index)
    d ^= word
    a, b, c, d = _round(a, b, c, d)
    a ^= word
    c ^= np.uint64(0xEE)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    first = a ^ b ^ c ^ d
    b ^= np.uint64(0xDD)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    return first, a ^ b ^ c ^ d
