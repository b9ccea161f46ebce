"""The bytes of Produce responses, versions 0 to 13."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from rayka.gateway.handlers.produce.request import FIRST_FLEXIBLE, ProduceRequest
from rayka.gateway.handlers.responses import known_storage_error
from rayka.gateway.server.request import finish_frame, response_head
from rayka.gateway.wire.leader_hints import LeaderHints
from rayka.gateway.wire.reader import INT16, INT32, MAX_STRING_BYTES
from rayka.metadata.image import MetadataImage
from rayka.types import AppendResult, RecordError, TopicPartition
from rayka.varint import encode_uvarint

FIRST_WITH_LOG_START: Final = 5
RESULT: Final = struct.Struct(">ihqqq")
"""A partition's result from version 5 on: index, error, base offset, log append time, log start offset."""
_FIRST_WITH_APPEND_TIME: Final = 2
_FIRST_WITH_STORAGE_ERROR: Final = 4
_FIRST_WITH_RECORD_ERRORS: Final = 8
_FIRST_WITH_LEADER: Final = 10
_LEADER_TAG: Final = 0
_RESULT_V0: Final = struct.Struct(">ihq")
_RESULT_V2: Final = struct.Struct(">ihqq")
_NO_RECORD_ERRORS: Final = {False: INT32.pack(0), True: b"\x01"}


def result_position(topic_name: bytes, version: int) -> int:
    """Where the `RESULT` begins in a response that has one partition only."""
    flexible = version >= FIRST_FLEXIBLE
    return len(response_head(0, flexible)) + len(topic_name) + 2 * len(_size(1, flexible))


def encode(
    request: ProduceRequest,
    results: dict[int, AppendResult],
    *,
    version: int,
    correlation_id: int,
    image: MetadataImage,
) -> bytearray:
    """The response frame. `results` are in the places of `request.partitions`."""
    flexible = version >= FIRST_FLEXIBLE
    hints = LeaderHints(image)
    out = response_head(correlation_id, flexible)
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
    error = known_storage_error(result.error, version, _FIRST_WITH_STORAGE_ERROR)
    if version >= FIRST_WITH_LOG_START:
        out += RESULT.pack(number, error, *result[1:4])
    elif version >= _FIRST_WITH_APPEND_TIME:
        out += _RESULT_V2.pack(number, error, *result[1:3])
    else:
        out += _RESULT_V0.pack(number, error, result.base_offset)
    flexible = version >= FIRST_FLEXIBLE
    if version >= _FIRST_WITH_RECORD_ERRORS:
        out += _record_errors(result.record_errors, flexible)
        out += _string(result.error_message, flexible)
    if version >= _FIRST_WITH_LEADER:
        out += hints.tags(result.error, named, _LEADER_TAG)
    elif flexible:
        out.append(0)


def _record_errors(errors: Sequence[RecordError], flexible: bool) -> bytes:
    """The records that were rejected, so that a client can send the others again (KIP-467)."""
    if not errors:
        return _NO_RECORD_ERRORS[flexible]
    end = b"\0" if flexible else b""
    rows = (INT32.pack(index) + _string(message, flexible) + end for index, message in errors)
    return _size(len(errors), flexible) + b"".join(rows)


def _size(size: int, flexible: bool) -> bytes:
    return encode_uvarint(size + 1) if flexible else INT32.pack(size)


def _string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else INT16.pack(-1)
    encoded = text.encode()[:MAX_STRING_BYTES]
    return (encode_uvarint(len(encoded) + 1) if flexible else INT16.pack(len(encoded))) + encoded
