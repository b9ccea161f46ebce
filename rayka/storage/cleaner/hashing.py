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
from rayka.storage.columns.native_code import Instruction

Words = npt.NDArray[np.uint64]

_POLYNOMIAL = 0x82F63B78
_STRIDE = 16
_INVERTED = 0xFFFF_FFFF
_LANE = 512
_add_word = Instruction("llvm.x86.sse42.crc32.64.64", feature="crc32")


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


def _shift_tables(doublings: int) -> npt.NDArray[np.uint32]:
    """What each value of each byte of a CRC becomes when 2 ** `doublings` zero bytes follow."""
    values = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, np.newaxis]
    shift: npt.NDArray[np.uint32] = (values >> 8) ^ _CRC[0][values & 0xFF]
    for _ in range(doublings):
        shift = np.bitwise_xor.reduce([shift[index][shift >> 8 * index & 0xFF] for index in range(4)])
    return shift


_LANE_SHIFT = _shift_tables(_LANE.bit_length() - 1)


@compiled
def read_word(data: Bytes, position: int) -> Any:
    """Eight bytes as a little-endian number. The indices are unsigned so that the compiler makes one load of them."""
    at: Any = np.uint64(position)
    word: Any = np.uint64(0)
    for index in range(np.uint64(8)):
        word |= np.uint64(data[at + index]) << (np.uint64(8) * index)
    return word


@compiled
def crc32c_by_table(data: Bytes, start: int, end: int) -> int:
    """The CRC32C of data[start:end], on any processor."""
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
    return _end_of_crc(crc, data, position, end)


@compiled
def _end_of_crc(crc: Any, data: Bytes, position: int, end: int) -> int:
    """Add the last few bytes."""
    while position < end:
        crc = (crc >> np.uint64(8)) ^ np.uint64(_CRC[0, (crc ^ np.uint64(data[position])) & np.uint64(0xFF)])
        position += 1
    return int(crc ^ np.uint64(_INVERTED))


@compiled
def crc32c_by_instruction(data: Bytes, start: int, end: int) -> int:
    """The CRC32C of data[start:end], on processors with SSE 4.2.

    An instruction takes three cycles, and another can begin in each: so three lanes are computed side by side.
    """
    crc: Any = np.uint64(_INVERTED)
    position = start
    while position + 3 * _LANE <= end:
        second: Any = np.uint64(0)
        third: Any = np.uint64(0)
        for word in range(position, position + _LANE, 8):
            crc = _add_word(crc, read_word(data, word))
            second = _add_word(second, read_word(data, word + _LANE))
            third = _add_word(third, read_word(data, word + 2 * _LANE))
        crc = _behind_a_lane(_behind_a_lane(crc) ^ second) ^ third
        position += 3 * _LANE
    while position + 8 <= end:
        crc = _add_word(crc, read_word(data, position))
        position += 8
    return _end_of_crc(crc, data, position, end)


@compiled
def _behind_a_lane(crc: Any) -> Any:
    """What a CRC becomes when as many zero bytes follow as a lane has."""
    moved: Any = np.uint64(0)
    for index in range(np.uint64(4)):
        moved ^= np.uint64(_LANE_SHIFT[index, (crc >> (np.uint64(8) * index)) & np.uint64(0xFF)])
    return moved


# Which of the two is decided where the cleaner runs: stored code is for one kind of processor.
crc32c = crc32c_by_instruction if _add_word.is_available else crc32c_by_table


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
