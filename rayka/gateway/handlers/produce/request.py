"""The bytes of Produce requests, versions 0 to 13.

Record bytes stay where they were received. What a batch must be for its version of the protocol is checked here by
the batch header; the leader checks the rest.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

from rayka.errors import ErrorCode
from rayka.gateway.server.request import PendingRequest
from rayka.gateway.wire.reader import FrameReader
from rayka.metadata.image import MetadataImage
from rayka.storage.format.batch import MAGIC, RECORD_BATCH_OVERHEAD, TRANSACTIONAL_FLAG
from rayka.storage.format.legacy.message import has_old_magic
from rayka.types import AppendParams, AppendRequest, AppendResult, TopicPartition, TransactionSupport

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_MAGIC_2: Final = 3
_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_ABORTABLE: Final = 11
_FIRST_THAT_ADDS: Final = 12
_FIRST_WITH_TOPIC_ID: Final = 13
_ADMIN_CLIENT_ID: Final = "__admin_client"
"""Kafka lets only this client id write to internal topics."""

# Of a record batch: length, leader epoch, magic, CRC, attributes.
_BATCH_HEAD: Final = struct.Struct(">8x i i b I h")
_LENGTH_OVERHEAD: Final = 12
_ZSTD: Final = 4


class ProduceRequest:
    """What a Produce request asks.

    `topics` has, for each topic, the bytes that name it (the response repeats them) and how many of `partitions` are
    its own. `faults` are the answers known without a leader; `appends` go to leaders, and `indexes` are their places
    in `partitions`. `size_position` is where the frame has the size of the last partition's records. `image` has named
    the topics.
    """

    __slots__ = ("appends", "faults", "image", "indexes", "params", "partitions", "size_position", "topics")

    def __init__(self, params: AppendParams, image: MetadataImage) -> None:
        self.params = params
        self.image = image
        self.topics: list[tuple[bytes, int]] = []
        self.partitions: list[TopicPartition | int] = []
        self.faults: dict[int, AppendResult] = {}
        self.appends: list[AppendRequest] = []
        self.indexes: list[int] = []
        self.size_position = 0

    @property
    def is_for_one_partition(self) -> bool:
        """Whether this is one batch for one partition whose producer waits for a response."""
        return len(self.partitions) == len(self.appends) == 1 and self.params.acks != 0

    def fail_all(self, error: ErrorCode, message: str | None = None) -> None:
        """Give every partition the same error and append nothing."""
        self.faults = {index: AppendResult(error, error_message=message) for index in range(len(self.partitions))}
        self.appends = []
        self.indexes = []


def parse(pending: PendingRequest, image: MetadataImage) -> ProduceRequest:
    """Read the request. Raises MalformedFrame."""
    version, flexible = pending.version, pending.version >= FIRST_FLEXIBLE
    reader = FrameReader(pending.frame, pending.position)
    view = memoryview(pending.frame)
    transactional_id = reader.string(flexible) if version >= FIRST_WITH_MAGIC_2 else None
    params = AppendParams(
        reader.int16(),
        reader.int32(),
        pending.client_id == _ADMIN_CLIENT_ID,
        transactional_id,
        transaction_support(version),
    )
    request = ProduceRequest(params, image)
    for _ in range(reader.required_array_size(flexible)):
        begin = reader.position
        topic = _topic(reader, version, flexible, image)
        name = bytes(view[begin : reader.position])
        count = reader.required_array_size(flexible)
        request.topics.append((name, count))
        for _ in range(count):
            _parse_partition(request, reader, view, version, flexible, topic)
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return request


class _Topic(NamedTuple):
    """A topic of the request, by name or by id; without a name, the id is not known."""

    name: str | None
    topic_id: bytes | None = None


def _topic(reader: FrameReader, version: int, flexible: bool, image: MetadataImage) -> _Topic:
    if version < _FIRST_WITH_TOPIC_ID:
        return _Topic(reader.required_string(flexible))
    topic_id = reader.topic_id() or uuid.UUID(int=0)
    return _Topic(image.topic_names_by_id.get(topic_id), topic_id.bytes)


def _parse_partition(
    request: ProduceRequest,
    reader: FrameReader,
    view: memoryview,
    version: int,
    flexible: bool,
    topic: _Topic,
) -> None:
    index = len(request.partitions)
    partition = reader.int32()
    request.size_position = reader.position
    size = reader.blob_size(flexible)
    begin = reader.take(max(size, 0))
    if flexible:
        reader.skip_tags()
    if topic.name is None:
        request.partitions.append(partition)
        request.faults[index] = AppendResult(ErrorCode.UNKNOWN_TOPIC_ID)
        return
    topic_partition = TopicPartition(topic.name, partition)
    request.partitions.append(topic_partition)
    records = view[begin : begin + max(size, 0)]
    fault = record_fault(records, version, request.params)
    if fault is not None:
        request.faults[index] = fault
        return
    request.indexes.append(index)
    request.appends.append(AppendRequest(topic_partition, records, topic_id=topic.topic_id))


def transaction_support(version: int) -> TransactionSupport:
    """What the leader may do for a producer that speaks this version (KIP-890)."""
    if version >= _FIRST_THAT_ADDS:
        return TransactionSupport.ADD_PARTITIONS
    return TransactionSupport.ABORTABLE_ERRORS if version >= _FIRST_WITH_ABORTABLE else TransactionSupport.VERIFY


def record_fault(records: memoryview, version: int, params: AppendParams) -> AppendResult | None:
    """The error if this version of the protocol does not allow these records, or no producer may send them."""
    if version < FIRST_WITH_MAGIC_2 and has_old_magic(records):
        return None
    if len(records) < RECORD_BATCH_OVERHEAD:
        return _fault(ErrorCode.INVALID_RECORD, f"{len(records)} bytes are less than one record batch")
    length, _, magic, _, attributes = _BATCH_HEAD.unpack_from(records)
    if magic != MAGIC:
        return _fault(ErrorCode.INVALID_RECORD, f"Produce v{version} takes record batches of magic 2, not {magic}")
    if length + _LENGTH_OVERHEAD < len(records):
        return _fault(ErrorCode.INVALID_RECORD, f"Produce v{version} takes one record batch for each partition")
    if attributes & 7 == _ZSTD and version < _FIRST_WITH_ZSTD:
        return _fault(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v7 or later, not v{version}")
    if attributes & TRANSACTIONAL_FLAG and params.transactional_id is None:
        return AppendResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return None


def _fault(error: ErrorCode, message: str) -> AppendResult:
    return AppendResult(error, error_message=message)
