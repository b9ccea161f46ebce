"""What a consumer returns: records, or whole batches as they are in the log."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple

from rayka.client.compiled import Compiled
from rayka.client.consumer.sequence import ConsumerRecords, MadeRecords, RecordSource
from rayka.client.settings import ConsumerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    ensure_intact,
    iter_headers,
)
from rayka.storage.format.isolation import iter_visible
from rayka.storage.format.order import PositionedHeader, in_order
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
from rayka.types import AbortedTransaction, TimestampType, TopicPartition

_NULL = 1
_TWO_BYTES = 0x3FFF
_NEAR = 1 << 62
"""A larger zig-zag varint may overflow."""
_LEAST, _MOST = -(2**63), 2**63 - 1
_LOCATED_BYTES = 1 << 20
_LARGE_BATCH = 16_384
"""For a table, batches that are as large on average are checked as soon as they were read: the client's thread does
that while the program's decodes earlier ones. For small ones the calls would take longer than the CRCs."""
_COMPRESSED_FACTOR = 4
_compiled = Compiled(
    "rayka.client.consumer.located",
    "locate_batches",
    lambda locate: locate(*_one_batch(), 0, TopicPartition("", 0), True).records(0, 1),
)


class ConsumerRecord(NamedTuple):
    """A record and its location. `timestamp` is in ms since the epoch; key and value are deserialized."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class RecordBatches(NamedTuple):
    """Whole record batches, as they lie in the log.

    Records before `position`, control batches and batches of aborted transactions may be among them;
    `visible` leaves the latter two out. `next_offset` is where reading continues.
    """

    topic_partition: TopicPartition
    data: memoryview
    position: int
    next_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    are_intact: bool = False
    """Their CRCs were checked and are right."""
    topic_id: uuid.UUID | None = None

    @property
    def size(self) -> int:
        """The bytes of all batches."""
        return len(self.data)

    def visible(self) -> Iterator[PositionedHeader]:
        """Place in `data` and header of each batch that has records for a reader. Raises CORRUPT_MESSAGE."""
        for place, header in iter_visible(self.data, iter_headers(self.data), self.aborted_transactions):
            if header.next_offset > self.position:
                yield place, header


class CompletedFetch:
    """The batches of one fetch answer, decoded as their records are asked for."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        fetch_offset: int,
        data: bytes | bytearray | memoryview,
        aborted_transactions: tuple[AbortedTransaction, ...] | None,
        config: ConsumerConfig,
        is_for_table: bool = False,
        end_offset: float = inf,
        must_check: bool = False,
    ) -> None:
        """`end_offset`: where the partition ends. `must_check`: end before the first batch with a wrong CRC.

        `is_for_table`: check CRCs now. Those of records that are made one by one are checked just before that, which
        brings the records into the processor's cache.
        """
        self._config = config
        size, next_offset = 0, fetch_offset
        aborting = {each.producer_id for each in aborted_transactions or ()} if config.check_crcs else None
        headers = _leading_headers(data, fetch_offset, end_offset, aborting, must_check)
        if headers:
            place, last = headers[-1]
            size, next_offset = place + last.size_in_bytes, last.next_offset
        if data and not size:
            raise RaykaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch at offset {fetch_offset} of {topic_partition} is larger than "
                f"max_partition_fetch_bytes={config.max_partition_fetch_bytes}",
            )
        self.size = size
        self.next_offset = next_offset
        view = memoryview(data)[:size]
        may_check = is_for_table and config.check_crcs and size >= len(headers) * _LARGE_BATCH
        are_intact = may_check and _are_intact(view, headers)
        self.batches = RecordBatches(topic_partition, view, fetch_offset, next_offset, aborted_transactions, are_intact)
        self.held_bytes = size
        """What it takes of memory."""
        self._left: deque[PositionedHeader] | None = None
        self._source: RecordSource = MadeRecords()
        self._taken = 0

    def take(self, limit: int) -> ConsumerRecords:
        """The next records, at most `limit`; none only if there are no more.

        Raises CORRUPT_MESSAGE for a batch and INVALID_RECORD for a record that can't be read, once all
        before it are taken. Batches with a right CRC may not be decoded before somebody looks at their records.
        """
        while self._taken >= len(self._source) and self._decode_next():
            self._taken = 0
        start, end = self._taken, min(self._taken + limit, len(self._source))
        taken = ConsumerRecords()
        if start < end and (self._config.key_deserializer or self._config.value_deserializer):
            records = self._deserialize(self._source.records(start, end))
            taken.append(records, 0, len(records))
        else:
            taken.append(self._source, start, end)
        self._taken += len(taken)
        return taken

    def _decode_next(self) -> bool:
        """Continue with one more batch, or with several that need not be decoded yet; False if there is none."""
        if self._left is None:
            self._left = deque(self.batches.visible())
        if not self._left:
            return False
        topic_partition, data, position, *_ = self.batches
        run = self._countable(self._left)
        if run:
            self._source = UndecodedRecords(data, run, position, topic_partition)
        else:
            check_crcs = self._config.check_crcs and not self.batches.are_intact
            self._source = decode_batch(data, self._left[0], position, topic_partition, check_crcs)
        for _ in run or (0,):
            self._left.popleft()
        return True

    def _countable(self, left: deque[PositionedHeader]) -> list[PositionedHeader]:
        """The next batches that are intact and whose records their headers count, as many as fit in the cache."""
        run: list[PositionedHeader] = []
        size = 0
        for place, header in left:
            size += header.size_in_bytes * (_COMPRESSED_FACTOR if header.attributes & CODEC_MASK else 1)
            is_counted = 0 < header.record_count == header.last_offset_delta + 1
            if not (self._config.check_crcs and is_counted) or (run and size > _LOCATED_BYTES):
                break
            positioned = place, header
            if not (self.batches.are_intact or _are_intact(self.batches.data, (positioned,))):
                break
            run.append(positioned)
        return run

    def _deserialize(self, records: list[ConsumerRecord]) -> MadeRecords:
        key_of, value_of = self._config.key_deserializer, self._config.value_deserializer
        done = MadeRecords()
        for record in records:
            try:
                key = record.key if key_of is None or record.key is None else key_of(record.key)
                value = record.value if value_of is None or record.value is None else value_of(record.value)
            except Exception as error:
                if not done:
                    raise _undeserializable(record, error) from error
                break
            done.append(record._replace(key=key, value=value))
        return done


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


