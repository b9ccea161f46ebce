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
_STRIDE = 16
_INVERTED = 0xFFFF_FFFF


def _crc_tables() -> npt.NDArray[np.uint32]:
    """What each byte value does to the CRC from each of 16 distances (slicing by 16)."""
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
def read_word(data: Bytes, position: int) -> Any:
    """Eight bytes as a little-endian number. The indices are unsigned so that the compiler makes one load of them."""
    at: Any = np.uint64(position)
    word: Any = np.uint64(0)
    for index in range(np.uint64(8)):
        word |= np.uint64(data[at + index]) << (np.uint64(8) * index)
    return word


@compiled
def crc32c(data: Bytes, start: int, end: int) -> int:
    """The CRC32C of data[start:end]."""
    crc: Any = np.uint64(_INVERTED)
    position = start
    while position + _STRIDE <= end:
        words = (read_word(data, position) ^ crc, read_word(data, position + 8))
        crc = np.uint64(0)
        for index in range(np.uint64(8)):
            shift: Any = np.uint64(8) * index
            crc ^= np.uint64(_CRC[np.uint64(15) - index, (words[0] >> shift) & np.uint64(0xFF)])
            crc ^= np.uint64(_CRC[np.uint64(7) - index, (words[1] >> shift) & np.uint64(0xFF)])
        position += _STRIDE
    while position < end:
        crc = (crc >> np.uint64(8)) ^ np.uint64(_CRC[0, (crc ^ np.uint64(data[position])) & np.uint64(0xFF)])
        position += 1
    return int(crc ^ np.uint64(_INVERTED))


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
        word: Any = read_word(data, position)
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a ^= word
        position += 8
    word = np.uint64(size & 0xFF) << np.uint64(56)
    for index in range(np.uint64(end - position)):
        word |= np.uint64(data[np.uint64(position) + index]) << (np.uint64(8) * index)
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
