"""The bytes that a consumer puts into a JoinGroup request, written by hand from the description of the protocol."""

from __future__ import annotations

import struct


def subscription_bytes(topics: tuple[str, ...], version: int = 3) -> bytes:
    """A subscription to topics, without user data; nothing is owned and no generation or rack known."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    later = (struct.pack(">i", 0), struct.pack(">i", -1), struct.pack(">h", -1))
    no_user_data = struct.pack(">i", -1)
    return struct.pack(">hi", version, len(topics)) + names + no_user_data + b"".join(later[:version])
