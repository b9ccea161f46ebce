"""`__remote_log_metadata` as one partition actor knows it: events are appended, and read back before they count.

The state of one of its partitions is the content of its records, up to the offset that was read; nothing else changes
the state. So if the outcome of an append is unknown, reading further settles it. If the topic has lost records that
were read, because it was truncated, emptied or created again, the partition is read again from its start.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.metadata.commands import NewTopic
from rayka.storage.format.batch import BatchHeader, Buffer, iter_headers
from rayka.storage.format.records import Record, build_batch, read_batch
from rayka.storage.remote.metadata_records import decode, encode
from rayka.storage.remote.partitioner import metadata_partition
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.remote.segment_metadata import RemoteLogMetadataEvent, RemotePartitionDeleteState
from rayka.storage.segments.reader import SegmentReader
from rayka.types import (
    ALL_ACKS,
    NO_LEADER_EPOCH,
    AppendParams,
    AppendRequest,
    EpochQuery,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    TopicIdPartition,
    TopicPartition,
)

logger = logging.getLogger(__name__)

METADATA_TOPIC: Final = "__remote_log_metadata"
_TIMEOUT_MS: Final = 30_000
_READ_BYTES: Final = 1 << 20
_MOST_BATCH_BYTES: Final = 4 << 20
"""Bytes that a batch may decompress to; an event has some hundred."""


@dataclass(slots=True)
class _MetadataPartition:
    """What was read of one partition of the topic, up to `position`; the last batch is of `leader_epoch`."""

    position: int = 0
    leader_epoch: int = NO_LEADER_EPOCH
    checked_epoch: int = NO_LEADER_EPOCH
    """The leader epoch of this partition in which it was known to have everything that was read."""
    remotes: dict[TopicIdPartition, RemotePartition] = field(default_factory=dict)

    def replay(self, event: RemoteLogMetadataEvent) -> None:
        """Apply an event. A partition without segments in the store is forgotten."""
        remote = self.remotes.setdefault(event.partition, RemotePartition(event.partition))
        remote.replay(event)
        if remote.delete_state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED and not remote.segments:
            del self.remotes[event.partition]


class MetadataTopic:
    """All partitions of the topic. Each is read when it is first needed."""

    def __init__(self, broker: Broker, create_store: Callable[[], Awaitable[None]]) -> None:
        self.resets = 0
        """How often what was read had to be forgotten."""
        self._broker = broker
        self._create_store = create_store
        self._reader = SegmentReader()
        self._topic_id: uuid.UUID | None = None
        self._read: dict[int, _MetadataPartition] = defaultdict(_MetadataPartition)
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def exists(self) -> bool:
        """Whether the topic exists: it is created when a topic first gets tiered storage."""
        return METADATA_TOPIC in self._broker.image.topics

    def led_by(self, actor_name: str) -> list[int]:
        """The partitions of the topic that an actor leads."""
        topic = self._broker.image.topics.get(METADATA_TOPIC)
        partitions = () if topic is None else topic.partitions
        return [each.partition for each in partitions if each.leader_actor == actor_name]

    def known_in(self, number: int) -> list[RemotePartition]:
        """The user partitions whose segments one partition of the topic describes."""
        return list(self._read[number].remotes.values())

    async def read(self, partition: TopicIdPartition) -> RemotePartition:
        """The remote segments of a partition, after reading the topic to its end. Raises RaykaError."""
        await self._create()
        number = self._number(partition)
        await self.read_to_end(number)
        return self.known(partition)

    def known(self, partition: TopicIdPartition) -> RemotePartition:
        """The remote segments of a partition as of the last read."""
        return self._read[self._number(partition)].remotes.get(partition) or RemotePartition(partition)

    async def append(self, event: RemoteLogMetadataEvent) -> None:
        """Write an event and read the topic to its end. Raises RaykaError; the event may have been written anyway."""
        await self._create()
        number = self._number(event.partition)
        records = build_batch([Record(0, time.time_ns() // 1_000_000, None, encode(event))])
        request = AppendRequest(TopicPartition(METADATA_TOPIC, number), memoryview(records))
        params = AppendParams(ALL_ACKS, _TIMEOUT_MS, internal_topics_allowed=True)
        (result,) = await self._broker.partitions.append([request], params)
        if result.error:
            raise RaykaError(ErrorCode(result.error), result.error_message or f"{METADATA_TOPIC} took no event")
        await self.read_to_end(number)

    async def read_to_end(self, number: int) -> None:
        """Read a partition of the topic to its end. Raises RaykaError."""
        async with self._locks[number]:
            self._check_topic_id()
            await self._check_truncation(number)
            while await self._read_more(number):
                pass

    def _check_topic_id(self) -> None:
        """If the topic was deleted and created again, forget what the old one contained."""
        topic = self._broker.image.topics.get(METADATA_TOPIC)
        topic_id = None if topic is None else topic.topic_id
        for number in list(self._read) if topic_id != self._topic_id else ():
            self._forget(number, "was deleted")
        self._topic_id = topic_id

    async def _check_truncation(self, number: int) -> None:
        """Forget what was read if a new leader does not have it (KIP-320). Raises RaykaError."""
        topic_partition, read = TopicPartition(METADATA_TOPIC, number), self._read[number]
        image = self._broker.image.partition(topic_partition)
        if image is None or image.leader_epoch == read.checked_epoch:
            return
        if read.leader_epoch != NO_LEADER_EPOCH:
            (end,) = await self._broker.partitions.epoch_end_offsets([EpochQuery(topic_partition, read.leader_epoch)])
            if end.error:
                raise RaykaError(ErrorCode(end.error), f"{topic_partition} can't be read")
            if end.leader_epoch != read.leader_epoch or end.end_offset < read.position:
                self._forget(number, f"lost the records from offset {end.end_offset} on")
        self._read[number].checked_epoch = image.leader_epoch

    def _forget(self, number: int, why: str) -> None:
        read = self._read.pop(number)
        if read.position:
            self.resets += 1
            logger.error("%s-%d %s; it is read again from its start", METADATA_TOPIC, number, why)

    async def _read_more(self, number: int) -> bool:
        """Read the next records. Returns whether there may be more."""
        read = self._read[number]
        wanted = FetchPartition(TopicPartition(METADATA_TOPIC, number), read.position, _READ_BYTES)
        (result,) = await self._broker.partitions.fetch(
            [wanted], max_wait_ms=0, min_bytes=1, max_bytes=_READ_BYTES, isolation=IsolationLevel.READ_UNCOMMITTED
        )
        if result.error == ErrorCode.OFFSET_OUT_OF_RANGE and result.log_start_offset != read.position:
            self._start_again(number, result)
            return True
        if result.error:
            raise RaykaError(ErrorCode(result.error), f"{METADATA_TOPIC}-{number} can't be read")
        events, position, leader_epoch = await asyncio.to_thread(self._decode, result.records, read.position)
        for event in events:
            read.replay(event)
        if position == read.position:
            return False
        read.position, read.leader_epoch = position, leader_epoch
        return True

    def _start_again(self, number: int, result: FetchResult) -> None:
        """Go to the first record that there is: retention has deleted those before it, or the log was truncated."""
        self._forget(number, f"begins at offset {result.log_start_offset} and has not the offset that was to be read")
        self._read[number].position = result.log_start_offset

    def _decode(
        self, records: FileSlice | bytes | None, position: int
    ) -> tuple[list[RemoteLogMetadataEvent], int, int]:
        """The events from an offset on, the offset after them and the leader epoch of the last one.

        What makes no sense is skipped: it must not keep the others from being read.
        """
        data = self._reader.read(records) if isinstance(records, FileSlice) else records or b""
        events = []
        leader_epoch = NO_LEADER_EPOCH
        for start, header in iter_headers(data):
            if header.next_offset <= position:
                continue
            for record in _records(data, start, header):
                try:
                    event = decode(record.value or b"")
                except ValueError as error:
                    logger.error("record %d of %s is malformed: %s", record.offset, METADATA_TOPIC, error)
                else:
                    events += [event] if event is not None else []
            position, leader_epoch = header.next_offset, header.partition_leader_epoch
        return events, position, leader_epoch

    def _number(self, partition: TopicIdPartition) -> int:
        topic = self._broker.image.topics.get(METADATA_TOPIC)
        if topic is None:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{METADATA_TOPIC} does not exist yet")
        return metadata_partition(partition, len(topic.partitions))

    async def _create(self) -> None:
        """Create the store and the topic with its own settings when it is first needed.

        Others may do so at the same time. Once the topic exists a store that is not there is never created again. A
        topic that is refused leaves no store: another directory may be mounted in its place before the next attempt.
        """
        if self.exists:
            return
        await self._create_topic(validate_only=True)
        await self._create_store()
        await self._create_topic(validate_only=False)

    async def _create_topic(self, *, validate_only: bool) -> None:
        (result,) = await self._broker.controller.create_topics(
            [NewTopic(METADATA_TOPIC)], validate_only=validate_only, timeout_ms=_TIMEOUT_MS
        )
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RaykaError(ErrorCode(result.error), result.error_message or f"{METADATA_TOPIC} was not created")


def _records(data: Buffer, start: int, header: BatchHeader) -> list[Record]:
    try:
        return read_batch(data, start, header, _MOST_BATCH_BYTES)
    except RaykaError as error:
        logger.error("a batch of %s is malformed: %s", METADATA_TOPIC, error)
        return []
