"""Writes records that a share group rejected or delivered too often to its dead-letter topic (KIP-1191).

The records of one source partition go to one partition of the topic, with headers that say where they come from; their
keys and values go along if the group wants that, and what the member said when it rejected them goes along as long as
this leader lives. A topic is refused whose name begins with `__` or lacks `errors.deadletterqueue.topic.name.prefix`,
and an existing one that has not `errors.deadletterqueue.group.enable`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.metadata.commands import NewTopic
from rayka.replica.partition import Partition
from rayka.share.config import ShareGroupConfig
from rayka.share.share_partition import DeadLetters
from rayka.storage.format.batch import BatchHeader, Buffer, ensure_intact, iter_headers
from rayka.storage.format.order import in_order
from rayka.storage.format.records import Record, build_batch, read_batch
from rayka.storage.segments.reader import SegmentReader
from rayka.types import ALL_ACKS, AppendParams, AppendRequest, FileSlice, TopicPartition

ENABLED_CONFIG: Final = "errors.deadletterqueue.group.enable"
_TIMEOUT_MS: Final = 30_000
_BATCH_RECORDS: Final = 500
_READ_BYTES: Final = 1 << 20
_BATCH_BYTES: Final = 256 << 10
_KAFKA_HEADERS: Final = 6
_MESSAGE: Final = "__dlq.errors.message"
_DAMAGED: Final = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT})
"""A hole of zeros looks like messages of magic 0."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class DeadLetterQueue:
    """The dead-letter topics, reached through the broker's own ports."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def write(
        self, group_id: str, source: Partition, config: ShareGroupConfig, letters: Sequence[DeadLetters]
    ) -> None:
        """Return when all are in the topic; a group that has no dead-letter topic any more has nothing written.

        Raises RaykaError: then some may be in the topic, and all can be written again.
        """
        topic = config.dead_letter_topic
        if not topic:
            return
        await self._check_topic(topic)
        number = source.topic_partition.partition % len(self._broker.image.topics[topic].partitions)
        for one in letters:
            for records in _records(group_id, source, one, copied=config.dead_letter_copy_record):
                await self._append(TopicPartition(topic, number), records)

    async def _append(self, target: TopicPartition, records: list[Record]) -> None:
        """Append one batch. What the topic finds too large is appended in halves, and a single record without its
        original: the source must not wait for ever for a record that the topic will never take. Raises RaykaError.
        """
        request = AppendRequest(target, memoryview(build_batch(records)))
        (result,) = await self._broker.partitions.append([request], AppendParams(ALL_ACKS, _TIMEOUT_MS))
        smaller = _smaller(records) if result.error in _TOO_LARGE else []
        for part in smaller:
            await self._append(target, part)
        if result.error and not smaller:
            raise RaykaError(ErrorCode(result.error), result.error_message or f"{target} refused dead letters")

    async def _check_topic(self, topic: str) -> None:
        """Create the topic if it does not exist. Raises INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION."""
        settings = self._broker.config
        prefix = str(settings["errors.deadletterqueue.topic.name.prefix"])
        if topic.startswith("__") or not topic.startswith(prefix):
            reason = f"{topic} can't be a dead-letter topic: its name must begin with {prefix!r} and not with '__'"
            raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        if topic not in self._broker.image.topics:
            if not settings["errors.deadletterqueue.auto.create.topics.enable"]:
                reason = f"the dead-letter topic {topic} does not exist"
                raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
            await self._create(topic)
        if self._broker.image.topic_configs(topic).get(ENABLED_CONFIG) != "true":
            reason = f"{topic} can't be a dead-letter topic: its {ENABLED_CONFIG} is not true"
            raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)

    async def _create(self, topic: str) -> None:
        (result,) = await self._broker.controller.create_topics(
            [NewTopic(topic, configs={ENABLED_CONFIG: "true"})], validate_only=False, timeout_ms=_TIMEOUT_MS
        )
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RaykaError(ErrorCode(result.error), result.error_message or f"{topic} could not be created")


def _smaller(records: list[Record]) -> list[list[Record]]:
    """The same dead letters in smaller batches; empty if they can't be split further."""
    middle = len(records) // 2
    if middle:
        return [records[:middle], records[middle:]]
    (record,) = records
    bare = record._replace(key=None, value=None, headers=record.headers[-_KAFKA_HEADERS:])
    return [] if bare == record else [[bare]]


def _records(group_id: str, source: Partition, letters: DeadLetters, *, copied: bool) -> Iterator[list[Record]]:
    """The records to append, a batch at a time."""
    originals = _read(source, letters.first_offset, letters.last_offset) if copied else iter(())
    original = next(originals, None)
    records: list[Record] = []
    size = 0
    for offset in range(letters.first_offset, letters.last_offset + 1):
        is_here = original is not None and original.offset == offset
        record = _record(group_id, source, letters, offset, original if is_here else None)
        if records and (len(records) == _BATCH_RECORDS or size + _size(record) > _BATCH_BYTES):
            yield records
            records, size = [], 0
        records.append(record)
        size += _size(record)
        original = next(originals, None) if is_here else original
    yield records


def _size(record: Record) -> int:
    """About how many bytes were copied."""
    headers = sum(len(value or b"") for _, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _record(group_id: str, source: Partition, letters: DeadLetters, offset: int, original: Record | None) -> Record:
    """One dead letter. An original that the log does not have any more is left out."""
    topic, partition = source.topic_partition
    given = dict(letters.headers)
    message = given.pop(_MESSAGE, b"The record was rejected, or was delivered as often as the group allows.")
    headers = (
        *given.items(),
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", str(partition).encode()),
        ("__dlq.errors.offset", str(offset).encode()),
        ("__dlq.errors.group", group_id.encode()),
        ("__dlq.errors.delivery.count", str(letters.delivery_count).encode()),
        (_MESSAGE, message),
    )
    now_ms = time.time_ns() // 1_000_000
    if original is None:
        return Record(0, now_ms, None, None, headers)
    return Record(0, now_ms, original.key, original.value, (*original.headers, *headers))


def _read(source: Partition, first_offset: int, last_offset: int) -> Iterator[Record]:
    """The records of the source at these offsets, as far as its local log has them and they can be read.

    Damaged ones are left out: their dead letters must not wait for ever. Raises RaykaError.
    """
    log = source.log
    offset = max(first_offset - 1, log.local_log_start_offset)  # the batch before shows that the first has its offset
    try:
        while offset <= last_offset and isinstance(
            found := log.read(offset, _READ_BYTES, log.high_watermark), FileSlice
        ):
            data = SegmentReader().read(found)
            begin = offset
            for position, header in in_order(iter_headers(data), begin, log.high_watermark):
                for record in _records_of(data, position, header):
                    if first_offset <= record.offset <= last_offset:
                        yield record
                offset = header.next_offset
            if offset == begin:
                return
    except RaykaError as error:  # no batch begins here, or with a wrong offset
        if error.code not in _DAMAGED:
            raise


def _records_of(data: Buffer, position: int, header: BatchHeader) -> list[Record]:
    """The records of a batch; none of a damaged one, or of control records."""
    if header.is_control:
        return []
    try:
        ensure_intact(data, position, header)
        return read_batch(data, position, header)
    except RaykaError:
        return []
