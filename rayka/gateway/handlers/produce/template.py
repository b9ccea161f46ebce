"""The last Produce request of a connection, as a template for the next one.

A client that writes to one partition repeats its request byte for byte except for the correlation id and the
records, and the response repeats too. The template keeps the bytes of both. It is valid as long as the cluster's
metadata image is the same.
"""

from __future__ import annotations

from typing import Final

from rayka.gateway.handlers.produce.request import FIRST_FLEXIBLE
from rayka.gateway.handlers.produce.response import RESULT
from rayka.gateway.server.request import PendingRequest
from rayka.gateway.wire.reader import INT32, FrameReader
from rayka.metadata.image import MetadataImage
from rayka.types import AppendParams, AppendResult, TopicPartition

_CORRELATION_ID_POSITION: Final = 4
# What follows the records: the tagged fields of partition, topic and request.
_ENDS: Final = {False: b"", True: b"\0\0\0"}


class ProduceTemplate:
    """A Produce request for one partition, of version 5 or later, that succeeded.

    `head` is what comes between the request's header and the size of its records. `response` is the frame that
    answered it, with the `RESULT` at `result_position`. `process` is where connections for the partition belong.
    """

    __slots__ = ("_head", "_response", "_result_position", "_version", "image", "params", "process", "topic_partition")

    def __init__(
        self,
        head: bytes,
        image: MetadataImage,
        version: int,
        topic_partition: TopicPartition,
        process: str | None,
        params: AppendParams,
        response: bytearray,
        result_position: int,
    ) -> None:
        self._head = head
        self.image = image
        self._version = version
        self.topic_partition = topic_partition
        self.process = process
        self.params = params
        self._response = response
        self._result_position = result_position

    def match(self, pending: PendingRequest, image: MetadataImage) -> memoryview | None:
        """The records of a request that is otherwise the same, None if it is not. Raises MalformedFrame."""
        frame, position = pending.frame, pending.position
        records_position = position + len(self._head)
        if (
            image is not self.image
            or pending.version != self._version
            or frame[position:records_position] != self._head
        ):
            return None
        flexible = self._version >= FIRST_FLEXIBLE
        reader = FrameReader(frame, records_position)
        size = reader.blob_size(flexible)
        end = reader.position + size
        if size < 0 or frame[end:] != _ENDS[flexible]:
            return None
        return memoryview(frame)[reader.position : end]

    def response(self, correlation_id: int, result: AppendResult) -> bytearray:
        """The response to a request whose batch was appended."""
        response = self._response.copy()
        INT32.pack_into(response, _CORRELATION_ID_POSITION, correlation_id)
        RESULT.pack_into(response, self._result_position, self.topic_partition[1], *result[:4])
        return response
