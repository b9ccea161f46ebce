"""The last OffsetCommit of a connection, as a template for the next one.

A member commits the partitions that it reads, so its requests repeat byte for byte except for the correlation id and,
for each partition, the offset and the leader epoch. The template keeps the bytes of request and response. It is valid
as long as the cluster's metadata image is the same, and keeps no old one in memory.
"""

from __future__ import annotations

import struct
import weakref
from typing import Final

from rayka.coordinator.groups.requests import CommittedOffset, OffsetCommitRequest
from rayka.gateway.server.request import PendingRequest
from rayka.gateway.wire.reader import INT32, Frame, FrameReader
from rayka.metadata.image import MetadataImage

FIRST_VERSION: Final = 8
"""The first with compact lengths; clients that have earlier ones are old."""
MOST_BYTES: Final = 16_384
"""Larger requests, of some 800 partitions, are not kept: each connection has a template, and no limit counts them."""
FIRST_BY_ID: Final = 10
_CORRELATION_ID_POSITION: Final = 4
_OFFSET = struct.Struct(">qi")  # offset and leader epoch
_NO_OFFSET: Final = bytes(_OFFSET.size)


class CommitTemplate:
    """An OffsetCommit of version 8 or later, all of whose partitions exist, and the frame that answered it."""

    __slots__ = ("_body", "_image", "_offsets", "_request", "_response", "_version")

    def __init__(
        self, pending: PendingRequest, image: MetadataImage, request: OffsetCommitRequest, response: bytearray
    ) -> None:
        self._version = pending.version
        self._image = weakref.ref(image)
        self._request = request
        self._response = response
        body = pending.frame[pending.position :]
        self._offsets = list(zip(_offset_positions(body, pending.version), request.offsets, strict=True))
        self._body = self._without_offsets(body)

    def _without_offsets(self, body: Frame) -> bytearray:
        body = bytearray(body)
        for position, _ in self._offsets:
            body[position : position + _OFFSET.size] = _NO_OFFSET
        return body

    def match(self, pending: PendingRequest, image: MetadataImage) -> OffsetCommitRequest | None:
        """A request that is otherwise the same, None if it is not."""
        frame, begin = pending.frame, pending.position
        if (
            image is not self._image()
            or pending.version != self._version
            or len(frame) - begin != len(self._body)
            or self._without_offsets(frame[begin:]) != self._body
        ):
            return None
        known = self._request
        return OffsetCommitRequest(
            known.group_id,
            tuple([self._committed(frame, begin + position, old) for position, old in self._offsets]),
            known.generation_id_or_member_epoch,
            known.member_id,
            known.group_instance_id,
            known.retention_time_ms,
            known.knows_member_epochs,
        )

    @staticmethod
    def _committed(frame: Frame, position: int, old: CommittedOffset) -> CommittedOffset:
        offset, leader_epoch = _OFFSET.unpack_from(frame, position)
        return CommittedOffset(
            old.topic, old.partition, offset, leader_epoch, old.metadata, old.commit_timestamp, old.topic_id
        )

    def response(self, correlation_id: int) -> bytearray:
        """The response when every offset was committed."""
        response = self._response.copy()
        INT32.pack_into(response, _CORRELATION_ID_POSITION, correlation_id)
        return response


def _offset_positions(body: Frame, version: int) -> list[int]:
    """Where the offset of each partition is. The request was read before: it follows its schema."""
    reader, positions = FrameReader(body), []
    reader.string(flexible=True)  # group
    reader.int32()  # generation or member epoch
    reader.string(flexible=True)  # member
    reader.string(flexible=True)  # group instance
    for _ in range(reader.array_size(flexible=True)):
        if version >= FIRST_BY_ID:
            reader.topic_id()
        else:
            reader.string(flexible=True)
        for _ in range(reader.array_size(flexible=True)):
            reader.int32()  # partition
            positions.append(reader.take(_OFFSET.size))
            reader.string(flexible=True)  # metadata
            reader.skip_tags()
        reader.skip_tags()
    return positions
