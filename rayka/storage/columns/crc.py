"""The CRC32C of batches, by compiled code.

Source: RFC 3720, appendix B.4, for the polynomial.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes
from rayka.storage.columns.intrinsics import Instruction, prefetch

_POLYNOMIAL = 0x82F63B78
_STRIDE = 16
_INVERTED = 0xFFFF_FFFF
_LANE = 512
BLOCK_BYTES = 3 * _LANE
_PREFETCHED = 2 * BLOCK_BYTES
"""So far ahead bytes are loaded: what processors guess by themselves is not made for three lanes."""
_LINE = 64
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
def begin_crc() -> Any:
    """A CRC before its first byte. Next come blocks of `BLOCK_BYTES`, by `add_blocks`, and the rest by `end_crc`."""
    return np.uint64(_INVERTED)


@compiled
def end_of_blocks(start: int, end: int) -> int:
    """Where the last whole block ends that begins at `start` or behind it."""
    return start + (end - start) // BLOCK_BYTES * BLOCK_BYTES


@compiled
def crc32c(data: Bytes, start: int, end: int) -> int:
    """The CRC32C of data[start:end]."""
    return end_crc(add_blocks(begin_crc(), data, start, end), data, end_of_blocks(start, end), end)


@compiled
def crc32c_by_table(data: Bytes, start: int, end: int) -> int:
    """As `crc32c`, on any processor."""
    return end_by_table(begin_crc(), data, start, end)


@compiled
def add_by_instruction(crc: Any, data: Bytes, start: int, end: int) -> Any:
    """Add whole blocks to a CRC, on processors with SSE 4.2.

    An instruction takes three cycles, and another can begin in each: so three lanes are computed side by side.
    """
    position = start
    while position + BLOCK_BYTES <= end:
        for line in range(position + _PREFETCHED, position + _PREFETCHED + BLOCK_BYTES, _LINE):
            prefetch(data, line)
        second: Any = np.uint64(0)
        third: Any = np.uint64(0)
        for word in range(position, position + _LANE, 8):
            crc = _add_word(crc, read_word(data, word))
            second = _add_word(second, read_word(data, word + _LANE))
            third = _add_word(third, read_word(data, word + 2 * _LANE))
        crc = _behind_a_lane(_behind_a_lane(crc) ^ second) ^ third
        position += BLOCK_BYTES
    return crc


@compiled
def end_by_instruction(crc: Any, data: Bytes, position: int, end: int) -> int:
    """The CRC with the last bytes, on processors with SSE 4.2."""
    while position + 8 <= end:
        crc = _add_word(crc, read_word(data, position))
        position += 8
    return _end_by_bytes(crc, data, position, end)


@compiled
def add_by_table(crc: Any, data: Bytes, start: int, end: int) -> Any:
    """Add whole blocks to a CRC, on any processor."""
    last = end_of_blocks(start, end)
    for position in range(start, last, _STRIDE):
        crc = _add_stride(crc, data, position)
    return crc


@compiled
def end_by_table(crc: Any, data: Bytes, position: int, end: int) -> int:
    """The CRC with the last bytes, on any processor."""
    while position + _STRIDE <= end:
        crc = _add_stride(crc, data, position)
        position += _STRIDE
    return _end_by_bytes(crc, data, position, end)


@compiled
def _add_stride(before: Any, data: Bytes, position: int) -> Any:
    """Add 16 bytes."""
    words = (read_word(data, position) ^ before, read_word(data, position + 8))
    crc: Any = np.uint64(0)
    for index in range(np.uint64(8)):
        shift: Any = np.uint64(8) * index
        crc ^= np.uint64(_CRC[np.uint64(15) - index, (words[0] >> shift) & np.uint64(0xFF)])
        crc ^= np.uint64(_CRC[np.uint64(7) - index, (words[1] >> shift) & np.uint64(0xFF)])
    return crc


@compiled
def _end_by_bytes(crc: Any, data: Bytes, position: int, end: int) -> int:
    """Add the last few bytes."""
    while position < end:
        crc = (crc >> np.uint64(8)) ^ np.uint64(_CRC[0, (crc ^ np.uint64(data[position])) & np.uint64(0xFF)])
        position += 1
    return int(crc ^ np.uint64(_INVERTED))


@compiled
def _behind_a_lane(crc: Any) -> Any:
    """What a CRC becomes when as many zero bytes follow as a lane has."""
    moved: Any = np.uint64(0)
    for index in range(np.uint64(4)):
        moved ^= np.uint64(_LANE_SHIFT[index, (crc >> (np.uint64(8) * index)) & np.uint64(0xFF)])
    return moved


# Which of the two is decided where the code runs: stored code is for one kind of processor.
has_instruction = _add_word.is_available
add_blocks = add_by_instruction if has_instruction else add_by_table
end_crc = end_by_instruction if has_instruction else end_by_table
