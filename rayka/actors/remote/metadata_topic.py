"""`__remote_log_metadata` as one partition actor knows it: events are appended, and read back before they count.

The state of a partition of it is what its records say, up to where it was read; nothing else changes it. So an append
of which nobody knows whether it was done is settled by reading on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from typing import Final

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.metadata.commands import NewTopic
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.records import Record, build_batch, read_batch
from rayka.storage.remote.metadata_records import decode, encode
from rayka.storage.remote.partitioner import metadata_partition
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.remote.segment_metadata import RemoteLogMetadataEvent
from rayka.storage.segments.reader import SegmentReader
from rayka.types import (
    AppendParams,
    AppendRequest,
    FetchPartition,
    FileSlice,
    IsolationLevel,
    TopicIdPartition,
    TopicPartition,
)

logger = logging.getLogger(__name__)

METADATA_TOPIC: Final = "__remote_log_metadata"
_TIMEOUT_MS: Final = 30_000
_READ_BYTES: Final = 1 << 20
_ALL_ACKS: Final = -1


class MetadataTopic:
    """All partitions of the topic, each read as far as it was needed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reader = SegmentReader()
        self._positions: dict[int, int] = defaultdict(int)
        self._partitions: dict[int, dict[TopicIdPartition, RemotePartition]] = defaultdict(dict)
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def exists(self) -> bool:
        """Whether any topic ever had tiered storage."""
        return METADATA_TOPIC in self._broker.image.topics

    def led_by(self, actor_name: str) -> list[int]:
        """The partitions of the topic that an actor leads."""
        topic = self._broker.image.topics.get(METADATA_TOPIC)
        partitions = () if topic is None else topic.partitions
        return [each.partition for each in partitions if each.leader_actor == actor_name]

    def known_in(self, number: int) -> list[RemotePartition]:
        """The partitions that records of one partition of the topic are about."""
        return list(self._partitions[number].values())

    async def read(self, partition: TopicIdPartition) -> RemotePartition:
        """What the topic says now of a partition. Raises RaykaError."""
        await self._create()
        number = self._number(partition)
        await self.read_to_end(number)
        return self.known(partition)

    def known(self, partition: TopicIdPartition) -> RemotePartition:
        """What the topic said of a partition when it was last read."""
        known = self._partitions[self._number(partition)]
        return known.setdefault(partition, RemotePartition(partition))

    async def append(self, event: RemoteLogMetadataEvent) -> None:
        """Write an event, and take in what the topic says then. Raises RaykaError; it may be written all the same."""
        await self._create()
        number = self._number(event.partition)
        records = build_batch([Record(0, time.time_ns() // 1_000_000, None, encode(event))])
        request = AppendRequest(TopicPartition(METADATA_TOPIC, number), memoryview(records))
        params = AppendParams(_ALL_ACKS, _TIMEOUT_MS, internal_topics_allowed=True)
        (result,) = await self._broker.partitions.append([request], params)
        if result.error:
            raise RaykaError(ErrorCode(result.error), result.error_message or f"{METADATA_TOPIC} took no event")
        await self.read_to_end(number)

    async def read_to_end(self, number: int) -> None:
        """Take in everything that a partition of the topic has. Raises RaykaError."""
        async with self._locks[number]:
            while await self._read_more(number):
                pass

    async def _read_more(self, number: int) -> bool:
        """Take in the next records; whether there may be more."""
        wanted = FetchPartition(TopicPartition(METADATA_TOPIC, number), self._positions[number], _READ_BYTES)
        (result,) = await self._broker.partitions.fetch(
            [wanted], max_wait_ms=0, min_bytes=1, max_bytes=_READ_BYTES, isolation=IsolationLevel.READ_UNCOMMITTED
        )
        if result.error == ErrorCode.OFFSET_OUT_OF_RANGE and wanted.fetch_offset < result.log_start_offset:
            self._positions[number] = result.log_start_offset
            return True
        if result.error:
            raise RaykaError(ErrorCode(result.error), f"{METADATA_TOPIC}-{number} can't be read")
        events, position = await asyncio.to_thread(self._decode, result.records, self._positions[number])
        known = self._partitions[number]
        for event in events:
            known.setdefault(event.partition, RemotePartition(event.partition)).replay(event)
        is_more = position > self._positions[number]
        self._positions[number] = position
        return is_more

    def _decode(self, records: FileSlice | bytes | None, position: int) -> tuple[list[RemoteLogMetadataEvent], int]:
        """The events from an offset on, and the offset after them. A record that makes no sense is passed over."""
        data = self._reader.read(records) if isinstance(records, FileSlice) else records or b""
        events = []
        for start, header in iter_headers(data):
            if header.next_offset <= position:
                continue
            for record in read_batch(data, start, header):
                try:
                    event = decode(record.value or b"")
                except ValueError as error:
                    logger.error("record %d of %s makes no sense: %s", record.offset, METADATA_TOPIC, error)
                else:
                    events += [event] if event is not None else []
            position = header.next_offset
        return events, position

    def _number(self, partition: TopicIdPartition) -> int:
        topic = self._broker.image.topics.get(METADATA_TOPIC)
        if topic is None:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{METADATA_TOPIC} does not exist yet")
        return metadata_partition(partition, len(topic.partitions))

    async def _create(self) -> None:
        """Create the topic with its own settings when it is first needed. Others may do so at the same time."""
        if self.exists:
            return
        (result,) = await self._broker.controller.create_topics(
            [NewTopic(METADATA_TOPIC)], validate_only=False, timeout_ms=_TIMEOUT_MS
        )
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RaykaError(ErrorCode(result.error), result.error_message or f"{METADATA_TOPIC} was not created")
