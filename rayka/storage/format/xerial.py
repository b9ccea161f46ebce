"""The block framing that Java clients put around snappy (xerial's snappy-java).

A stream is 0x82 "SNAPPY" 0x00, version i32, compatible version i32, and then blocks: length i32 and that
many bytes of raw snappy. Integers are big-endian; some writers get the versions' byte order wrong, and
readers do not look at them. Streams may follow one another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAGIC = b"\x82SNAPPY\x00"
HEADER = MAGIC + struct.pack(">ii", 1, 1)
BLOCK_SIZE = 32 * 1024
"""Bytes of content in a block, as in snappy-java."""

_LENGTH = struct.Struct(">i")


def is_framed(data: memoryview) -> bool:
    """Whether `data` starts like a framed stream rather than raw snappy."""
    return len(data) >= len(HEADER) and data[: len(MAGIC)] == MAGIC


def blocks(data: memoryview) -> Iterator[memoryview]:
    """The raw snappy blocks of a framed stream; raises ValueError where the framing is broken."""
    position = 0
    while position < len(data):
        if is_framed(data[position:]):
            position += len(HEADER)
            continue
        start = position + _LENGTH.size
        if start > len(data):
            raise ValueError(f"{len(data) - position} bytes are left of a block length")
        length = _LENGTH.unpack_from(data, position)[0]
        position = start + length
        if length < 0 or position > len(data):
            raise ValueError(f"a block of {length} bytes has {len(data) - start} left")
        yield data[start:position]


def frame(compressed_blocks: list[bytes]) -> bytes:
    """One stream of the given raw snappy blocks."""
    parts = [HEADER]
    for block in compressed_blocks:
        parts.append(_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)
