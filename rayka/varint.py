"""Unsigned varints: lengths and tags in requests and coordinator records (KIP-482), and the base of record varints.

A number is written in groups of seven bits, lowest first, with the high bit set on all bytes but the last.
"""

from __future__ import annotations


def encode_uvarint(value: int) -> bytes:
    """`value`, which is not negative, as an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
