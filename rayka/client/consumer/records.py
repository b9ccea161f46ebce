"""What a consumer returns: records, or whole batches as they are in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rayka.client.settings import ConsumerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import LOG_APPEND_TIME_FLAG, BatchHeader, ensure_intact, iter_headers
from rayka.storage.format.isolation import iter_visible
from rayka.storage.format.records import read_batch, record_bytes
from rayka.storage.format.varint import continue_unsigned
from rayka.types import AbortedTransaction, TimestampType, TopicPartition

_NULL = 1
_TWO_BYTES = 0x3FFF


class ConsumerRecord(NamedTuple):
    """A record with its place. `timestamp` in ms since the epoch; key and value as the deserializers made them."""

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
    `visible` leaves the latter two out. `next_offset` is where reading goes on.
    """

    topic_partition: TopicPartition
    data: memoryview
    position: int
    next_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...] | None

    def visible(self) -> Iterator[tuple[int, BatchHeader]]:
        """Place in `data` and header of each batch that has records for a reader. Raises CORRUPT_MESSAGE."""
        for place, header in iter_visible(self.data, iter_headers(self.data), self.aborted_transactions):
            if header.next_offset > self.position:
                yield place, header


class CompletedFetch:
    """The batches of one fetch answer, decoded one by one as their records are asked for."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        fetch_offset: int,
        data: bytes | bytearray,
        aborted_transactions: tuple[AbortedTransaction, ...] | None,
        config: ConsumerConfig,
    ) -> None:
        self._config = config
        size, next_offset = 0, fetch_offset
        for place, header in iter_headers(data):
            size, next_offset = place + header.size_in_bytes, header.next_offset
        if data and not size:
            raise RaykaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch at offset {fetch_offset} of {topic_partition} is larger than "
                f"max_partition_fetch_bytes={config.max_partition_fetch_bytes}",
            )
        self.size = size
        self.next_offset = next_offset
        self.batches = RecordBatches(
            topic_partition, memoryview(data)[:size], fetch_offset, next_offset, aborted_transactions
        )
        self._visible = self.batches.visible()
        self._decoded: list[ConsumerRecord] = []

    def take(self, limit: int) -> list[ConsumerRecord]:
        """The next records, at most `limit`; none only if there are no more.

        Raises CORRUPT_MESSAGE for a batch and INVALID_RECORD for a record that can't be read, once all
        before it are taken.
        """
        while not self._decoded and self._decode_next():
            pass
        taken = self._decoded[:limit]
        del self._decoded[:limit]
        if self._config.key_deserializer or self._config.value_deserializer:
            taken = self._deserialize(taken)
        return taken

    def _decode_next(self) -> bool:
        """Decode one more batch; False if there is none."""
        found = next(self._visible, None)
        if found is None:
            return False
        place, header = found
        topic_partition, data, position, *_ = self.batches
        if self._config.check_crcs:
            ensure_intact(data, place, header)
        plain = _decode_plain(record_bytes(data, place, header), header, *topic_partition)
        self._decoded = _decode(data, place, header, *topic_partition) if plain is None else plain
        if header.base_offset < position:
            self._decoded = [record for record in self._decoded if record.offset >= position]
        return True

    def _deserialize(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        key_of, value_of = self._config.key_deserializer, self._config.value_deserializer
        done: list[ConsumerRecord] = []
        for record in records:
            try:
                key = record.key if key_of is None or record.key is None else key_of(record.key)
                value = record.value if value_of is None or record.value is None else value_of(record.value)
            except Exception as error:
                if not done:
                    raise _undeserializable(record, error) from error
                self._decoded[:0] = records[len(done) :]
                break
            done.append(record._replace(key=key, value=value))
        return done


def _undeserializable(record: ConsumerRecord, error: Exception) -> RaykaError:
    return RaykaError(
        ErrorCode.INVALID_RECORD,
        f"a deserializer failed for offset {record.offset} of {record.topic_partition}: {error!r}",
    )


def _decode(data: memoryview, place: int, header: BatchHeader, topic: str, partition: int) -> list[ConsumerRecord]:
    new = tuple.__new__
    return [
        new(ConsumerRecord, (topic, partition, offset, timestamp, timestamp_type, key, value, headers))
        for offset, timestamp, key, value, headers, timestamp_type in read_batch(data, place, header)
    ]


def _decode_plain(records: bytes, header: BatchHeader, topic: str, partition: int) -> list[ConsumerRecord] | None:
    """As `_decode`, in half the time, for plain records: short, without headers.

    None if there are others, or damaged ones. `rayka.storage.format.records` describes the format.
    """
    if header.attributes & LOG_APPEND_TIME_FLAG:
        return None
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    timestamp_type, new = header.timestamp_type, tuple.__new__
    decoded: list[ConsumerRecord] = []
    append = decoded.append
    position = 0
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
            offset = records[position]
            position += 1
            if offset > 0x7F:
                offset = offset & 0x7F | records[position] << 7
                position += 1
                if offset > _TWO_BYTES:
                    offset, position = continue_unsigned(records, position - 1, offset)
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
            timestamp = base_timestamp + ((time >> 1) ^ -(time & 1))
            fields = topic, partition, base_offset + (offset >> 1), timestamp, timestamp_type, key, value, ()
            append(new(ConsumerRecord, fields))
            position = end
    except IndexError:
        return None
    return decoded if position == len(records) else None
