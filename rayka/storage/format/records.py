"""The records inside record batches, for those who write and read them; the broker's own path never decodes.

A record is: length, attributes i8 (unused), timestamp delta, offset delta, key length (-1: null) and key,
value length and value, header count, and for each header key length, key, value length, value. All numbers
but the attributes are zig-zag varints. Source: the protocol guide, "Record".

The loops are written out, with the one-byte varints first, because every call costs as much as a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    iter_headers,
    seal,
)
from rayka.storage.format.compression import DEFAULT_MAX_SIZE, Codec, compress, decompress
from rayka.storage.format.varint import SMALL, VARINTS, continue_unsigned, encode_varint
from rayka.types import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TimestampType,
)

Headers = tuple[tuple[str, bytes | None], ...]
KeyOrValue = bytes | bytearray | memoryview | None
B = TypeVar("B", bytearray, memoryview)

_NULL = encode_varint(-1)
_NO_HEADERS = VARINTS[0]
_ATTRIBUTES = b"\x00"
NULL_ZIGZAG = 1
MIN_RECORD_SIZE = 7
"""The bytes of a record without key, value and headers, its length included."""
_TWO_DELTAS = range(2)  # of the timestamp and of the offset
_FAR = 1 << 61
_LONG_ZIGZAG = 62
_INT64_SIGN, _INT64_MASK = 1 << 63, (1 << 64) - 1
HEADER_KEY_ERRORS = "surrogateescape"
"""How header keys that are not UTF-8 become text and bytes again."""


class Record(NamedTuple):
    """One record. `timestamp` in milliseconds since the epoch; a null value is a tombstone on a compacted topic.

    Header keys are UTF-8; bytes that are not survive reading and writing as surrogates (PEP 383).
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: KeyOrValue,
    value: KeyOrValue,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> bytes:
    """A record without the length that stands before it."""
    if key is None:
        key, key_length = b"", _NULL
    else:
        size = len(key)
        key_length = VARINTS[size] if size < SMALL else encode_varint(size)
    if value is None:
        value, value_length = b"", _NULL
    else:
        size = len(value)
        value_length = VARINTS[size] if size < SMALL else encode_varint(size)
    return b"".join(
        (
            _ATTRIBUTES,
            VARINTS[timestamp_delta] if 0 <= timestamp_delta < SMALL else encode_varint(timestamp_delta),
            VARINTS[offset_delta] if 0 <= offset_delta < SMALL else encode_varint(offset_delta),
            key_length,
            key,
            value_length,
            value,
            encode_headers(headers) if headers else _NO_HEADERS,
        )
    )


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The number of headers and the headers, as they end a record."""
    parts = [encode_varint(len(headers))]
    for key, value in headers:
        name = key.encode("utf-8", HEADER_KEY_ERRORS)
        parts += (encode_varint(len(name)), name)
        parts += (_NULL,) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)


def seal_batch(
    batch: B,
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    flags: int = 0,
) -> B:
    """Turn 61 free bytes and encoded records into a batch: compress, write the header and the CRC.

    Returns `batch` itself when nothing is compressed. `flags` are the attribute bits beside the codec.
    """
    if codec is not Codec.NONE:
        records = compress(codec, memoryview(batch)[RECORD_BATCH_OVERHEAD:], level)
        compressed = bytearray(RECORD_BATCH_OVERHEAD)
        compressed += records
        batch = cast(Any, compressed)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        partition_leader_epoch,
        MAGIC,
        0,
        codec | flags,
        record_count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    seal(batch, 0, len(batch))
    return batch


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytearray:
    """One batch of `records`, which get the offsets from `base_offset` on, whatever their own say."""
    batch = bytearray(RECORD_BATCH_OVERHEAD)
    base_timestamp = max_timestamp = NO_TIMESTAMP
    count = 0
    for count, record in enumerate(records, 1):
        _, timestamp, key, value, headers, _ = record
        if count == 1:
            base_timestamp = max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        _append(batch, encode_record(count - 1, timestamp - base_timestamp, key, value, headers))
    return seal_batch(
        batch,
        record_count=count,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        base_offset=base_offset,
        codec=codec,
        level=level,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        flags=_flags(is_transactional, is_control, timestamp_type),
    )


def read_records(buffer: Buffer, *, include_control: bool = False) -> Iterator[Record]:
    """The records of all complete batches, decompressed; control batches are left out unless asked for.

    Raises CORRUPT_MESSAGE where a batch or a record is not as the format says. CRCs are not checked.
    """
    for position, header in iter_headers(buffer):
        if include_control or not header.attributes & CONTROL_FLAG:
            yield from read_batch(buffer, position, header)


def read_batch(buffer: Buffer, position: int, header: BatchHeader, max_size: int = DEFAULT_MAX_SIZE) -> list[Record]:
    """The records of one batch; errors as `read_records`."""
    return decode_records(record_bytes(buffer, position, header, max_size), header)


def decode_records(data: bytes, header: BatchHeader) -> list[Record]:
    """The records of one batch, which are not compressed any more; errors as `read_records`."""
    try:
        return _decode(data, header)
    except IndexError:
        raise corrupt_batch(header, "ends within a record") from None


def read_values(
    buffer: Buffer, position: int, header: BatchHeader, max_size: int = DEFAULT_MAX_SIZE
) -> list[bytes | None]:
    """The values alone of one batch, in a third of the time; errors as `read_records`."""
    data = record_bytes(buffer, position, header, max_size)
    try:
        return _decode_values(data, header)
    except IndexError:
        raise corrupt_batch(header, "ends within a record") from None


def _decode_values(data: bytes, header: BatchHeader) -> list[bytes | None]:
    values: list[bytes | None] = []
    append = values.append
    position = 0
    for _ in range(header.record_count):
        number = data[position]
        position += 1
        if number > 0x7F:
            number, position = continue_unsigned(data, position, number)
        end = position + ((number >> 1) ^ -(number & 1))
        position += 1  # the attributes
        for _ in _TWO_DELTAS:
            while data[position] > 0x7F:
                position += 1
            position += 1
        if data[position] == NULL_ZIGZAG:
            position += 1
        else:
            _, position = _read_bytes(data, position, header)
        value, position = _read_bytes(data, position, header)
        if not position < end <= len(data):
            raise corrupt_batch(header, f"has a record that ends at {end}, within a field or behind the batch")
        append(value)
        position = end
    if position != len(data):
        raise corrupt_batch(header, f"has {len(data) - position} bytes after its {header.record_count} records")
    return values


def record_bytes(buffer: Buffer, position: int, header: BatchHeader, max_size: int = DEFAULT_MAX_SIZE) -> bytes:
    """The records of one batch as bytes, decompressed."""
    end = position + header.batch_length + LOG_OVERHEAD
    if end > len(buffer):
        raise corrupt_batch(header, f"has {len(buffer) - position} of its {header.size_in_bytes} bytes")
    if header.record_count < 0:
        raise corrupt_batch(header, f"has {header.record_count} records")
    with memoryview(buffer)[position + RECORD_BATCH_OVERHEAD : end] as records:
        if not header.attributes & CODEC_MASK and len(records) <= max_size:
            return bytes(records)
        return decompress(header.codec, records, max_size)


def to_int64(number: int) -> int:
    """As a sum of 64 bits overflows, in Kafka too: the offset or timestamp of a malformed record."""
    return ((number + _INT64_SIGN) & _INT64_MASK) - _INT64_SIGN


def is_far(header: BatchHeader) -> bool:
    """Whether offsets or timestamps could overflow that are not far from those of the header."""
    return not (-_FAR < header.base_offset < _FAR and -_FAR < header.base_timestamp < _FAR)


def _decode(data: bytes, header: BatchHeader) -> list[Record]:
    may_overflow = is_far(header)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    timestamp_type = header.timestamp_type
    is_log_append_time = timestamp_type is TimestampType.LOG_APPEND_TIME
    timestamp = header.max_timestamp
    new = tuple.__new__
    records: list[Record] = []
    append = records.append
    position = least_delta = 0
    for _ in range(header.record_count):
        number = data[position]
        position += 1
        if number > 0x7F:
            number, position = continue_unsigned(data, position, number)
        end = position + ((number >> 1) ^ -(number & 1))
        position += 1  # the attributes
        number = data[position]
        position += 1
        if number > 0x7F:
            number, position = continue_unsigned(data, position, number)
            may_overflow = may_overflow or number >> _LONG_ZIGZAG > 0
        if not is_log_append_time:
            timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
        delta = data[position]
        position += 1
        if delta > 0x7F:
            delta, position = continue_unsigned(data, position, delta)
        delta = (delta >> 1) ^ -(delta & 1)
        if not least_delta <= delta <= header.last_offset_delta:
            raise unordered_batch(header, delta)
        least_delta = delta + 1
        key, position = _read_bytes(data, position, header)
        value, position = _read_bytes(data, position, header)
        number = data[position]
        position += 1
        headers: Headers = ()
        if number:
            headers, position = _read_headers(data, position, number, header)
        if position != end:
            raise corrupt_batch(header, f"has a record that ends {position - end} bytes off its length")
        append(
            new(
                Record,
                (base_offset + delta, timestamp, key, value, headers, timestamp_type),
            )
        )
    if position != len(data):
        raise corrupt_batch(header, f"has {len(data) - position} bytes after its {header.record_count} records")
    if may_overflow:
        return [each._replace(offset=to_int64(each.offset), timestamp=to_int64(each.timestamp)) for each in records]
    return records


def _read_headers(data: bytes, position: int, number: int, header: BatchHeader) -> tuple[Headers, int]:
    if number > 0x7F:
        number, position = continue_unsigned(data, position, number)
    if number & 1:
        raise corrupt_batch(header, f"has a record with {-(number + 1) // 2} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(number >> 1):
        key, position = _read_bytes(data, position, header)
        value, position = _read_bytes(data, position, header)
        if key is None:
            raise corrupt_batch(header, "has a record header without a key")
        headers.append((key.decode("utf-8", HEADER_KEY_ERRORS), value))
    return tuple(headers), position


def _read_bytes(data: bytes, position: int, header: BatchHeader) -> tuple[bytes | None, int]:
    number = data[position]
    start = position + 1
    if number > 0x7F:
        number, start = continue_unsigned(data, start, number)
    if number & 1:
        if number != NULL_ZIGZAG:
            raise corrupt_batch(header, f"has a field with a length of {-(number + 1) // 2}")
        return None, start
    end = start + (number >> 1)
    return data[start:end], end


def _append(batch: bytearray, record: bytes) -> None:
    size = len(record)
    batch += VARINTS[size] if size < SMALL else encode_varint(size)
    batch += record


def _flags(is_transactional: bool, is_control: bool, timestamp_type: TimestampType) -> int:
    return (
        (TRANSACTIONAL_FLAG if is_transactional else 0)
        | (CONTROL_FLAG if is_control else 0)
        | (LOG_APPEND_TIME_FLAG if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
    )


def corrupt_batch(header: BatchHeader, what: str) -> RaykaError:
    """The error for a batch whose contents are malformed: `what` follows its name."""
    return RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The record batch at offset {header.base_offset} {what}")


def unordered_batch(header: BatchHeader, offset_delta: int) -> RaykaError:
    """The error for a record whose offset is not above that of the record before, or not within its batch."""
    return corrupt_batch(header, f"has a record with the offset delta {offset_delta}, out of order or out of range")
