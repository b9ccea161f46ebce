"""Produce 0-13: parsed and answered by hand; requests of a connection overlap.

Record bytes stay where they were received; the leader stamps offsets into them. Versions 0-2 carry
message sets of magic 0 and 1, which are not converted yet: every partition gets
UNSUPPORTED_FOR_MESSAGE_FORMAT. From version 13 on topics are named by id (KIP-516).
"""

from __future__ import annotations

import struct
import uuid
from asyncio import Future
from functools import partial
from typing import Final

from rayka.errors import ErrorCode
from rayka.gateway.handlers.produce.template import FIRST_FLEXIBLE, RESULT, RepeatedProduce
from rayka.gateway.server.context import Context
from rayka.gateway.server.request import PendingRequest, finish_frame, response_head
from rayka.gateway.wire.leader_hints import LeaderHints
from rayka.gateway.wire.reader import INT16, INT32, Reader, uvarint_bytes
from rayka.metadata.image import MetadataImage
from rayka.types import AppendRequest, AppendResult, TopicPartition

_FIRST_WITH_MAGIC_2: Final = 3
_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_LEADER: Final = 10
_FIRST_WITH_TOPIC_ID: Final = 13
_LEADER_TAG: Final = 0
_ACKS: Final = (-1, 0, 1)

# Of a record batch: length, leader epoch, magic, CRC, attributes.
_BATCH_HEAD: Final = struct.Struct(">8x i i b I h")
_BATCH_OVERHEAD: Final = 61
_LENGTH_OVERHEAD: Final = 12
_MAGIC: Final = 2
_ZSTD: Final = 4

# Partition, error, base offset; then log append time, log start offset.
_RESULTS: Final = [struct.Struct(">ihq"), struct.Struct(">ihqq"), RESULT]
_NO_RECORD_ERRORS: Final = {False: INT32.pack(0), True: b"\x01"}


class ProduceRequest:
    """What a Produce request asks. `topics` has, for each topic, the bytes that name it (kept for the
    response) and how many of `partitions` are its own; `faults` are the answers known without a leader.
    `size_position` is where the frame has the size of the last partition's records."""

    __slots__ = (
        "acks",
        "appends",
        "faults",
        "indexes",
        "partitions",
        "size_position",
        "timeout_ms",
        "topics",
        "transactional_id",
    )

    def __init__(self) -> None:
        self.acks = 0
        self.timeout_ms = 0
        self.transactional_id: str | None = None
        self.topics: list[tuple[bytes, int]] = []
        self.partitions: list[TopicPartition | int] = []
        self.faults: dict[int, AppendResult] = {}
        self.appends: list[AppendRequest] = []
        self.indexes: list[int] = []
        self.size_position = 0

    @property
    def is_for_one_partition(self) -> bool:
        """Whether it is one batch for a partition, to be answered."""
        return len(self.partitions) == len(self.appends) == 1 and self.acks != 0

    def fail_all(self, error: ErrorCode, message: str) -> None:
        """Give every partition the same error and send nothing on."""
        self.faults = {index: AppendResult(error, error_message=message) for index in range(len(self.partitions))}
        self.appends = []
        self.indexes = []


def handle(context: Context, exchange: PendingRequest) -> None:
    """Send the batches on to their leaders before returning; answer when the leaders have."""
    last = exchange.connection.last_produce
    if last is None or not _handle_again(context, exchange, last):
        _handle_first(context, exchange)


def _handle_again(context: Context, exchange: PendingRequest, last: RepeatedProduce) -> bool:
    """Handle a request that is like the last one but for its records; False if it is not."""
    records = last.records(exchange, context.broker.image)
    if records is None or record_fault(records, exchange.version) is not None:
        return False
    context.busy_poll.request_came(len(records))
    appends = [AppendRequest(last.topic_partition, records)]
    future = context.broker.partitions.append(appends, last.acks, last.timeout_ms)
    if future.done():
        _answer_again(context, exchange, last, future)
    else:
        future.add_done_callback(partial(_answer_again, context, exchange, last))
    return True


