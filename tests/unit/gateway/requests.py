"""Bodies of requests for one partition, `orders-0`, written by hand."""

from __future__ import annotations

import struct

TOPIC = struct.pack(">h", 6) + b"orders"


def batch(size: int, attributes: int = 0) -> bytes:
    """Something of `size` bytes with the header of a record batch; not a batch that a log would take."""
    size = max(size, 61)
    return struct.pack(">qiibIh", 0, size - 12, -1, 2, 0, attributes) + bytes(index % 251 for index in range(size - 23))


def produce_v3(records: bytes | None, *, acks: int = 1, transactional_id: bytes | None = None) -> bytes:
    """A Produce request of versions 3 to 8."""
    head = struct.pack(">h", -1)
    if transactional_id is not None:
        head = struct.pack(">h", len(transactional_id)) + transactional_id
    return head + produce_v0(records, acks=acks)


def produce_v0(records: bytes | None, *, acks: int = 1) -> bytes:
    """A Produce request of versions 0 to 2."""
    body = struct.pack(">hii", acks, 1000, 1) + TOPIC + struct.pack(">ii", 1, 0)
    return body + (struct.pack(">i", -1) if records is None else struct.pack(">i", len(records)) + records)


def fetch_v0(offset: int = 0) -> bytes:
    """A Fetch request of versions 0 to 2."""
    return struct.pack(">iiii", -1, 500, 1, 1) + TOPIC + struct.pack(">iiqi", 1, 0, offset, 1 << 20)


def fetch_v3(offset: int = 0) -> bytes:
    """A Fetch request of version 3."""
    return struct.pack(">iiiii", -1, 500, 1, 1 << 20, 1) + TOPIC + struct.pack(">iiqi", 1, 0, offset, 1 << 20)


def fetch_v4(offset: int = 0) -> bytes:
    """A Fetch request of version 4."""
    return struct.pack(">iiiibi", -1, 500, 1, 1 << 20, 0, 1) + TOPIC + struct.pack(">iiqi", 1, 0, offset, 1 << 20)


def list_offsets_v1(timestamp: int = -1) -> bytes:
    """A ListOffsets request of version 1."""
    return struct.pack(">ii", -1, 1) + TOPIC + struct.pack(">iiq", 1, 0, timestamp)
