"""Message sets of magic 0 and 1 as record batches, of a producer (Produce 0-2) or of a log.

The work on each message is compiled (`locate.py`, `encode.py`); what is left here is work on message sets. A producer's
set becomes batches with its own codec, so that a topic with `compression.type=producer` keeps it. Messages of magic 0
have no timestamp and get -1 (KIP-32). Importing this module imports numpy.
"""

from __future__ import annotations

import numpy as np

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.decode import Bytes, Longs
from rayka.storage.format.batch import CODEC_MASK, LOG_APPEND_TIME_FLAG, RECORD_BATCH_OVERHEAD
from rayka.storage.format.compression import DEFAULT_MAX_SIZE, Codec, decompress
from rayka.storage.format.legacy import lz4_framing
from rayka.storage.format.legacy.encode import MAX_RECORD_OVERHEAD, write_records
from rayka.storage.format.legacy.locate import (
    ATTRIBUTES,
    COLUMNS,
    KEY_LENGTH,
    MAGIC,
    OFFSET,
    SOUND,
    TIMESTAMP,
    VALUE_LENGTH,
    VALUE_POSITION,
    WRONG_CRC,
    count_messages,
    locate_messages,
)
from rayka.storage.format.legacy.message import corrupt
from rayka.storage.format.records import seal_batch
from rayka.types import NO_TIMESTAMP

MAX_BATCH_SIZE = 1_000_000
"""Bytes of a batch from messages that were not compressed; a little below the default of `max.message.bytes`."""
MAX_SET_SIZE = 64 << 20
"""Bytes that a producer's message set may decompress to."""
UNBOUNDED = 2**31 - 1

Buffer = bytes | bytearray | memoryview


def convert_up(messages: Buffer, max_size: int = MAX_SET_SIZE, max_message_bytes: int = UNBOUNDED) -> bytearray:
    """A producer's message set as record batches with offsets from 0 on.

    The messages have one magic, and a compressed one stands alone, as in Kafka (KAFKA-8106). A set without codec
    becomes as many batches as `MAX_BATCH_SIZE` asks for. A compressed message above `max_message_bytes` is not
    decompressed, as in Kafka, and no message to more than `max_size` bytes. Raises CORRUPT_MESSAGE, INVALID_RECORD (no
    messages, or several compressed ones), INVALID_TIMESTAMP, MESSAGE_TOO_LARGE and UNSUPPORTED_COMPRESSION_TYPE.
    """
    data = _array(messages)
    rows = _locate(data)
    codec = _check_set(rows)
    max_batch_size = MAX_BATCH_SIZE
    if codec is not Codec.NONE:
        if len(data) > max_message_bytes:
            message = f"A compressed message of {len(data)} bytes is larger than max.message.bytes, {max_message_bytes}"
            raise RaykaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        data, rows = unwrap(data, rows[0], codec, max_size)
        max_batch_size = UNBOUNDED
    _settle_timestamps(rows)
    rows[:, OFFSET] = np.arange(len(rows))
    return build_batches(data, rows, codec, max_batch_size)


def _array(data: Buffer) -> Bytes:
    """Always read-only, because numba compiles code for each kind of array."""
    return np.frombuffer(memoryview(data).toreadonly(), np.uint8)


def _locate(data: Bytes) -> Longs:
    """A row for each message; bytes that are not a message are not allowed."""
    count, end = count_messages(data, 0)
    if end != len(data):
        raise corrupt(f"has {len(data) - end} bytes at position {end} that are not a message of magic 0 or 1")
    return locate(data, 0, count)


def locate(data: Bytes, start: int, count: int) -> Longs:
    """A row for each of the messages that `count_messages` counted. Raises CORRUPT_MESSAGE."""
    rows = np.empty((count, COLUMNS), np.int64)
    row, fault = locate_messages(data, start, rows)
    if fault != SOUND:
        raise corrupt(f"has a message with {'a wrong CRC' if fault == WRONG_CRC else 'wrong lengths'}, number {row}")
    return rows


def _check_set(rows: Longs) -> Codec:
    """The codec of a producer's message set."""
    if not len(rows):
        raise RaykaError(ErrorCode.INVALID_RECORD, "The message set has no messages")
    if (rows[:, MAGIC] != rows[0, MAGIC]).any():
        raise RaykaError(ErrorCode.INVALID_RECORD, "The message set has messages of magic 0 and of magic 1")
    if len(rows) > 1 and (rows[:, ATTRIBUTES] & CODEC_MASK).any():
        raise RaykaError(ErrorCode.INVALID_RECORD, "The message set has more than one compressed message")
    return codec_of(rows[0])


