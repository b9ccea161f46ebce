"""Messages of magic 0 and 1, built from the protocol guide's layout without rayka's code, and read by kafka-python."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from kafka.record.memory_records import MemoryRecords

from rayka.storage.format.compression import Codec, compress

LOG_APPEND_TIME = 0x08


class Message(NamedTuple):
    """What a message says; `timestamp` is -1 in magic 0."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def encode(message: Message, magic: int, attributes: int = 0) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", message.timestamp)
    for field in (message.key, message.value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", message.offset, len(body) + 4, zlib.crc32(body)) + body


def message_set(messages: Iterable[Message], magic: int, attributes: int = 0) -> bytes:
    return b"".join(encode(message, magic, attributes) for message in messages)


def compressed_set(messages: list[Message], magic: int, codec: Codec, timestamp: int | None = None) -> bytes:
    """One compressed message, as a log has it; a `timestamp` is the log append time of all messages."""
    base = messages[0].offset if magic else 0
    attributes = 0 if timestamp is None else LOG_APPEND_TIME
    inner = message_set([one._replace(offset=one.offset - base) for one in messages], magic, attributes)
    latest = max(one.timestamp for one in messages) if timestamp is None else timestamp
    outer = Message(messages[-1].offset, latest, None, compress(codec, inner))
    return encode(outer, magic, attributes | codec)


def read_message_set(data: bytes) -> list[Message]:
    """The messages as kafka-python finds them, CRCs checked; a part of a message at the end is left out."""
    messages = []
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            timestamp = -1 if record.timestamp is None else record.timestamp
            messages.append(Message(record.offset, timestamp, record.key, record.value))
    return messages
