"""The short way of a Produce request that begins like the one before it.

A client that writes to one partition repeats its requests byte for byte, but for the correlation id and the
records, and so do we our answers. A connection keeps the bytes of the last one, which stand for everything
that was read out of them, as long as the image of the cluster is the same.
"""

from __future__ import annotations

import struct
from typing import Final

from rayka.gateway.server.request import PendingRequest
from rayka.gateway.wire.reader import INT32, Reader
from rayka.metadata.image import MetadataImage
from rayka.types import AppendResult, TopicPartition

RESULT: Final = struct.Struct(">ihqqq")
"""Of a partition's answer, from version 5 on: index, error, base offset, log append time, log start offset."""
FIRST_FLEXIBLE: Final = 9
_CORRELATION_ID_POSITION: Final = 4
# After the records: the ends of partition, topic and request.
_ENDS: Final = {False: b"", True: b"\0\0\0"}


class RepeatedProduce:
    """A Produce request for one partition. `head` is what comes between its header and the size of the records.

    `response` is the frame that answered it, with the `RESULT` at `result_position`. Of version 5 or later.
    """

    __slots__ = (
        "_head",
        "_image",
        "_response",
        "_result_position",
        "_version",
        "acks",
        "timeout_ms",
        "topic_partition",
    )

    def __init__(
        self,
        head: bytes,
        image: MetadataImage,
        version: int,
        topic_partition: TopicPartition,
        acks: int,
        timeout_ms: int,
        response: bytearray,
        result_position: int,
    ) -> None:
        self._head = head
        self._image = image
        self._version = version
        self.topic_partition = topic_partition
        self.acks = acks
        self.timeout_ms = timeout_ms
        self._response = response
        self._result_position = result_position

    def records(self, exchange: PendingRequest, image: MetadataImage) -> memoryview | None:
        """The records of a request that is otherwise the same, None if it is not. Raises MalformedFrame."""
        frame, position = exchange.frame, exchange.position
        records_position = position + len(self._head)
        if (
            image is not self._image
            or exchange.version != self._version
            or frame[position:records_position] != self._head
        ):
            return None
        flexible = self._version >= FIRST_FLEXIBLE
        reader = Reader(frame, records_position)
        size = reader.blob_size(flexible)
        end = reader.position + size
        if size < 0 or frame[end:] != _ENDS[flexible]:
            return None
        return memoryview(frame)[reader.position : end]

    def response(self, correlation_id: int, result: AppendResult) -> bytearray:
        """The answer to a request whose batch was appended."""
        response = self._response.copy()
        INT32.pack_into(response, _CORRELATION_ID_POSITION, correlation_id)
        RESULT.pack_into(response, self._result_position, self.topic_partition[1], *result[:4])
        return response