def _leading_headers(
    data: Buffer, fetch_offset: int, end_offset: float, aborting: Collection[int] | None, must_check: bool
) -> list[PositionedHeader]:
    """Those of the batches before one whose frame is broken, or whose offsets are not in order or behind the end: the
    next fetch begins with it. Raises for the first.

    What a reader leaves out, control batches and those of the producers that are `aborting`, must be intact: else they
    may be records of others; with `must_check` all must be. None: nobody checks CRCs.
    """
    headers: list[PositionedHeader] = []
    try:
        for positioned in in_order(iter_headers(data), fetch_offset, end_offset):
            if aborting is not None and (must_check or _may_be_left_out(positioned[1], aborting)):
                ensure_intact(data, *positioned)
            headers.append(positioned)
    except RaykaError:
        if not headers:
            raise
    return headers


def _may_be_left_out(header: BatchHeader, aborting: Collection[int]) -> bool:
    attributes = header.attributes
    return bool(attributes & CONTROL_FLAG or (attributes & TRANSACTIONAL_FLAG and header.producer_id in aborting))


def _are_intact(data: memoryview, batches: Iterable[PositionedHeader]) -> bool:
    """Whether all batches are as `ensure_intact` wants them."""
    try:
        for place, header in batches:
            ensure_intact(data, place, header)
    except RaykaError:
        return False
    return True


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


def _undeserializable(record: ConsumerRecord, error: Exception) -> RaykaError:
    return RaykaError(
        ErrorCode.INVALID_RECORD,
        f"a deserializer failed for offset {record.offset} of {record.topic_partition}: {error!r}",
    )


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
