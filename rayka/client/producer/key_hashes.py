"""Chooses partitions for a column of keys, in compiled code."""

from __future__ import annotations

from typing import Any

from rayka.murmur2 import MULTIPLIER, POSITIVE, SEED, UINT32
from rayka.storage.columns.compiled import compiled


@compiled
def murmur2(data: Any, start: int, length: int) -> int:
    """The hash of `rayka.murmur2`."""
    hash_ = SEED ^ length
    position = start
    for _ in range(length // 4):
        word = 0
        for byte in range(4):
            word |= int(data[position + byte]) << (8 * byte)
        word = (word * MULTIPLIER) & UINT32
        word = ((word ^ (word >> 24)) * MULTIPLIER) & UINT32
        hash_ = ((hash_ * MULTIPLIER) & UINT32) ^ word
        position += 4
    rest = start + length - position
    if rest:
        for byte in range(rest):
            hash_ ^= int(data[position + byte]) << (8 * byte)
        hash_ = (hash_ * MULTIPLIER) & UINT32
    hash_ = ((hash_ ^ (hash_ >> 13)) * MULTIPLIER) & UINT32
    return hash_ ^ (hash_ >> 15)


@compiled
def choose_by_keys(data: Any, positions: Any, lengths: Any, partition_count: int, chosen: Any) -> None:
    """Set in `chosen` the partition of each key, where none is set (-1) and the key is not null."""
    for row in range(len(positions)):
        if chosen[row] < 0 and lengths[row] >= 0:
            chosen[row] = (murmur2(data, positions[row], lengths[row]) & POSITIVE) % partition_count
