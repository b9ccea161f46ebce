"""The bytes of Fetch requests, versions 0 to 18."""

from __future__ import annotations

import struct
from typing import Final

from rayka.config.definition import INT_MAX
from rayka.gateway.handlers.fetch.sessions import FINAL_EPOCH, NO_SESSION_ID, PartitionKey, SessionPartition, TopicKey
from rayka.gateway.wire.reader import INT32, Frame, FrameReader, MalformedFrame
from rayka.types import NO_LEADER_EPOCH

FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_ID: Final = 13
FIRST_WITH_SESSIONS: Final = 7
FIRST_WITH_ZSTD: Final = 10
FIRST_WITH_MAX_BYTES: Final = 3
_FIRST_WITH_ISOLATION: Final = 4
_FIRST_WITH_REPLICA_STATE: Final = 15
_REPLICA_STATE_TAG: Final = 1
_CONSUMER: Final = -1

# Partition, [leader epoch,] fetch offset, [last fetched epoch,] [log start offset,] max bytes.
_V0: Final = struct.Struct(">iqi")
_V5: Final = struct.Struct(">iqqi")
_V9: Final = struct.Struct(">iiqqi")
_V12: Final = struct.Struct(">iiqiqi")
_OFFSET_V0: Final = 4
_OFFSET_V9: Final = 8


class FetchRequestData:
    """What a Fetch request asks. `offset_position` is where the frame has the fetch offset of the last partition."""

    __slots__ = (
        "forgotten",
        "isolation",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "offset_position",
        "partitions",
        "replica_id",
        "session_epoch",
        "session_id",
    )

    def __init__(self) -> None:
        self.replica_id = _CONSUMER
        self.max_wait_ms = 0
        self.min_bytes = 0
        self.max_bytes = INT_MAX
        self.isolation = 0
        self.session_id = NO_SESSION_ID
        self.session_epoch = FINAL_EPOCH
        self.partitions: list[SessionPartition] = []
        self.forgotten: list[PartitionKey] = []
        self.offset_position = 0

    @property
    def is_outside_of_sessions(self) -> bool:
        """Whether the request opens no session, belongs to none and ends none."""
        return self.session_id == NO_SESSION_ID and self.session_epoch == FINAL_EPOCH

    @property
    def is_from_follower(self) -> bool:
        """Whether a broker asks, not a consumer (-1) or a tool that poses as none in particular (-2)."""
        return self.replica_id >= 0


def parse(frame: Frame, position: int, version: int) -> FetchRequestData:
    """Read a request whose body begins at `position`. Raises MalformedFrame."""
    flexible = version >= FIRST_FLEXIBLE
    reader = FrameReader(frame, position)
    request = FetchRequestData()
    if version < _FIRST_WITH_REPLICA_STATE:
        request.replica_id = reader.int32()
    request.max_wait_ms = reader.int32()
    request.min_bytes = reader.int32()
    if version >= FIRST_WITH_MAX_BYTES:
        request.max_bytes = reader.int32()
    if version >= _FIRST_WITH_ISOLATION:
        request.isolation = reader.int8()
    if version >= FIRST_WITH_SESSIONS:
        request.session_id = reader.int32()
        request.session_epoch = reader.int32()
    _read_topics(reader, version, flexible, request)
    if version >= FIRST_WITH_SESSIONS:
        _read_forgotten(reader, version, flexible, request.forgotten)
    if version >= 11:
        reader.string(flexible)
    if flexible:
        _read_tags(reader, version, request)
    return request


def _read_topics(reader: FrameReader, version: int, flexible: bool, request: FetchRequestData) -> None:
    layout = _V12 if version >= 12 else _V9 if version >= 9 else _V5 if version >= 5 else _V0
    for _ in range(reader.required_array_size(flexible)):
        topic = _read_topic(reader, version, flexible)
        for _ in range(reader.required_array_size(flexible, layout.size)):
            begin = reader.take(layout.size)
            fields = layout.unpack_from(reader.buffer, begin)
            request.partitions.append(_partition(topic, version, fields))
            request.offset_position = begin + (_OFFSET_V9 if version >= 9 else _OFFSET_V0)
            if flexible:
                reader.skip_tags()
        if flexible:
            reader.skip_tags()


def _partition(topic: TopicKey, version: int, fields: tuple[int, ...]) -> SessionPartition:
    if version >= 12:
        number, leader_epoch, offset, last_epoch, _, max_bytes = fields
        return SessionPartition(topic, number, offset, max_bytes, leader_epoch, last_epoch)
    if version >= 9:
        number, leader_epoch, offset, _, max_bytes = fields
        return SessionPartition(topic, number, offset, max_bytes, leader_epoch)
    return SessionPartition(topic, fields[0], fields[1], fields[-1], NO_LEADER_EPOCH)


def _read_topic(reader: FrameReader, version: int, flexible: bool) -> TopicKey:
    return reader.topic_id() if version >= FIRST_WITH_TOPIC_ID else reader.required_string(flexible)


def _read_forgotten(reader: FrameReader, version: int, flexible: bool, forgotten: list[PartitionKey]) -> None:
    for _ in range(reader.required_array_size(flexible)):
        topic = _read_topic(reader, version, flexible)
        for _ in range(reader.required_array_size(flexible, INT32.size)):
            forgotten.append((topic, reader.int32()))
        if flexible:
            reader.skip_tags()


def _read_tags(reader: FrameReader, version: int, request: FetchRequestData) -> None:
    """The cluster id is for brokers; the replica's state says who asks (KIP-903)."""
    for _ in range(reader.tag_count()):
        tag = reader.uvarint()
        size = reader.uvarint()
        begin = reader.take(size)
        if tag == _REPLICA_STATE_TAG and version >= _FIRST_WITH_REPLICA_STATE:
            if size < INT32.size:
                raise MalformedFrame(f"replica state of {size} bytes")
            request.replica_id = INT32.unpack_from(reader.buffer, begin)[0]
