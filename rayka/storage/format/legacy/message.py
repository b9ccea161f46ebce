"""The layout of messages of magic 0 and 1, and what their readers and writers share.

Offsets in bytes from the start of a message, integers big-endian:

     0 offset i64     12 crc u32     17 attributes i8                           key length i32 and key
     8 size i32       16 magic i8    18 timestamp i64 (magic 1 only, ms)        value length i32 and value

`size` counts what follows it; the CRC32 covers everything from `magic` on. A length of -1 is null. Attribute bits: 0-2
codec, 3 timestamp type (magic 1). The value of a message with a codec is a message set, the inner messages, which have
no codec. Offsets of inner messages are absolute in magic 0. In magic 1 they count from the first inner message, and
the outer message has the offset of the last one (KIP-31, KIP-32). Source: the protocol guide, "Messagesets".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final
from zlib import crc32

from rayka.errors import ErrorCode, RaykaError

MAGIC_OFFSET: Final = 16
OVERHEAD: Final = 26
"""Bytes of a message of magic 0 without its key and value."""
TIMESTAMP_SIZE: Final = 8
OLD_MAGICS: Final = (0, 1)

_NULL: Final = -1
_HEAD: Final = struct.Struct(">qiIbb")
_TIMESTAMP: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_LENGTH_OVERHEAD: Final = 12


def has_old_magic(records: bytes | bytearray | memoryview) -> bool:
    """Whether records begin with a message of magic 0 or 1."""
    return len(records) > MAGIC_OFFSET and records[MAGIC_OFFSET] in OLD_MAGICS


def begins_at(position: int, end: int, read: Callable[[int, int], bytes]) -> bool:
    """Whether a whole message with a right CRC begins at `position` of a file that ends at `end`.

    `read` is given a size and a position.
    """
    head = read(MAGIC_OFFSET + 1, position) if position < end else b""
    if not has_old_magic(head):
        return False
    size = _LENGTH_OVERHEAD + int.from_bytes(head[8:_LENGTH_OVERHEAD], signed=True)
    if not OVERHEAD <= size <= end - position:
        return False
    message = read(size, position)
    return len(message) == size and crc32(message[MAGIC_OFFSET:]) == int.from_bytes(message[12:MAGIC_OFFSET])


def wrap(content: bytes, magic: int, attributes: int, offset: int, timestamp: int) -> bytes:
    """The outer message of a compressed message set, whose offset is that of the last inner message."""
    body = (_TIMESTAMP.pack(timestamp) if magic else b"") + _LENGTH.pack(_NULL) + _LENGTH.pack(len(content)) + content
    size = OVERHEAD - _LENGTH_OVERHEAD - 2 * _LENGTH.size + len(body)
    checked = crc32(body, crc32(bytes((magic, attributes))))
    return _HEAD.pack(offset, size, checked, magic, attributes) + body


def corrupt(what: str) -> RaykaError:
    """The error for bytes that are not what the format says."""
    return RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The message set {what}")
