"""What batches must be before a leader appends them, and the changes that topic configs ask for.

The usual batch is checked by its header and CRC alone. Records are decoded only where a config can't be
kept otherwise: on a compacted topic (keys) and with `message.timestamp.before.max.ms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rayka.config.log import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    BatchHeader,
    Buffer,
    ensure_intact,
    read_header,
    stamp_log_append_time,
    validate,
)
from rayka.storage.format.compression import Codec
from rayka.storage.format.recompression import recompress
from rayka.storage.format.records import read_batch
from rayka.types import NO_TIMESTAMP, TopicPartition

LONG_MAX = (1 << 63) - 1
PRODUCER_CODEC = "producer"
_CODECS = {"uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec if codec is not Codec.NONE}}

Check = Callable[[Buffer, int, BatchHeader], None]


ValidatedRecords: TypeAlias = tuple[bytearray | memoryview, list[BatchHeader]]
"""Batches that may be appended: their bytes, writable, and the header of each in order."""


class BatchValidator:
    """The rules for one topic's configs."""

    def __init__(self, topic_partition: TopicPartition, config: LogConfig) -> None:
        self._topic_partition = topic_partition
        self._max_message_bytes = config.max_message_bytes
        self._sets_log_append_time = config.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._needs_keys = "compact" in config.cleanup_policy
        self._codec = None if config.compression_type == PRODUCER_CODEC else _CODECS[config.compression_type]
        self._level = _level(config, self._codec)
        self._max_size = config.max_decompressed_message_bytes
        bounded = self._before_max_ms != LONG_MAX and not self._sets_log_append_time
        self._decodes = self._needs_keys or bounded

    def validate(self, records: bytearray | memoryview, now_ms: int, *, from_client: bool) -> ValidatedRecords:
        """Check all batches, and convert them where the topic asks for it."""
        headers = self._check_all(records, now_ms, validate if from_client else ensure_intact)
        if self._codec is not None and any(header.attributes & CODEC_MASK != self._codec for header in headers):
            records, headers = self._recompress(records, headers, self._codec)
        if self._sets_log_append_time:
            headers = _stamp_all(records, headers, now_ms)
        return records, headers

    def log_append_time(self, now_ms: int) -> int:
        """`now_ms` if the log sets the timestamps, else -1."""
        return now_ms if self._sets_log_append_time else NO_TIMESTAMP

    def _check_all(self, records: Buffer, now_ms: int, check: Check) -> list[BatchHeader]:
        headers: list[BatchHeader] = []
        position, end = 0, len(records)
        if not end:
            raise RaykaError(ErrorCode.INVALID_RECORD, f"The append to {self._topic_partition} has no record batch")
        while position < end:
            header = read_header(records, position)
            self._check_size(header.batch_length + LOG_OVERHEAD)
            check(records, position, header)
            self._check_timestamps(header, now_ms)
            if self._decodes and check is validate:
                self._check_records(records, position, header, now_ms)
            headers.append(header)
            position += header.batch_length + LOG_OVERHEAD
        return headers

    def _check_size(self, size: int) -> None:
        if size > self._max_message_bytes:
            raise RaykaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A record batch of {size} bytes in the append to {self._topic_partition} is larger than"
                f" max.message.bytes, {self._max_message_bytes}",
            )

    def _check_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        if self._sets_log_append_time:
            return
        if header.attributes & LOG_APPEND_TIME_FLAG:
            raise RaykaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"A batch for {self._topic_partition} says LogAppendTime, which only the broker may set",
            )
        if header.max_timestamp - now_ms > self._after_max_ms:
            self._refuse_timestamp(header.max_timestamp, now_ms)

    def _check_records(self, records: Buffer, position: int, header: BatchHeader, now_ms: int) -> None:
        earliest = NO_TIMESTAMP if self._sets_log_append_time else now_ms - self._before_max_ms
        for record in read_batch(records, position, header):
            if self._needs_keys and record.key is None:
                raise RaykaError(
                    ErrorCode.INVALID_RECORD,
                    f"Compacted topic cannot accept message without key in topic partition {self._topic_partition}.",
                )
            if NO_TIMESTAMP != record.timestamp < earliest:
                self._refuse_timestamp(record.timestamp, now_ms)

    def _refuse_timestamp(self, timestamp: int, now_ms: int) -> None:
        raise RaykaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"Timestamp {timestamp} of a record for {self._topic_partition} is out of range: it should be within"
            f" [{now_ms - self._before_max_ms}, {now_ms + self._after_max_ms}]",
        )

    def _recompress(self, records: Buffer, headers: list[BatchHeader], codec: Codec) -> ValidatedRecords:
        converted = bytearray()
        position = 0
        changed = []
        for header in headers:
            batch = recompress(records, position, header, codec, self._level, self._max_size)
            self._check_size(len(batch))
            changed.append(read_header(batch))
            converted += batch
            position += header.size_in_bytes
        return converted, changed


def _stamp_all(records: bytearray | memoryview, headers: list[BatchHeader], now_ms: int) -> list[BatchHeader]:
    stamped = []
    position = 0
    for header in headers:
        stamp_log_append_time(records, position, now_ms)
        stamped.append(read_header(records, position))
        position += header.size_in_bytes
    return stamped


def _level(config: LogConfig, codec: Codec | None) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
    return None
