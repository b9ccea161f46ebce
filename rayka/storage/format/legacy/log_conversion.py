"""Logs of magic 0 and 1 as record batches at the same offsets, gaps included.

Old versions of Kafka changed the format of a topic in the middle of a segment, so record batches may stand between the
messages. They stay as they are. Importing this module imports numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rayka.storage.columns.decode import Bytes, Longs
from rayka.storage.format.batch import (
    CODEC_MASK,
    LOG_OVERHEAD,
    MAGIC,
    MIN_BATCH_LENGTH,
    RECORD_BATCH_OVERHEAD,
    read_header,
)
from rayka.storage.format.compression import Codec
from rayka.storage.format.legacy.locate import (
    ATTRIBUTES,
    COLUMNS,
    OFFSET,
    VALUE_LENGTH,
    VALUE_POSITION,
    count_messages,
    locate_messages,
)
from rayka.storage.format.legacy.message import corrupt
from rayka.storage.format.legacy.up_conversion import UNBOUNDED, build_batches, codec_of, unwrap

BATCH_SIZE = 1 << 16
"""Bytes of a batch from messages that were not compressed."""


class ConvertedPart(NamedTuple):
    """Record batches, and how many bytes of the old log they stand for."""

    batches: bytearray
    consumed: int


def convert_log(log: bytes) -> ConvertedPart:
    """Convert from the start of `log` up to the first message that is damaged or not whole.

    Raises CORRUPT_MESSAGE, MESSAGE_TOO_LARGE or UNSUPPORTED_COMPRESSION_TYPE where a message with a right CRC does not
    hold what it should.
    """
    data = np.frombuffer(log, np.uint8)
    batches = bytearray()
    position = 0
    while True:
        count, end = count_messages(data, position)
        if count:
            rows = np.empty((count, COLUMNS), np.int64)
            sound, _ = locate_messages(data, position, rows)
            batches += _convert_rows(data, rows[:sound])
            if sound < count:
                return ConvertedPart(batches, _end(rows[sound - 1]) if sound else position)
            position = end
        size = _batch_size(log, position)
        if not size:
            return ConvertedPart(batches, position)
        batches += log[position : position + size]
        position += size


def _end(row: Longs) -> int:
    return int(row[VALUE_POSITION]) + max(int(row[VALUE_LENGTH]), 0)


def _batch_size(log: bytes, position: int) -> int:
    """Bytes of the whole record batch at `position`, 0 if there is none."""
    if position + RECORD_BATCH_OVERHEAD > len(log):
        return 0
    header = read_header(log, position)
    size = header.batch_length + LOG_OVERHEAD
    is_whole = header.magic == MAGIC and header.batch_length >= MIN_BATCH_LENGTH and position + size <= len(log)
    return size if is_whole else 0


def _convert_rows(data: Bytes, rows: Longs) -> bytearray:
    """Each compressed message becomes one batch, the others as many as `BATCH_SIZE` asks for."""
    batches = bytearray()
    first = 0
    for outer in [*np.flatnonzero(rows[:, ATTRIBUTES] & CODEC_MASK).tolist(), len(rows)]:
        if outer > first:
            batches += _build(data, rows[first:outer], Codec.NONE, BATCH_SIZE)
        if outer < len(rows):
            codec = codec_of(rows[outer])
            batches += _build(*unwrap(data, rows[outer], codec), codec, UNBOUNDED)
        first = outer + 1
    return batches


def _build(data: Bytes, rows: Longs, codec: Codec, max_batch_size: int) -> bytearray:
    if (np.diff(rows[:, OFFSET]) <= 0).any() or rows[0, OFFSET] < 0:
        raise corrupt(f"has offsets that do not rise after {rows[0, OFFSET]}")
    return build_batches(data, rows, codec, max_batch_size)
