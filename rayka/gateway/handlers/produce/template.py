"""The last Produce request of a connection, as a template for the next one.

A client that writes to one partition repeats its request byte for byte except for the correlation id and the
records, and the response repeats too. The template keeps the bytes of both. It is valid as long as the cluster's
metadata image is the same, and keeps no old one in memory.
"""

from __future__ import annotations

import weakref
from typing import Final

from rayka.gateway.handlers.produce.request import FIRST_FLEXIBLE
from rayka.gateway.handlers.produce.response import RESULT
from rayka.gateway.server.request import PendingRequest
from rayka.gateway.wire.reader import INT32, Frame, FrameReader
from rayka.metadata.image import MetadataImage
from rayka.types import AppendParams, AppendResult, TopicPartition

_CORRELATION_ID_POSITION: Final = 4
# What follows the records: the tagged fields of partition, topic and request.
_ENDS: Final = {False: b"", True: b"\0\0\0"}


class ProduceTemplate:
    """A Produce request for one partition, of version 5 or later, that succeeded.

    `head` is what comes between the request's header and the size of its records. `response` is the frame that
    answered it, with the `RESULT` at `result_position`. `topic_id` is as in `AppendRequest`, and `process` is where
    connections for the partition belong.
    """

    __slots__ = (
        "_end",
        "_head",
        "_image",
        "_records_size",
        "_response",
        "_result_position",
        "_size",
        "_version",
        "params",
        "process",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        head: bytes,
        image: MetadataImage,
        version: int,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        process: str | None,
        params: AppendParams,
        response: bytearray,
        result_position: int,
    ) -> None:
        self._head = head
        self._image = weakref.ref(image)
        self._version = version
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.process = process
        self.params = params
        self._response = response
        self._end = _ENDS[version >= FIRST_FLEXIBLE]
        self._size = b""  # the bytes of the size of the last records
        self._records_size = -1
        self._result_position = result_position

    def match(self, pending: PendingRequest, image: MetadataImage) -> memoryview | None:
        """The records of a request that is otherwise the same, None if it is not. Raises MalformedFrame."""
        frame, position = pending.frame, pending.position
        records_position = position + len(self._head)
        if (
            image is not self._image()
            or pending.version != self._version
            or frame[position:records_position] != self._head
        ):
            return None
        end_bytes = self._end
        end = len(frame) - len(end_bytes)
        begin = records_position + len(self._size)
        if frame[records_position:begin] == self._size and end - begin == self._records_size:
            return memoryview(frame)[begin:end] if frame[end:] == end_bytes else None
        return self._match_size(frame, records_position)

    def _match_size(self, frame: Frame, position: int) -> memoryview | None:
        """As `match`, of a request whose records have another size than those before."""
        reader = FrameReader(frame, position)
        size = reader.blob_size(self._version >= FIRST_FLEXIBLE)
        begin, end = reader.position, reader.position + size
        if size < 0 or frame[end:] != self._end:
            return None
        self._size, self._records_size = bytes(frame[position:begin]), size
        return memoryview(frame)[begin:end]

    def response(self, correlation_id: int, result: AppendResult) -> bytearray:
        """The response to a request whose batch was appended."""
        response = self._response.copy()
        INT32.pack_into(response, _CORRELATION_ID_POSITION, correlation_id)
        RESULT.pack_into(response, self._result_position, self.topic_partition[1], *result[:4])
        return response
