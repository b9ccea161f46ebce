"""One answer of a fetch, whose records a consumer takes as it needs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from math import inf

from rayka.client.consumer.decoding import UndecodedRecords, decode_batch
from rayka.client.consumer.records import ConsumerRecord, RecordBatches
from rayka.client.consumer.sequence import ConsumerRecords, MadeRecords, RecordSource
from rayka.client.settings import ConsumerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    ensure_intact,
    iter_headers,
)
from rayka.storage.format.order import PositionedHeader, in_order
from rayka.types import AbortedTransaction, TopicPartition

_LOCATED_BYTES = 1 << 20
_LARGE_BATCH = 16_384
"""For a table, batches that are as large on average are checked as soon as they were read: the client's thread does
that while the program's decodes earlier ones. For small ones the calls would take longer than the CRCs."""
_COMPRESSED_FACTOR = 4


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


def _undeserializable(record: ConsumerRecord, error: Exception) -> RaykaError:
    return RaykaError(
        ErrorCode.INVALID_RECORD,
        f"a deserializer failed for offset {record.offset} of {record.topic_partition}: {error!r}",
    )