def _answer_again(
    context: Context, exchange: PendingRequest, last: RepeatedProduce, future: Future[list[AppendResult]]
) -> None:
    if not future.cancelled() and not (result := future.result()[0]).error:
        exchange.answer(last.response(exchange.correlation_id, result))
        context.busy_poll.answered()
    elif not exchange.connection.closed:
        _appended(context, exchange, parse(exchange, context.broker.image), future)


def _handle_first(context: Context, exchange: PendingRequest) -> None:
    request = parse(exchange, context.broker.image)
    if request.acks not in _ACKS:
        request.fail_all(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks} is not -1, 0 or 1")
    elif request.transactional_id is not None:
        request.fail_all(ErrorCode.UNSUPPORTED_VERSION, "this broker has no transactions")
    if not request.appends:
        _answer(context, exchange, request, [])
        return
    future = context.broker.partitions.append(request.appends, request.acks, request.timeout_ms)
    if future.done():
        _answer(context, exchange, request, future.result())
    else:
        future.add_done_callback(partial(_appended, context, exchange, request))


def _appended(
    context: Context, exchange: PendingRequest, request: ProduceRequest, future: Future[list[AppendResult]]
) -> None:
    if future.cancelled():
        exchange.refuse("the append was cancelled")
    else:
        _answer(context, exchange, request, future.result())


def parse(exchange: PendingRequest, image: MetadataImage) -> ProduceRequest:
    """Read the request. Raises MalformedFrame."""
    version, flexible = exchange.version, exchange.version >= FIRST_FLEXIBLE
    reader = Reader(exchange.frame, exchange.position)
    view = memoryview(exchange.frame)
    request = ProduceRequest()
    if version >= _FIRST_WITH_MAGIC_2:
        request.transactional_id = reader.string(flexible)
    request.acks = reader.int16()
    request.timeout_ms = reader.int32()
    for _ in range(reader.required_array_size(flexible)):
        begin = reader.position
        topic, unknown = _topic(reader, version, flexible, image)
        name = bytes(view[begin : reader.position])
        count = reader.required_array_size(flexible)
        request.topics.append((name, count))
        for _ in range(count):
            _parse_partition(request, reader, view, version, flexible, topic, unknown)
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return request


def _topic(
    reader: Reader, version: int, flexible: bool, image: MetadataImage
) -> tuple[str | None, AppendResult | None]:
    """The topic's name, or the answer to every partition of a topic whose id is not known."""
    if version < _FIRST_WITH_TOPIC_ID:
        return reader.required_string(flexible), None
    topic_id = reader.topic_id()
    name = image.topic_names_by_id.get(topic_id or uuid.UUID(int=0))
    return name, None if name is not None else AppendResult(ErrorCode.UNKNOWN_TOPIC_ID)


def _parse_partition(
    request: ProduceRequest,
    reader: Reader,
    view: memoryview,
    version: int,
    flexible: bool,
    topic: str | None,
    unknown: AppendResult | None,
) -> None:
    index = len(request.partitions)
    partition = reader.int32()
    request.size_position = reader.position
    size = reader.blob_size(flexible)
    begin = reader.take(max(size, 0))
    if flexible:
        reader.skip_tags()
    if topic is None:
        request.partitions.append(partition)
    else:
        request.partitions.append(TopicPartition(topic, partition))
    records = view[begin : begin + max(size, 0)]
    fault = unknown or record_fault(records, version)
    if fault is not None or topic is None:
        request.faults[index] = fault or AppendResult(ErrorCode.UNKNOWN_TOPIC_ID)
        return
    request.indexes.append(index)
    request.appends.append(AppendRequest(TopicPartition(topic, partition), records))