def codec_of(row: Longs) -> Codec:
    """The codec of a message. Raises UNSUPPORTED_COMPRESSION_TYPE for zstd, which came with magic 2, and above."""
    codec = int(row[ATTRIBUTES]) & CODEC_MASK
    if codec >= Codec.ZSTD:
        raise RaykaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Messages of magic {row[MAGIC]} have no compression type {codec}"
        )
    return Codec(codec)


def unwrap(data: Bytes, outer: Longs, codec: Codec, max_size: int = DEFAULT_MAX_SIZE) -> tuple[Bytes, Longs]:
    """The bytes of the inner messages of a compressed one, and their rows, with absolute offsets.

    Inner messages have the timestamp type of the outer one and, with LogAppendTime, its timestamp. Raises
    CORRUPT_MESSAGE and MESSAGE_TOO_LARGE.
    """
    if outer[VALUE_LENGTH] < 0:
        raise corrupt("has a compressed message without a value")
    start = int(outer[VALUE_POSITION])
    content = data[start : start + int(outer[VALUE_LENGTH])].data
    is_old_lz4 = codec is Codec.LZ4 and outer[MAGIC] == 0
    inner = _array(decompress(codec, lz4_framing.repair(content) if is_old_lz4 else content, max_size))
    rows = _locate(inner)
    if not len(rows):
        raise corrupt("has a compressed message without inner messages")
    if (rows[:, ATTRIBUTES] & CODEC_MASK).any():
        raise corrupt("has a compressed message inside of a compressed message")
    if (rows[:, MAGIC] != outer[MAGIC]).any():
        raise corrupt("has inner messages of another magic than the outer one")
    _inherit(rows, outer)
    return inner, rows


def _inherit(rows: Longs, outer: Longs) -> None:
    """Give inner messages of magic 1 what the outer message says of all of them."""
    if not outer[MAGIC]:
        return
    rows[:, OFFSET] += outer[OFFSET] - rows[-1, OFFSET]
    rows[:, ATTRIBUTES] = outer[ATTRIBUTES] & LOG_APPEND_TIME_FLAG
    if outer[ATTRIBUTES] & LOG_APPEND_TIME_FLAG:
        rows[:, TIMESTAMP] = outer[TIMESTAMP]


def _settle_timestamps(rows: Longs) -> None:
    """If any message says LogAppendTime, all of them do: the leader refuses that, or sets the time itself."""
    if (rows[:, ATTRIBUTES] & LOG_APPEND_TIME_FLAG).any():
        rows[:, ATTRIBUTES] = LOG_APPEND_TIME_FLAG
        rows[:, TIMESTAMP] = rows[:, TIMESTAMP].max()
    least = int(rows[:, TIMESTAMP].min())
    if least < NO_TIMESTAMP:
        raise RaykaError(ErrorCode.INVALID_TIMESTAMP, f"The message set has the timestamp {least}")


def build_batches(data: Bytes, rows: Longs, codec: Codec, max_batch_size: int) -> bytearray:
    """Located messages as record batches at the offsets of their rows."""
    bounds = MAX_RECORD_OVERHEAD + np.maximum(rows[:, KEY_LENGTH], 0) + np.maximum(rows[:, VALUE_LENGTH], 0)
    room = min(int(bounds.sum()), max(int(bounds.max()), max_batch_size))
    out = np.empty(RECORD_BATCH_OVERHEAD + room, np.uint8)
    batches = bytearray()
    first = 0
    while first < len(rows):
        following, size, max_timestamp = write_records(data, rows, first, max_batch_size, out)
        batches += _seal(bytearray(out[:size].data), rows[first:following], max_timestamp, codec)
        first = following
    return batches


def _seal(batch: bytearray, rows: Longs, max_timestamp: int, codec: Codec) -> bytearray:
    base_offset = int(rows[0, OFFSET])
    return seal_batch(
        batch,
        record_count=len(rows),
        base_timestamp=int(rows[0, TIMESTAMP]),
        max_timestamp=max_timestamp,
        base_offset=base_offset,
        last_offset_delta=int(rows[-1, OFFSET]) - base_offset,
        codec=codec,
        flags=int(rows[0, ATTRIBUTES]) & LOG_APPEND_TIME_FLAG,
    )
