"""The bytes of ShareFetch responses, versions 1 and 2.

Everything but the records is written first; the records are read from their segments when they are sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.request import finish_frame, response_head
from rayka.gateway.server.response_writer import Part, SegmentPart
from rayka.gateway.server.segment_files import SegmentFiles, SegmentGone
from rayka.gateway.wire.leader_hints import HINTED, LEADER
from rayka.gateway.wire.reader import INT16, INT32
from rayka.metadata.image import MetadataImage
from rayka.share.requests import ShareFetchResult
from rayka.share.session import SharePartitionId
from rayka.types import NO_LEADER, NO_LEADER_EPOCH, FileSlice, TopicPartition
from rayka.varint import encode_uvarint

_HEAD: Final = struct.Struct(">ih")
_PARTITION: Final = struct.Struct(">ih")
_ACQUIRED: Final = struct.Struct(">qqhb")
_NO_LEADER: Final = (NO_LEADER, NO_LEADER_EPOCH)


class Answered(NamedTuple):
    """The result of one partition; `name` is None if its topic is not known."""

    partition: SharePartitionId
    name: TopicPartition | None
    result: ShareFetchResult


class CurrentLeaders:
    """The leaders that a response names, for clients whose metadata is old."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._ids: set[int] = set()

    def of(self, name: TopicPartition | None, *errors: int) -> tuple[int, int]:
        """The leader and leader epoch of a partition if an error is about that, else -1 and -1."""
        partition = self._image.partition(name) if name is not None and not HINTED.isdisjoint(errors) else None
        if partition is None or partition.leader == NO_LEADER:
            return _NO_LEADER
        self._ids.add(partition.leader)
        return partition.leader, partition.leader_epoch

    def endpoints(self) -> list[tuple[int, str, int, str | None]]:
        """Id, host, port and rack of each."""
        brokers = (self._image.brokers.get(broker_id) for broker_id in sorted(self._ids))
        return [(one.broker_id, one.host, one.port, one.rack) for one in brokers if one is not None]


class ShareFetchResponse:
    """A response being written."""

    def __init__(self, correlation_id: int, image: MetadataImage, files: SegmentFiles) -> None:
        self._out = response_head(correlation_id, flexible=True)
        self._parts: list[Part] = []
        self._leaders = CurrentLeaders(image)
        self._files = files

    def refuse(self, error: RaykaError) -> list[Part]:
        """A response without partitions."""
        return self.write(0, (), error)

    def write(self, lock_duration_ms: int, answered: Iterable[Answered], error: RaykaError | None = None) -> list[Part]:
        """The frame in parts, to be sent in order."""
        self._out += _HEAD.pack(0, 0 if error is None else error.code)
        self._write_string(None if error is None else error.message)
        self._out += INT32.pack(lock_duration_ms)
        topics = [(topic, list(group)) for topic, group in groupby(answered, key=lambda one: one.partition.topic_id)]
        self._write_count(len(topics))
        for topic_id, group in topics:
            self._out += topic_id.bytes
            self._write_count(len(group))
            for one in group:
                self._write_partition(one)
            self._out.append(0)
        self._write_endpoints()
        self._out.append(0)
        return self._finish()

    def _write_partition(self, answered: Answered) -> None:
        result = answered.result
        file = None
        if isinstance(result.records, FileSlice):
            try:
                file = self._files.open(result.records)
            except SegmentGone as error:
                result = ShareFetchResult(ErrorCode.KAFKA_STORAGE_ERROR, str(error), *result[2:4])
        self._out += _PARTITION.pack(answered.partition.partition, result.error)
        self._write_string(result.error_message if result.error else None)
        self._out += INT16.pack(result.acknowledge_error)
        self._write_string(result.acknowledge_error_message if result.acknowledge_error else None)
        leader = self._leaders.of(answered.name, result.error, result.acknowledge_error)
        self._out += LEADER.pack(*leader) + b"\0"
        size = 0 if result.records is None else _size(result.records)
        self._write_count(size)
        if file is not None and isinstance(result.records, FileSlice):
            self._append(SegmentPart(file, result.records.position, size))
        elif isinstance(result.records, bytes):
            self._append(result.records)
        self._write_count(len(result.acquired))
        for first_offset, last_offset, delivery_count in result.acquired:
            self._out += _ACQUIRED.pack(first_offset, last_offset, delivery_count, 0)
        self._out.append(0)

    def _append(self, part: Part) -> None:
        self._parts += (self._out, part)
        self._out = bytearray()

    def _write_endpoints(self) -> None:
        endpoints = self._leaders.endpoints()
        self._write_count(len(endpoints))
        for broker_id, host, port, rack in endpoints:
            self._out += INT32.pack(broker_id)
            self._write_string(host)
            self._out += INT32.pack(port)
            self._write_string(rack)
            self._out.append(0)

    def _write_string(self, text: str | None) -> None:
        encoded = None if text is None else text.encode()
        self._out += b"\0" if encoded is None else encode_uvarint(len(encoded) + 1) + encoded

    def _write_count(self, count: int) -> None:
        self._out += encode_uvarint(count + 1)

    def _finish(self) -> list[Part]:
        """Write the length of the whole frame to its beginning."""
        if not self._parts:
            return [finish_frame(self._out)]
        self._parts.append(self._out)
        head = self._parts[0]
        assert isinstance(head, bytearray)
        INT32.pack_into(head, 0, sum(_size(part) for part in self._parts) - INT32.size)
        return self._parts


def _size(part: Part | FileSlice) -> int:
    return part.size if isinstance(part, SegmentPart | FileSlice) else len(part)
