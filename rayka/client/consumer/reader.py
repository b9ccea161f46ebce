"""The stateless reader of Kafka's design papers (SimpleConsumer there): every request names its offset."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Unpack

from rayka.client.consumer.completed_fetch import CompletedFetch
from rayka.client.consumer.offsets import UNKNOWN_FOR_S, absence, look_up
from rayka.client.consumer.records import ConsumerRecord
from rayka.client.forms import AsyncClosing, Closing, Shell, at_home, blocking, blocking_close
from rayka.client.settings import ConsumerConfig, ConsumerOptions, configure
from rayka.client.unpicklable import Unpicklable
from rayka.errors import ErrorCode, RaykaError, may_pass
from rayka.gateway.ports import Broker
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FetchPartition, FetchResult, FileSlice, IsolationLevel, OffsetSpec, TopicPartition

_TIMEOUT_MS = 30_000
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
DEFAULT_MAX_BYTES = 1_048_576


class FetchRequest(NamedTuple):
    """Read a partition from an offset on: whole batches up to `max_bytes`, at least one.

    With a `topic_id`, that of an earlier `RecordSet`, only this topic is read, and not a later topic of the same name
    with other records.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int = DEFAULT_MAX_BYTES
    topic_id: uuid.UUID | None = None


class RecordSet(NamedTuple):
    """The result of a fetch.

    `next_offset` is the offset at which to continue in the topic with `topic_id`. `high_watermark` is the end of the
    partition at the time of the fetch.
    """

    topic_partition: TopicPartition
    records: list[ConsumerRecord]
    next_offset: int
    high_watermark: int
    log_start_offset: int
    topic_id: uuid.UUID


