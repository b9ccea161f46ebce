"""Zig-zag varints, the integers inside records.

An integer n becomes 2n, or -2n - 1 when negative, and that an unsigned varint. Source: the protocol guide, "Record".
"""

from __future__ import annotations

from rayka.errors import ErrorCode, RaykaError
from rayka.varint import encode_uvarint

_SHIFT_LIMIT = 63


def _encode(number: int) -> bytes:
    return encode_uvarint((number << 1) ^ (number >> 63))


VARINTS = tuple(_encode(number) for number in range(1 << 13))
"""The numbers whose varints have one or two bytes: a look-up is several times quicker than a loop."""
SMALL = len(VARINTS)


def encode_varint(number: int) -> bytes:
    """`number` (64 bits, signed) as a zig-zag varint of 1 to 10 bytes."""
    return VARINTS[number] if 0 <= number < SMALL else _encode(number)


def continue_unsigned(data: bytes, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte had its high bit set: the number before zig-zag, and the position after.

    Raises IndexError at the end of `data`, CORRUPT_MESSAGE past 64 bits.
    """
    number = first & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > _SHIFT_LIMIT:
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, "A varint has more than 64 bits")
    return number & 0xFFFF_FFFF_FFFF_FFFF, position
