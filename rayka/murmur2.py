"""The hash that Kafka's clients choose a key's partition by: 32-bit murmur2, as an unsigned number."""

from __future__ import annotations

import struct

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
UINT32 = 0xFFFF_FFFF
POSITIVE = 0x7FFF_FFFF
"""The bits of a hash that count: Java's int has a sign."""
_WORD = struct.Struct("<I")


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash of Kafka's clients, as an unsigned number."""
    size = len(data)
    whole = size & ~3
    hash_ = SEED ^ size
    for (word,) in _WORD.iter_unpack(data[:whole] if whole != size else data):
        word = (word * MULTIPLIER) & UINT32
        hash_ = ((hash_ * MULTIPLIER) ^ ((word ^ (word >> 24)) * MULTIPLIER)) & UINT32
    if whole != size:
        hash_ = ((hash_ ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER) & UINT32
    hash_ = ((hash_ ^ (hash_ >> 13)) * MULTIPLIER) & UINT32
    return hash_ ^ (hash_ >> 15)
