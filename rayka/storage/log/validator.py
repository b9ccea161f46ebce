"""What batches must be before a leader appends them, and the changes that topic configs ask for.

The usual batch is checked by its header and CRC alone. Records are examined only where a config speaks of them: on
a compacted topic (keys), with `message.timestamp.before.max.ms`, with a bound on decompressed records, and to name
those whose timestamp is too far in the future. That work is done in the event loop, so it is bounded for each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rayka.config.definition import LONG_MAX
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
from rayka.storage.format.builder import recompress
from rayka.storage.format.compression import DEFAULT_MAX_SIZE, Codec
from rayka.storage.format.record_checks import RecordRules, check_records
from rayka.storage.format.records import record_bytes
from rayka.types import NO_TIMESTAMP, TopicPartition

MAX_BATCH_SIZE = 16 << 20
"""Bytes that a batch may decompress to on its way into the log, where no topic config asks for more.

Decompressing them takes 30 to 60 ms, and walking `MAX_CHECKED_RECORDS` about 40 ms. Both happen in the event loop,
where every other client waits.
"""
MAX_CHECKED_RECORDS = 100_000
"""The most records of a batch that are checked one by one; few batches of 1 MB have more."""
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
        self._max_record_size = config.max_decompressed_message_bytes
        self._bounds_size = self._max_record_size < DEFAULT_MAX_SIZE
        self._max_batch_size = _max_batch_size(config)
        self._checks_timestamps = not self._sets_log_append_time
        self._bounds_timestamps = self._checks_timestamps and self._before_max_ms != LONG_MAX
        self._checks_records = self._needs_keys or self._bounds_timestamps or self._bounds_size

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
            if header.batch_length + LOG_OVERHEAD > self._max_message_bytes:
                raise self._too_large(header.batch_length + LOG_OVERHEAD)
            check(records, position, header)
            if self._checks_timestamps and header.attributes & LOG_APPEND_TIME_FLAG:
                self._refuse_log_append_time()
            is_late = self._checks_timestamps and header.max_timestamp - now_ms > self._after_max_ms
            if (is_late or self._checks_records) and check is validate:
                self._check_records(records, position, header, now_ms, is_late)
            headers.append(header)
            position += header.batch_length + LOG_OVERHEAD
        return headers

    def _too_large(self, size: int) -> RaykaError:
        return RaykaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"A record batch of {size} bytes in the append to {self._topic_partition} is larger than"
            f" max.message.bytes, {self._max_message_bytes}",
        )

    def _refuse_log_append_time(self) -> None:
        raise RaykaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"A batch for {self._topic_partition} has timestamp type LogAppendTime, which only the broker may set",
        )

    def _check_records(self, records: Buffer, position: int, header: BatchHeader, now_ms: int, is_late: bool) -> None:
        """Look at each record, where a config speaks of records and the header can't tell.

        Raises RecordValidationError, and INVALID_TIMESTAMP if only the header has a timestamp in the far future. A
        batch that is too large to be checked in the event loop is refused as a whole: with INVALID_TIMESTAMP if its
        header is reason enough, else with MESSAGE_TOO_LARGE, at which Java producers split the batch and send its
        parts. A walk in a thread would have to hold back all later appends to the partition.
        """
        is_compressed = bool(header.attributes & CODEC_MASK)
        if not (is_late or self._needs_keys or self._bounds_timestamps or (is_compressed and self._bounds_size)):
            return
        try:
            if header.record_count > MAX_CHECKED_RECORDS:
                raise self._too_many(header)
            data = record_bytes(records, position, header, self._max_batch_size)
        except RaykaError as error:
            if is_late and error.code is ErrorCode.MESSAGE_TOO_LARGE:
                raise self._late(header) from error
            raise
        check_records(data, header, self._rules(now_ms, is_compressed), self._topic_partition)
        if is_late:
            raise self._late(header)

    def _too_many(self, header: BatchHeader) -> RaykaError:
        return RaykaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"A batch for {self._topic_partition} has {header.record_count} records. Where records are checked one"
            f" by one, a batch has at most {MAX_CHECKED_RECORDS}",
        )

    def _rules(self, now_ms: int, is_compressed: bool) -> RecordRules:
        return RecordRules(
            self._needs_keys,
            now_ms - self._before_max_ms if self._checks_timestamps else -LONG_MAX,
            now_ms + self._after_max_ms if self._checks_timestamps else LONG_MAX,
            self._max_record_size if is_compressed else DEFAULT_MAX_SIZE,
        )

    def _late(self, header: BatchHeader) -> RaykaError:
        return RaykaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"A batch for {self._topic_partition} has the maximum timestamp {header.max_timestamp}, which is more"
            f" than {self._after_max_ms} ms in the future",
        )

    def _recompress(self, records: Buffer, headers: list[BatchHeader], codec: Codec) -> ValidatedRecords:
        converted = bytearray()
        position = 0
        changed = []
        for header in headers:
            batch = recompress(records, position, header, codec, self._level, self._max_batch_size)
            if len(batch) > self._max_message_bytes:
                raise self._too_large(len(batch))
            changed.append(read_header(batch))
            converted += batch
            position += header.size_in_bytes
        return converted, changed


def _max_batch_size(config: LogConfig) -> int:
    """A topic whose configs allow large batches or records gets them compressed too, at the cost of waits."""
    asked = config.max_decompressed_message_bytes
    size = max(MAX_BATCH_SIZE, config.max_message_bytes, asked if asked < DEFAULT_MAX_SIZE else 0)
    return min(size, DEFAULT_MAX_SIZE)


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
