"""The records of batches: made when somebody looks at them, by compiled code where that is loaded."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from rayka.client.compiled import Compiled
from rayka.client.consumer.records import ConsumerRecord
from rayka.client.consumer.sequence import MadeRecords, RecordSource
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import (
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    ensure_intact,
    iter_headers,
)
from rayka.storage.format.order import PositionedHeader
from rayka.storage.format.records import (
    Record,
    build_batch,
    corrupt_batch,
    decode_records,
    is_far,
    record_bytes,
    to_int64,
    unordered_batch,
)
from rayka.storage.format.varint import continue_unsigned
from rayka.types import TopicPartition

_NULL = 1
_TWO_BYTES = 0x3FFF
_NEAR = 1 << 62
"""A larger zig-zag varint may overflow."""
_LEAST, _MOST = -(2**63), 2**63 - 1
_compiled = Compiled(
    "rayka.client.consumer.located",
    "locate_batches",
    lambda locate: locate(*_one_batch(), 0, TopicPartition("", 0), True).records(0, 1),
)


class UndecodedRecords:
    """The records of intact batches, which are decoded when one of them is accessed.

    `records` raises CORRUPT_MESSAGE where they are not as the header of their batch says.
    """

    __slots__ = ("_batches", "_data", "_decoded", "_ends", "_located", "_may_locate", "_position", "_topic_partition")

    def __init__(
        self, data: memoryview, batches: list[PositionedHeader], position: int, topic_partition: TopicPartition
    ) -> None:
        self._data = data
        self._batches = batches
        self._position = position
        self._topic_partition = topic_partition
        self._ends = list(accumulate(self._count(header) for _, header in batches))
        self._may_locate = True
        self._located: RecordSource | None = None
        self._decoded: tuple[int, MadeRecords] = -1, MadeRecords()

    def __len__(self) -> int:
        return self._ends[-1]

    def offset(self, number: int) -> int:
        """See `RecordSource`."""
        batch = bisect_right(self._ends, number)
        return self._batches[batch][1].next_offset - (self._ends[batch] - number)

    def records(self, start: int, end: int) -> list[ConsumerRecord]:
        """See `RecordSource`. Fewer if one behind the first can't be read, or they are large."""
        data = self._data  # before the look at `_located`: another thread may set that, and drop this then
        if self._located is None and self._may_locate and _compiled.function is not None:
            self._locate(data)
        if self._located is not None:
            return self._located.records(start, end)
        found: list[ConsumerRecord] = []
        while start + len(found) < end:
            try:
                found += self._decode(data, start + len(found), end)
            except RaykaError:
                if not found:
                    raise
                break
        return found

    def _locate(self, data: memoryview) -> None:
        """Find all records by compiled code, unless one of the batches can't be read."""
        assert _compiled.function is not None
        try:
            located: RecordSource = _compiled.function(
                data, self._batches, self._position, self._topic_partition, False
            )
        except RaykaError:
            self._may_locate = False
            return
        self._may_locate = len(located) == len(self)
        if self._may_locate:
            self._located, self._data = located, memoryview(b"")

    def _decode(self, data: memoryview, start: int, end: int) -> list[ConsumerRecord]:
        """The records of one batch; the batch that was decoded last is kept."""
        batch = bisect_right(self._ends, start)
        _, header = self._batches[batch]
        number, decoded = self._decoded
        if number != batch:
            decoded = decode_batch(data, self._batches[batch], self._position, self._topic_partition, False)
            if len(decoded) != self._count(header):
                counts = f"{self._count(header)} records, and not {len(decoded)}"
                raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The batch at offset {header.base_offset} has {counts}")
            self._decoded = batch, decoded
        first = self._ends[batch] - self._count(header)
        return decoded[start - first : end - first]

    def _count(self, header: BatchHeader) -> int:
        return min(header.record_count, header.next_offset - self._position)


def decode_batch(
    data: memoryview, batch: PositionedHeader, position: int, topic_partition: TopicPartition, check_crcs: bool
) -> MadeRecords:
    """The records of one batch from offset `position` on, by plain Python. Raises CORRUPT_MESSAGE."""
    place, header = batch
    if check_crcs:
        ensure_intact(data, place, header)
    records = record_bytes(data, place, header)
    may_overflow = is_far(header)
    if header.base_offset < position or may_overflow:
        records, header = _records_from(records, header, position if header.base_offset < position else _LEAST)
    plain = None if may_overflow else _decode_plain(records, header, *topic_partition)
    decoded = _decode(records, header, *topic_partition) if plain is None else plain
    _compiled.count(len(decoded))
    return MadeRecords(decoded)


