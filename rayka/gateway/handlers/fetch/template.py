"""The last Fetch request of a connection, as a template for the next one and for its response.

A client that reads one partition outside of fetch sessions, as librdkafka does, repeats its request byte for byte
except for the correlation id and the fetch offset. The response repeats too, but for offsets and records. A small one
is put together at once, with its records: each step between an append and the answer to a waiting reader delays that
reader. The template is valid as long as the cluster's metadata image is the same, and keeps no old one in memory.
"""

from __future__ import annotations

import struct
import weakref
from typing import TYPE_CHECKING, Final, TypedDict

from rayka.gateway.handlers.fetch.request import FIRST_FLEXIBLE
from rayka.gateway.server.request import PendingRequest
from rayka.gateway.server.segment_files import SegmentFiles
from rayka.gateway.wire.reader import INT32
from rayka.types import NO_LEADER, FetchPartition, FetchResult, FileSlice, IsolationLevel
from rayka.varint import encode_uvarint

if TYPE_CHECKING:
    from rayka.gateway.server.context import Context

FIRST_VERSION: Final = FIRST_FLEXIBLE
MOST_REQUEST_BYTES: Final = 1024
"""Larger requests are not kept: each connection has a template, and no limit counts them."""
_SMALL_BYTES: Final = 16 << 10
"""Larger slices are sent from their files."""
_CORRELATION_ID_POSITION: Final = 4
_OFFSET: Final = struct.Struct(">q")
# High watermark, last stable offset, log start offset, aborted transactions (0: null, 1: none), preferred replica.
_RESULT: Final = struct.Struct(">qqqbi")
_END: Final = b"\0\0\0"
"""The tagged fields of partition, topic and response."""
_AFTER_ERROR: Final = _RESULT.size + 1 + len(_END)
"""How much of a response without records follows its error code."""


class FetchOptions(TypedDict):
    """What a fetch asks for beside its partitions, as arguments of `Partitions.fetch`."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: IsolationLevel


class FetchTemplate:
    """A Fetch request for one partition that was answered with records, of version 12 or later, and its response.

    `offset_position` is where the request has its fetch offset. The leader was asked for `partition` with `options`,
    under the limit `fetch_max_bytes`; `process` is where connections for the partition belong. `empty_response` is the
    frame of a response without records.
    """

    __slots__ = (
        "_fetch_max_bytes",
        "_head",
        "_image",
        "_partition",
        "_response_head",
        "_tail",
        "_version",
        "options",
        "process",
    )

    def __init__(
        self,
        context: Context,
        pending: PendingRequest,
        offset_position: int,
        partition: FetchPartition,
        options: FetchOptions,
        empty_response: bytearray,
    ) -> None:
        self._version = pending.version
        self._head = pending.frame[pending.position : offset_position]
        self._tail = pending.frame[offset_position + _OFFSET.size :]
        self._partition = partition
        self.options = options
        self._response_head = empty_response[:-_AFTER_ERROR]
        self._image = weakref.ref(context.broker.image)
        self._fetch_max_bytes = context.fetch_max_bytes
        self.process = context.broker.partitions.process_of(partition.topic_partition)

    def match(self, context: Context, pending: PendingRequest) -> FetchPartition | None:
        """What a request asks for that is otherwise the same, None if it is not."""
        frame, position = pending.frame, pending.position
        offset_position = position + len(self._head)
        if (
            context.broker.image is not self._image()
            or context.fetch_max_bytes != self._fetch_max_bytes
            or pending.version != self._version
            or frame[position:offset_position] != self._head
            or frame[offset_position + _OFFSET.size :] != self._tail
        ):
            return None
        (offset,) = _OFFSET.unpack_from(frame, offset_position)
        name, _, max_bytes, leader_epoch, last_fetched_epoch, topic_id = self._partition
        return FetchPartition(name, offset, max_bytes, leader_epoch, last_fetched_epoch, topic_id)

    def response(self, correlation_id: int, result: FetchResult, files: SegmentFiles) -> bytearray | None:
        """The response with a few records, which the page cache has; None if the result is not of that kind.

        Raises OSError if the records cannot be read.
        """
        error, high_watermark, last_stable_offset, log_start_offset, aborted, records, _ = result
        if error or aborted or not isinstance(records, FileSlice) or records.size > _SMALL_BYTES:
            return None
        size = records.size
        out = self._response_head + _RESULT.pack(
            high_watermark, last_stable_offset, log_start_offset, 0 if aborted is None else 1, NO_LEADER
        )
        out += encode_uvarint(size + 1)
        position = len(out)
        out += bytes(size + len(_END))
        if not files.read_small(records, memoryview(out)[position : position + size]):
            return None
        INT32.pack_into(out, 0, len(out) - INT32.size)
        INT32.pack_into(out, _CORRELATION_ID_POSITION, correlation_id)
        return out
