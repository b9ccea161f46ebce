"""The records of `__remote_log_metadata` in Kafka's format: a value without a key.

    frame version (1) | record type | version | fields, then tagged fields (KIP-482)

Record types and their fields are those of Kafka's `RemoteLogSegmentMetadataRecord`, `...UpdateRecord` and
`RemotePartitionDeleteMetadataRecord`. Version 0 is written, as by Kafka 4.4; the tags that version 1 adds are skipped.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.remote.segment_metadata import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from rayka.types import TopicIdPartition, TopicPartition
from rayka.varint import encode_uvarint

_FRAME_VERSION: Final = 1
_VERSION: Final = 0
_NEWEST_VERSION: Final = 1
_SEGMENT, _UPDATE, _DELETION = 0, 1, 2
_TRANSACTION_INDEX_EMPTY_TAG: Final = 0
_OFFSETS: Final = struct.Struct(">qqiqq")
_EPOCH: Final = struct.Struct(">iq")
_EVENT: Final = struct.Struct(">iq")
_INT: Final = struct.Struct(">i")
_NO_TAGS: Final = b"\0"
_UVARINT_BITS: Final = 35


def encode(event: RemoteLogMetadataEvent) -> bytes:
    """The value of the record that stands for an event."""
    if isinstance(event, RemoteLogSegmentMetadata):
        return _head(_SEGMENT) + _segment_id(event.partition, event.segment_id) + _segment(event)
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        fields = _EVENT.pack(event.broker_id, event.event_timestamp_ms) + _bytes(event.custom_metadata)
        return _head(_UPDATE) + _segment_id(event.partition, event.segment_id) + fields + bytes((event.state, 0))
    fields = _EVENT.pack(event.broker_id, event.event_timestamp_ms) + bytes((event.state, 0))
    return _head(_DELETION) + _partition(event.partition) + fields


def _head(record_type: int) -> bytes:
    return bytes((_FRAME_VERSION, record_type, _VERSION))


def _segment(event: RemoteLogSegmentMetadata) -> bytes:
    offsets = _OFFSETS.pack(
        event.start_offset, event.end_offset, event.broker_id, event.max_timestamp, event.event_timestamp_ms
    )
    epochs = b"".join(_EPOCH.pack(*entry) + _NO_TAGS for entry in event.leader_epochs)
    tags = bytes((1, _TRANSACTION_INDEX_EMPTY_TAG, 1, 1)) if event.is_transaction_index_empty else _NO_TAGS
    count = encode_uvarint(len(event.leader_epochs) + 1)
    tail = _INT.pack(event.size) + _bytes(event.custom_metadata) + bytes((event.state,))
    return offsets + count + epochs + tail + tags


def _partition(partition: TopicIdPartition) -> bytes:
    topic, number = partition.topic_partition
    return _bytes(topic.encode()) + partition.topic_id.bytes + _INT.pack(number) + _NO_TAGS


def _segment_id(partition: TopicIdPartition, segment_id: uuid.UUID) -> bytes:
    return _partition(partition) + segment_id.bytes + _NO_TAGS


def _bytes(data: bytes | None) -> bytes:
    return b"\0" if data is None else encode_uvarint(len(data) + 1) + data


def decode(value: bytes) -> RemoteLogMetadataEvent | None:
    """The event that a record stands for; None for a record type that is not known. Raises ValueError if malformed."""
    reader = _Reader(value)
    frame_version, record_type, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
    if frame_version != _FRAME_VERSION or version > _NEWEST_VERSION:
        raise ValueError(f"frame version {frame_version} or version {version} is not known")
    if record_type == _SEGMENT:
        return reader.segment()
    if record_type == _UPDATE:
        return reader.update()
    return reader.deletion() if record_type == _DELETION else None


class _Reader:
    """Reads fields one after the other. Raises ValueError at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def segment(self) -> RemoteLogSegmentMetadata:
        partition, segment_id = self._segment_id()
        start, end, broker_id, max_timestamp, event_ms = _OFFSETS.unpack(self._take(_OFFSETS.size))
        epochs = tuple(self._epoch() for _ in range(self.uvarint() - 1))
        size = self._int()
        custom = self._nullable_bytes()
        state = RemoteLogSegmentState(self._take(1)[0])
        tags = self._tags()
        is_empty = tags.get(_TRANSACTION_INDEX_EMPTY_TAG) == b"\1"
        return RemoteLogSegmentMetadata(
            partition, segment_id, start, end, broker_id, max_timestamp, event_ms, epochs, size, state, custom, is_empty
        )

    def update(self) -> RemoteLogSegmentMetadataUpdate:
        partition, segment_id = self._segment_id()
        broker_id, event_ms = _EVENT.unpack(self._take(_EVENT.size))
        custom = self._nullable_bytes()
        state = RemoteLogSegmentState(self._take(1)[0])
        self._tags()
        return RemoteLogSegmentMetadataUpdate(partition, segment_id, broker_id, event_ms, state, custom)

    def deletion(self) -> RemotePartitionDeleteMetadata:
        partition = self._partition()
        broker_id, event_ms = _EVENT.unpack(self._take(_EVENT.size))
        state = RemotePartitionDeleteState(self._take(1)[0])
        self._tags()
        return RemotePartitionDeleteMetadata(partition, broker_id, event_ms, state)

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, _UVARINT_BITS, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError(f"the number before byte {self._position} is longer than 5 bytes")

    def _take(self, size: int) -> bytes:
        data = self._data[self._position : self._position + size]
        if size < 0 or len(data) < size:
            raise ValueError("the record ends early")
        self._position += size
        return data

    def _int(self) -> int:
        number: int = _INT.unpack(self._take(_INT.size))[0]
        return number

    def _nullable_bytes(self) -> bytes | None:
        size = self.uvarint() - 1
        return None if size < 0 else self._take(size)

    def _tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(self.uvarint())}

    def _partition(self) -> TopicIdPartition:
        name = (self._nullable_bytes() or b"").decode()
        topic_id = uuid.UUID(bytes=self._take(16))
        partition = TopicIdPartition(topic_id, TopicPartition(name, self._int()))
        self._tags()
        return partition

    def _segment_id(self) -> tuple[TopicIdPartition, uuid.UUID]:
        partition = self._partition()
        segment_id = uuid.UUID(bytes=self._take(16))
        self._tags()
        return partition, segment_id

    def _epoch(self) -> EpochEntry:
        epoch, offset = _EPOCH.unpack(self._take(_EPOCH.size))
        self._tags()
        return EpochEntry(epoch, offset)