def record_fault(records: memoryview, version: int) -> AppendResult | None:
    """What this version of the protocol forbids these records, None if nothing. The leader checks the rest."""
    if version < _FIRST_WITH_MAGIC_2:
        return _fault(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            "message formats 0 and 1 are not supported; use Produce v3 or later",
        )
    if len(records) < _BATCH_OVERHEAD:
        return _fault(ErrorCode.INVALID_RECORD, f"{len(records)} bytes are less than one record batch")
    length, _, magic, _, attributes = _BATCH_HEAD.unpack_from(records)
    if magic != _MAGIC:
        return _fault(ErrorCode.INVALID_RECORD, f"Produce v{version} takes record batches of magic 2, not {magic}")
    if length + _LENGTH_OVERHEAD < len(records):
        return _fault(ErrorCode.INVALID_RECORD, f"Produce v{version} takes one record batch for each partition")
    if attributes & 7 == _ZSTD and version < _FIRST_WITH_ZSTD:
        return _fault(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v7 or later, not v{version}")
    return None


def _fault(error: ErrorCode, message: str) -> AppendResult:
    return AppendResult(error, error_message=message)


def _answer(context: Context, exchange: PendingRequest, request: ProduceRequest, appended: list[AppendResult]) -> None:
    results = request.faults
    for index, result in zip(request.indexes, appended, strict=True):
        results[index] = result
    if request.acks != 0:
        response = _response(context, exchange, request, results)
        if request.is_for_one_partition and not results[0].error and exchange.version >= _FIRST_WITH_LOG_START:
            _remember(context, exchange, request, response)
        exchange.answer(response)
        return
    failed = next((index for index, result in results.items() if result.error), None)
    if failed is None:
        exchange.answer(None)
    else:
        error = ErrorCode(results[failed].error).name
        exchange.refuse(f"acks=0 append to {request.partitions[failed]}: {error}")


def _remember(context: Context, exchange: PendingRequest, request: ProduceRequest, response: bytearray) -> None:
    """The next request of this connection may be for the same partition."""
    flexible = exchange.version >= FIRST_FLEXIBLE
    name = request.topics[0][0]
    exchange.connection.last_produce = RepeatedProduce(
        bytes(memoryview(exchange.frame)[exchange.position : request.size_position]),
        context.broker.image,
        exchange.version,
        request.appends[0].topic_partition,
        request.acks,
        request.timeout_ms,
        response,
        len(response_head(0, flexible)) + len(name) + 2 * len(_size(1, flexible)),
    )


def _response(
    context: Context, exchange: PendingRequest, request: ProduceRequest, results: dict[int, AppendResult]
) -> bytearray:
    version, flexible = exchange.version, exchange.version >= FIRST_FLEXIBLE
    hints = LeaderHints(context.broker.image)
    out = response_head(exchange.correlation_id, flexible)
    out += _size(len(request.topics), flexible)
    first = 0
    for name, count in request.topics:
        out += name
        out += _size(count, flexible)
        for index in range(first, first + count):
            _write_result(out, version, request.partitions[index], results[index], hints)
        first += count
        if flexible:
            out.append(0)
    if version >= 1:
        out += INT32.pack(0)
    if flexible:
        out += hints.node_endpoints()
    return finish_frame(out)


def _write_result(
    out: bytearray, version: int, partition: TopicPartition | int, result: AppendResult, hints: LeaderHints
) -> None:
    named = partition if isinstance(partition, TopicPartition) else None
    number = partition.partition if isinstance(partition, TopicPartition) else partition
    if version >= _FIRST_WITH_LOG_START:
        out += _RESULTS[2].pack(
            number, result.error, result.base_offset, result.log_append_time_ms, result.log_start_offset
        )
    elif version >= 2:
        out += _RESULTS[1].pack(number, result.error, result.base_offset, result.log_append_time_ms)
    else:
        out += _RESULTS[0].pack(number, result.error, result.base_offset)
    if version >= 8:
        flexible = version >= FIRST_FLEXIBLE
        out += _NO_RECORD_ERRORS[flexible]
        out += _message(result.error_message, flexible)
    if version >= _FIRST_WITH_LEADER:
        out += hints.tags(result.error, named, _LEADER_TAG)
    elif version >= FIRST_FLEXIBLE:
        out.append(0)


def _size(size: int, flexible: bool) -> bytes:
    return uvarint_bytes(size + 1) if flexible else INT32.pack(size)


def _message(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else INT16.pack(-1)
    encoded = text.encode()[: 2**15 - 1]
    return (uvarint_bytes(len(encoded) + 1) if flexible else INT16.pack(len(encoded))) + encoded