def _records_from(data: bytes, header: BatchHeader, first_offset: int) -> tuple[bytes, BatchHeader]:
    """The records of a batch from an offset on, as bytes, and the header that counts them.

    Of those before it nothing but their length and offset counts. One at the largest offset of 64 bits is left out, as
    no record can follow it. Raises CORRUPT_MESSAGE.
    """
    found: list[bytes] = []
    position = least_delta = 0
    try:
        for _ in range(header.record_count):
            start = position
            size, position = _read_unsigned(data, position)
            end = position + ((size >> 1) ^ -(size & 1))
            _, position = _read_unsigned(data, position + 1)  # behind the attributes
            delta, position = _read_unsigned(data, position)
            if not position <= end <= len(data):
                raise corrupt_batch(header, f"has a record that ends at {end}, within a field or behind the batch")
            delta = (delta >> 1) ^ -(delta & 1)
            if not least_delta <= delta <= header.last_offset_delta:
                raise unordered_batch(header, delta)
            least_delta = delta + 1
            if first_offset <= to_int64(header.base_offset + delta) < _MOST:
                found.append(data[start:end])
            position = end
    except IndexError:
        raise corrupt_batch(header, "ends within a record") from None
    return b"".join((*found, data[position:])), header._replace(record_count=len(found))


def _read_unsigned(data: bytes, position: int) -> tuple[int, int]:
    number = data[position]
    return (number, position + 1) if number <= 0x7F else continue_unsigned(data, position + 1, number)


def _one_batch() -> tuple[memoryview, list[PositionedHeader]]:
    """A batch to warm up with."""
    data = memoryview(build_batch([Record(0, 0, b"key", b"value", (("header", b"value"),))]))
    return data, list(iter_headers(data))


def _decode(records: bytes, header: BatchHeader, topic: str, partition: int) -> list[ConsumerRecord]:
    new = tuple.__new__
    return [
        new(ConsumerRecord, (topic, partition, offset, timestamp, timestamp_type, key, value, headers))
        for offset, timestamp, key, value, headers, timestamp_type in decode_records(records, header)
    ]


def _decode_plain(records: bytes, header: BatchHeader, topic: str, partition: int) -> list[ConsumerRecord] | None:
    """As `_decode`, in half the time, for plain records: short, without headers.

    None if there are others, or damaged ones. `rayka.storage.format.records` describes the format. Varints of one or
    two bytes are read here and not by a function, since a call costs as much as the rest of a record.
    """
    if header.attributes & LOG_APPEND_TIME_FLAG:
        return None
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    timestamp_type, new = header.timestamp_type, tuple.__new__
    decoded: list[ConsumerRecord] = []
    append = decoded.append
    position, least_offset, last_offset = 0, 0, header.last_offset_delta << 1
    try:
        for _ in range(header.record_count):
            size = records[position]
            position += 1
            if size > 0x7F:
                size = size & 0x7F | records[position] << 7
                position += 1
            end = position + (size >> 1)
            time = records[position + 1]
            position += 2
            if time > 0x7F:
                time = time & 0x7F | records[position] << 7
                position += 1
                if time > _TWO_BYTES:
                    time, position = continue_unsigned(records, position - 1, time)
                    if time > _NEAR:
                        return None
            offset = records[position]
            position += 1
            if offset > 0x7F:
                offset = offset & 0x7F | records[position] << 7
                position += 1
                if offset > _TWO_BYTES:
                    offset, position = continue_unsigned(records, position - 1, offset)
                    if offset > _NEAR:
                        return None
            key_size = records[position]
            position += 1
            if key_size > 0x7F:
                key_size = key_size & 0x7F | records[position] << 7
                position += 1
            value_at = position + (key_size >> 1)
            key = records[position:value_at] if key_size != _NULL else None
            value_size = records[value_at]
            position = value_at + 1
            if value_size > 0x7F:
                value_size = value_size & 0x7F | records[position] << 7
                position += 1
            headers_at = position + (value_size >> 1)
            value = None if value_size == _NULL else records[position:headers_at]
            is_odd = (size | offset) & 1 or (key_size & 1 and key is not None) or (value_size & 1 and value is not None)
            if records[headers_at] or headers_at + 1 != end or is_odd or size > _TWO_BYTES:
                return None
            if not least_offset <= offset <= last_offset:
                return None
            least_offset = offset + 1
            timestamp = base_timestamp + ((time >> 1) ^ -(time & 1))
            fields = topic, partition, base_offset + (offset >> 1), timestamp, timestamp_type, key, value, ()
            append(new(ConsumerRecord, fields))
            position = end
    except IndexError:
        return None
    return decoded if position == len(records) else None