class AsyncReader(Unpicklable, AsyncClosing):
    """Reads from the offset that each request names; for asyncio, in any event loop.

    Of the settings of `ConsumerConfig` it uses isolation_level, check_crcs, the deserializers, fetch_min_bytes and
    retry_backoff_ms.
    """

    def __init__(
        self, broker: Broker, home: asyncio.AbstractEventLoop | None = None, **config: Unpack[ConsumerOptions]
    ) -> None:
        self.config = configure(ConsumerConfig, config)
        self.home = home or asyncio.get_running_loop()
        self._broker = broker

    @at_home
    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        topic_id: uuid.UUID | None = None,
        max_wait_ms: int = 0,
        timeout_ms: float = _TIMEOUT_MS,
    ) -> RecordSet:
        """Return the records from an offset on; at the end none, unless one arrives within `max_wait_ms`.

        Raises OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID (the topic with `topic_id` was deleted
        and created again), CORRUPT_MESSAGE. While there is no leader it retries, for at most `timeout_ms`.
        """
        request = FetchRequest(topic, partition, offset, max_bytes, topic_id)
        return (await self._fetch([request], max_wait_ms, timeout_ms))[0]

    @at_home
    async def multifetch(
        self, requests: Iterable[FetchRequest], *, max_wait_ms: int = 0, timeout_ms: float = _TIMEOUT_MS
    ) -> list[RecordSet]:
        """Several fetches at once, of any partitions; results are in their order. Raises the errors of `fetch`."""
        return await self._fetch([FetchRequest(*request) for request in requests], max_wait_ms, timeout_ms)

    @at_home
    async def get_offsets_before(
        self, topic: str, partition: int, timestamp_ms: int, max_num_offsets: int = 1, *, timeout_ms: int = _TIMEOUT_MS
    ) -> list[int]:
        """Return at most `max_num_offsets` offsets from which to read, in descending order.

        The first one is the offset of the first record at or after `timestamp_ms` (since the epoch;
        `OffsetSpec.LATEST`, -1: the end; `OffsetSpec.EARLIEST`, -2: the beginning), or the end if there is no such
        record. The next one is the beginning.
        """
        if isinstance(max_num_offsets, bool) or not isinstance(max_num_offsets, int) or max_num_offsets < 1:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"max_num_offsets must be 1 or more, not {max_num_offsets!r}")
        offset = await self._offset(topic, partition, timestamp_ms, timeout_ms)
        if offset < 0:
            offset = await self._offset(topic, partition, OffsetSpec.LATEST, timeout_ms)
        start = await self._offset(topic, partition, OffsetSpec.EARLIEST, timeout_ms)
        return sorted({offset, start}, reverse=True)[:max_num_offsets]

    @at_home
    async def close(self) -> None:
        """End it. Between fetches it holds nothing."""

    async def _offset(self, topic: str, partition: int, timestamp: int, timeout_ms: int) -> int:
        wanted = TopicPartition(topic, partition)
        found = await look_up(
            self._broker,
            {wanted: timestamp},
            IsolationLevel.READ_UNCOMMITTED,
            timeout_ms=timeout_ms,
            retry_backoff_ms=self.config.retry_backoff_ms,
        )
        return found[wanted].offset

    async def _fetch(self, requests: Sequence[FetchRequest], max_wait_ms: int, timeout_ms: float) -> list[RecordSet]:
        for request in requests:
            _require_valid(request)
        started_s = time.monotonic()
        while requests:
            asked = [self._with_topic_id(request) for request in requests]
            results = await self._ask(asked, max_wait_ms)
            try:
                pairs = zip(asked, results, strict=True)
                return [await self._record_set(request, result) for request, result in pairs]
            except RaykaError as error:
                patience_s = min(timeout_ms / 1000, UNKNOWN_FOR_S if error.code in _GONE else float("inf"))
                if not may_pass(error.code) or time.monotonic() - started_s >= patience_s:
                    raise
            await asyncio.sleep(self.config.retry_backoff_ms / 1000)
        return []

    def _with_topic_id(self, request: FetchRequest) -> FetchRequest:
        """The request for the topic that has this name now, if it does not say which."""
        topic = self._broker.image.topics.get(request.topic)
        if request.topic_id is not None or topic is None:
            return request
        return request._replace(topic_id=topic.topic_id)

    async def _ask(self, requests: Sequence[FetchRequest], max_wait_ms: int) -> list[FetchResult]:
        return await self._broker.partitions.fetch(
            [
                FetchPartition(
                    TopicPartition(r.topic, r.partition),
                    r.offset,
                    r.max_bytes,
                    topic_id=None if r.topic_id is None else r.topic_id.bytes,
                )
                for r in requests
            ],
            max_wait_ms=max_wait_ms,
            min_bytes=self.config.fetch_min_bytes,
            max_bytes=sum(request.max_bytes for request in requests),
            isolation=self.config.isolation,
        )

    async def _record_set(self, request: FetchRequest, result: FetchResult) -> RecordSet:
        topic_partition = TopicPartition(request.topic, request.partition)
        reason = f"{topic_partition} can't be read at {request.offset}"
        if result.error == ErrorCode.INCONSISTENT_TOPIC_ID:
            message = f"{reason}: topic {request.topic} does not have the id {request.topic_id}; it was created again"
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_ID, message)
        if result.error:
            raise RaykaError(ErrorCode(result.error), absence(self._broker.image, topic_partition) or reason)
        assert request.topic_id is not None  # what a leader serves is in the image
        data = await _bytes(result)
        completed_fetch = CompletedFetch(
            topic_partition, request.offset, data, result.aborted_transactions, self.config
        )
        records: list[ConsumerRecord] = []
        while more := completed_fetch.take(len(data)):
            records += more
        return RecordSet(
            topic_partition,
            records,
            completed_fetch.next_offset,
            result.high_watermark,
            result.log_start_offset,
            request.topic_id,
        )


class Reader(Unpicklable, Shell[AsyncReader], Closing):
    """The blocking form of `AsyncReader`; any number of threads may use it."""

    fetch = blocking(AsyncReader.fetch)
    multifetch = blocking(AsyncReader.multifetch)
    get_offsets_before = blocking(AsyncReader.get_offsets_before)
    close = blocking_close(AsyncReader.close)


async def _bytes(result: FetchResult) -> bytes | bytearray:
    if isinstance(result.records, FileSlice):
        return await asyncio.get_running_loop().run_in_executor(None, SegmentReader().read, result.records)
    return result.records or b""


def _require_valid(request: FetchRequest) -> None:
    for name, minimum in (("partition", 0), ("offset", 0), ("max_bytes", 1)):
        value = getattr(request, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"{name} must be an int, at least {minimum}, not {value!r}")
    if not isinstance(request.topic_id, uuid.UUID | None):
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"topic_id must be a uuid.UUID, not {request.topic_id!r}")
    if not isinstance(request.topic, str):
        raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic must be a str, not {request.topic!r}")
