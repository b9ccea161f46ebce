"""Compiled reading and writing of the numbers of a batch header."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes


@compiled
def read_int32(data: Bytes, position: int) -> int:
    """A big-endian number of four bytes."""
    at: Any = np.uint64(position)
    number: Any = np.int64(0)
    for index in range(np.uint64(4)):
        number = (number << 8) | np.int64(data[at + index])
    return int(number - ((number & 0x8000_0000) << 1))


@compiled
def read_int64(data: Bytes, position: int) -> int:
    """A big-endian number of eight bytes."""
    return int((np.int64(read_int32(data, position)) << 32) | (np.int64(read_int32(data, position + 4)) & 0xFFFF_FFFF))


@compiled
def write_int32(data: Bytes, position: int, number: int) -> None:
    """A big-endian number of four bytes."""
    for index in range(4):
        data[position + index] = (number >> (24 - 8 * index)) & 0xFF


@compiled
def write_int64(data: Bytes, position: int, number: int) -> None:
    """A big-endian number of eight bytes."""
    for index in range(8):
        data[position + index] = (number >> (56 - 8 * index)) & 0xFF
