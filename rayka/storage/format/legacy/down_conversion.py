"""Record batches as message sets of magic 0 and 1, for consumers that ask with Fetch 0-3.

As in Kafka: headers are dropped, and so are control batches. Records of transactions are delivered whatever became of
them: these versions know no isolation level. Batches keep their codec, but zstd came after these formats.
Offsets stay as they are. Importing this module imports numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.decode import SOUND, Bytes, Longs, RecordPositions, locate
from rayka.storage.format.batch import LOG_APPEND_TIME_FLAG, BatchHeader, Buffer, iter_headers
from rayka.storage.format.compression import Codec, compress
from rayka.storage.format.legacy import lz4_framing
from rayka.storage.format.legacy.encode import write_messages
from rayka.storage.format.legacy.message import OVERHEAD, TIMESTAMP_SIZE, wrap
from rayka.storage.format.records import MIN_RECORD_SIZE, record_bytes
from rayka.types import TimestampType

MAX_INNER_SIZE = 1 << 20
"""Bytes of the inner messages of one compressed message: old consumers fetch 1 MB unless told otherwise."""
MAX_BATCH_SIZE = 64 << 20
"""Bytes that a batch may decompress to here: its located records take ten times as much memory."""
_NO_LIMIT = 2**63 - 1


class MessageSet(NamedTuple):
    """Messages, and the offset after the last batch that was read: the next read begins there if there are none."""

    messages: bytes
    next_offset: int


class _Records(NamedTuple):
    """The located records of one batch; `ends[i]` is the size of the messages that records 0 to i become."""

    data: Bytes
    header: BatchHeader
    ends: Longs
    positions: RecordPositions

    def __len__(self) -> int:
        return len(self.ends)

    def size(self, first: int, end: int) -> int:
        """The size of the messages of rows from `first` up to `end`."""
        return int(self.ends[end - 1]) - self.size_before(first)

    def size_before(self, row: int) -> int:
        """The size of the messages before a row."""
        return int(self.ends[row - 1]) if row else 0


class _Writer:
    """A message set in the making, of at most `max_size` bytes, or of one message or compressed part that is larger."""

    def __init__(self, magic: int, max_size: int) -> None:
        self._magic = magic
        self._max_size = max_size
        self._overhead = _overhead(magic)
        self.messages = bytearray()
        self.is_full = False

    def write(self, records: _Records) -> None:
        """Add what fits."""
        codec = records.header.codec
        first = 0
        while first < len(records) and not self.is_full:
            room = self._max_size - len(self.messages)
            end = self._end(records, first, room if codec is Codec.NONE else min(room - self._overhead, MAX_INNER_SIZE))
            part = (
                self._plain(records, first, end) if codec is Codec.NONE else self._wrapped(records, first, end, codec)
            )
            if len(part) > room and self.messages:
                self.is_full = True
            else:
                self.messages += part
            first = end
            self.is_full = self.is_full or len(self.messages) >= self._max_size

    @staticmethod
    def _end(records: _Records, first: int, room: int) -> int:
        """The row after the last one that fits with those from `first` on; one always does."""
        end = int(np.searchsorted(records.ends, records.size_before(first) + room, side="right"))
        return max(end, first + 1)

    def _plain(
        self, records: _Records, first: int, end: int, attributes: int | None = None, base: int = 0
    ) -> bytearray:
        if attributes is None:
            attributes = self._attributes(records.header)
        out = bytearray(records.size(first, end))
        array = np.frombuffer(out, np.uint8)
        write_messages(records.data, first, end, self._magic, attributes, base, *records.positions[:6], array)
        return out

    def _wrapped(self, records: _Records, first: int, end: int, codec: Codec) -> bytes:
        base = int(records.positions.offsets[first]) if self._magic else 0
        content = compress(codec, self._plain(records, first, end, self._attributes(records.header), base))
        if codec is Codec.LZ4 and not self._magic:
            content = lz4_framing.break_checksum(content)
        attributes = codec | self._attributes(records.header)
        timestamp = int(records.positions.timestamps[first:end].max())
        return wrap(content, self._magic, attributes, int(records.positions.offsets[end - 1]), timestamp)

    def _attributes(self, header: BatchHeader) -> int:
        is_append_time = self._magic and header.timestamp_type is TimestampType.LOG_APPEND_TIME
        return LOG_APPEND_TIME_FLAG if is_append_time else 0


def convert_down(batches: Buffer, magic: int, fetch_offset: int, max_bytes: int, *, is_hard_limit: bool) -> MessageSet:
    """The records from `fetch_offset` on as messages of `magic` 0 or 1, at most `max_bytes` of them.

    The first message may be larger. With `is_hard_limit` it is cut at `max_bytes`, by which clients of Fetch 0-2 see
    that they have to fetch more. Ends before a batch that can't be converted; if that is the first, raises
    UNSUPPORTED_COMPRESSION_TYPE (zstd), MESSAGE_TOO_LARGE or CORRUPT_MESSAGE.
    """
    writer = _Writer(magic, max_bytes)
    next_offset = fetch_offset
    for position, header in iter_headers(batches):
        if writer.is_full:
            break
        if header.last_offset >= fetch_offset and not header.is_control:
            try:
                writer.write(_locate(batches, position, header, fetch_offset, _overhead(magic)))
            except RaykaError:
                if writer.messages:
                    break
                raise
        next_offset = max(next_offset, header.next_offset)
    messages = bytes(writer.messages[:max_bytes] if is_hard_limit else writer.messages)
    return MessageSet(messages, next_offset)


def _overhead(magic: int) -> int:
    """Bytes of a message beside its key and value."""
    return OVERHEAD + TIMESTAMP_SIZE * magic


def _locate(batches: Buffer, position: int, header: BatchHeader, fetch_offset: int, overhead: int) -> _Records:
    if header.codec is Codec.ZSTD:
        raise _zstd(header)
    records = record_bytes(batches, position, header, MAX_BATCH_SIZE)
    rows = header.record_count
    if not 0 <= rows <= len(records) // MIN_RECORD_SIZE:
        raise _corrupt(header)
    data = np.frombuffer(records, np.uint8)
    batch = 0, len(records), rows, header.base_offset, *_times(header), header.last_offset_delta
    longs = np.empty((2, rows), np.int64)
    ints = np.empty((6, rows), np.int32)
    positions = RecordPositions(*longs, *ints)
    found, broken = locate(data, np.array([batch], np.int64), fetch_offset, _NO_LIMIT, np.empty(1, np.int64), positions)
    if broken != SOUND:
        raise _corrupt(header)
    positions = RecordPositions(*longs[:, :found], *ints[:, :found])
    sizes = overhead + np.maximum(positions.key_lengths, 0).astype(np.int64) + np.maximum(positions.value_lengths, 0)
    return _Records(data, header, np.cumsum(sizes), positions)


def _times(header: BatchHeader) -> tuple[int, int]:
    """The base timestamp and 1, or the log append time and 0."""
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return (header.max_timestamp, 0) if is_append_time else (header.base_timestamp, 1)


def _zstd(header: BatchHeader) -> RaykaError:
    return RaykaError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        f"The record batch at offset {header.base_offset} is compressed with zstd, which needs Fetch v10 or later",
    )


def _corrupt(header: BatchHeader) -> RaykaError:
    return RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The record batch at offset {header.base_offset} is broken")
