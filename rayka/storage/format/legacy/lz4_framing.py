"""The LZ4 frames in messages of magic 0, whose header checksum is wrong in all of them (KAFKA-3160).

Kafka computed it over the four bytes of the magic number too. Its clients of that time do the same, and do not accept
the right one. Source: the LZ4 frame format, "Header Checksum"; KIP-57.
"""

from __future__ import annotations

import xxhash

_FLAGS_OFFSET = 4
_FIXED_SIZE = 6
"""Magic number, flags and block descriptor."""
_HAS_CONTENT_SIZE = 0x08
_CONTENT_SIZE = 8
_HAS_DICTIONARY = 0x01
_DICTIONARY_SIZE = 4


def repair(frame: bytes | memoryview) -> bytes:
    """The frame with the checksum that the LZ4 format asks for."""
    return _with_checksum(frame, _FLAGS_OFFSET)


def break_checksum(frame: bytes) -> bytes:
    """The frame with the checksum that clients of magic 0 expect."""
    return _with_checksum(frame, 0)


def _with_checksum(frame: bytes | memoryview, start: int) -> bytes:
    """Checksum the header from `start` on. Return bytes that are not a frame unchanged; the decoder refuses them."""
    if len(frame) <= _FIXED_SIZE:
        return bytes(frame)
    flags = frame[_FLAGS_OFFSET]
    end = _FIXED_SIZE
    end += _CONTENT_SIZE if flags & _HAS_CONTENT_SIZE else 0
    end += _DICTIONARY_SIZE if flags & _HAS_DICTIONARY else 0
    if end >= len(frame):
        return bytes(frame)
    changed = bytearray(frame)
    changed[end] = (xxhash.xxh32_intdigest(frame[start:end]) >> 8) & 0xFF
    return bytes(changed)
