"""Compiled reading and writing of the numbers of a batch header."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes


@compiled
def read_int32(data: Bytes, position: int) -> int:
    """A big-endian number of four bytes. The indices are unsigned so that the compiler makes one load of them."""
    at: Any = np.uint64(position)
    number: Any = np.uint32(0)
    for i in range(np.uint64(4)):
        number = np.uint32(number << np.uint32(8)) | np.uint32(data[at + i])
    return int(np.int32(number))


@compiled
def read_int64(data: Bytes, position: int) -> int:
    """A big-endian number of eight bytes."""
    at: Any = np.uint64(position)
    number: Any = np.uint64(0)
    for i in range(np.uint64(8)):
        number = (number << np.uint64(8)) | np.uint64(data[at + i])
    return int(np.int64(number))


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
