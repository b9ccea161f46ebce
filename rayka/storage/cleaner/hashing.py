"""A compiled hash: SipHash-1-3 of record keys with 128 bits.

The cleaner takes keys with equal hashes for equal. With a secret that is drawn for each run nobody can make keys that
collide, and by chance two of a trillion keys do so once in 10^14 runs. Source: Aumasson and Bernstein, "SipHash: a fast
short-input PRF", and its 128-bit variant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.crc import read_word
from rayka.storage.columns.decode import Bytes

Words = npt.NDArray[np.uint64]


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
