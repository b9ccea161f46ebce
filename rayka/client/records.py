"""What a consumer gives: records, or whole batches as they lie in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rayka.client.settings import ConsumerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.batch import BatchHeader, ensure_intact, iter_headers
from rayka.storage.isolation import iter_visible
from rayka.storage.records import read_batch
from rayka.types import AbortedTransaction, TimestampType, TopicPartition


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
        for place, header in iter_visible(self.data, self.aborted_transactions):
            if header.next_offset > self.position:
                yield place, header


class Chunk:
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
        new = tuple.__new__
        topic, partition = topic_partition
        self._decoded = [
            new(ConsumerRecord, (topic, partition, offset, timestamp, timestamp_type, key, value, headers))
            for offset, timestamp, key, value, headers, timestamp_type in read_batch(data, place, header)
        ]
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
