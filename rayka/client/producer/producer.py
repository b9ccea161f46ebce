"""The producer: records in, futures out.

`send` puts a record into the batch of its partition and returns; the sender's event loop does the rest. The
blocking form does that first part in the caller's own thread, because a hop to the loop would cost ten
times as much as the record; only where it would have to wait (for an unknown topic, for room in the
buffer) does it go through the asynchronous form.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from rayka.client.loop import AsyncClosing, Closing, Shell, at_home, blocking, blocking_close
from rayka.client.producer.accumulator import Accumulator, BatchFuture, Headers, ProducerBatch, RecordFuture
from rayka.client.producer.arrow_records import encode_rows
from rayka.client.producer.partitioner import Partitioner
from rayka.client.producer.route import Routes, TopicRoute, wait_for_topic
from rayka.client.producer.sender import Sender
from rayka.client.settings import ProducerConfig, ProducerOptions, Serializer, configure
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.format.builder import RecordBatchBuilder, max_record_size
from rayka.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

HeadersLike = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None
ProducerRecord = Any

_MAX_RECORD_OVERHEAD = max_record_size(None, None)
_BULK_BATCH_SIZE = 1 << 20
_NOTHING = (None, None, None)


class BufferFull(RaykaError, BufferError):
    """The records that are not acknowledged yet fill `buffer_memory`, and `max_block_ms` are over."""


class AsyncProducer(AsyncClosing):
    """Sends records to topics; to be awaited in any event loop.

    It lives in the loop that `broker` belongs to: `home`, or else the one that runs.
    Settings: see `ProducerConfig`. Raises INVALID_CONFIG for one that is unknown or has a bad value.
    """

    def __init__(
        self, broker: Broker, home: asyncio.AbstractEventLoop | None = None, **config: Unpack[ProducerOptions]
    ) -> None:
        self.config = configure(ProducerConfig, config)
        self.home = home or asyncio.get_running_loop()
        self._broker = broker
        self._accumulator = Accumulator(self.config)
        self._routes = Routes(broker, self._accumulator, self.config)
        self._sender = Sender(broker, self._accumulator, self.config, self.home)
        self._partitioner = _partitioner(self.config.partitioner)
        self._key_serializer = self.config.key_serializer
        self._value_serializer = self.config.value_serializer
        self._is_closed = False

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: HeadersLike = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Send one record; `await` the future that it returns for the record's offset.

        Waits, up to `max_block_ms`, for a topic that has to be created and for room in the buffer. Raises
        RaykaError: UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, `BufferFull`, INVALID_REQUEST for a bad argument.
        """
        future = self.try_send(topic, value, key, headers, partition, timestamp_ms)
        if future is None:
            future = await self._send_when_possible(topic, value, key, headers, partition, timestamp_ms)
        return future

    @at_home
    async def _send_when_possible(self, topic: str, *fields: Any) -> RecordFuture:
        await self.ready(topic)
        deadline_s = time.monotonic() + self.config.max_block_ms / 1000
        while (future := self.try_send(topic, *fields)) is None:
            await self._room(deadline_s)
        return future

    def try_send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: HeadersLike = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture | None:
        """Send one record if that is possible without waiting, else None. From any thread; errors as `send`."""
        route = self._routes.get(topic)
        if route is None:
            return None
        if value is not None and (self._value_serializer is not None or type(value) is not bytes):
            value = _bytes("value", value, self._value_serializer)
        if key is not None and (self._key_serializer is not None or type(key) is not bytes):
            key = _bytes("key", key, self._key_serializer)
        timestamp_ms = self._broker.now_ms() if timestamp_ms is None else _timestamp(timestamp_ms)
        size = _MAX_RECORD_OVERHEAD + (0 if value is None else len(value)) + (0 if key is None else len(key))
        pairs: Headers = ()
        if headers:
            pairs = _headers(headers)
            size = max_record_size(key, value, pairs)
        if size > route.max_batch_size - RECORD_BATCH_OVERHEAD:
            _require_fits(route, key, value, pairs)
        if self._is_closed:
            raise _closed()
        queue = route.queues[route.choose(key, size, partition, self._partitioner)]
        appended = self._accumulator.append(queue, key, value, pairs, timestamp_ms, size, route.max_batch_size)
        if appended is None:
            return None
        future, is_news = appended
        if is_news:
            self._sender.wake(queue)
        return future

    async def send_batch(
        self, topic: str, partition: int | None, records: Iterable[ProducerRecord]
    ) -> list[BatchFuture]:
        """Send many records to one partition; quicker than one `send` for each.

        A record is a value, or a tuple `(value, key, headers, timestamp_ms)` that may end early. They go in
        as few batches as fit (1 MiB, or less if the topic's `max.message.bytes` is), each appended whole or
        not at all; each has a future. Without a partition they go where a record without a key would go.
        Raises as `send`; batches that were sent before an error stay sent.
        """
        await self.ready(topic)
        return [await self.put(batch) for batch in self.batches(topic, partition, records)]

    @at_home
    async def flush(self, *, timeout_ms: float | None = None) -> None:
        """Wait until everything sent so far has an outcome, at most `timeout_ms` (REQUEST_TIMED_OUT)."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._sender.flush()
        except TimeoutError:
            unsent = f"{self._accumulator.used_bytes} bytes are not sent after {timeout_ms} ms"
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, unsent) from None

    @at_home
    async def close(self, *, timeout_ms: float | None = None) -> None:
        """Flush, for at most `timeout_ms`, and take no more records; what is left then fails. Safe to repeat."""
        self._is_closed = True
        try:
            await self.flush(timeout_ms=timeout_ms)
        except RaykaError:
            logger.warning("a producer was closed with %d bytes unsent", self._accumulator.used_bytes)
        finally:
            self._sender.abandon(_closed())

    def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic; empty if it does not exist."""
        route = self._routes.get(topic)
        return set() if route is None else set(route.partitions)

    @at_home
    async def ready(self, topic: str) -> None:
        """Wait until the topic is known, and create it if the broker's settings say so."""
        if self._routes.get(topic) is None:
            await wait_for_topic(self._broker, topic, self.config.max_block_ms)

    def batches(self, topic: str, partition: int | None, records: Iterable[ProducerRecord]) -> Iterator[ProducerBatch]:
        """The batches that hold the records, built and not sent. From any thread."""
        route = self._existing_route(topic)
        limit = min(route.max_batch_size, _BULK_BATCH_SIZE)
        chosen = route.choose(None, limit, partition, None)
        batch = ProducerBatch(TopicPartition(topic, chosen), self.config)
        for record in records:
            key, value, timestamp, headers = self._fields(record)
            size = max_record_size(key, value, headers)
            if size > route.max_batch_size - RECORD_BATCH_OVERHEAD:
                _require_fits(route, key, value, headers)
            if batch.record_count and batch.size + size > limit:
                yield batch
                batch = ProducerBatch(batch.topic_partition, self.config)
            batch.add(key, value, timestamp, headers)
        if batch.record_count:
            yield batch

    async def send_columns(self, topic: str, columns: pa.RecordBatch | pa.Table) -> list[BatchFuture]:
        """Send each row of Arrow columns as a record; much quicker than one `send` for each.

        The columns that count are value and key (binary or text), headers (lists of structs of key and value),
        timestamp (a timestamp, or ms since the epoch) and partition. The rows of a partition keep their order. Each
        batch has a future. Raises as `send`, and INVALID_RECORD for a column of another type; batches that were sent
        before an error stay sent. Needs pyarrow and numba (`rayka[columns]`).
        """
        await self.ready(topic)
        return [await self.put(batch) for batch in self.column_batches(topic, columns)]

    def column_batches(self, topic: str, columns: pa.RecordBatch | pa.Table) -> Iterator[ProducerBatch]:
        """The batches that hold the rows, built and not sent. From any thread."""
        route = self._existing_route(topic)
        for partition, buffer, count in encode_rows(
            columns, route, self.config, self._partitioner, self._broker.now_ms()
        ):
            yield ProducerBatch.of_buffer(TopicPartition(topic, partition), self.config, buffer, count)

    def _existing_route(self, topic: str) -> TopicRoute:
        route = self._routes.get(topic)
        if route is None:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
        return route

    @at_home
    async def put(self, batch: ProducerBatch) -> BatchFuture:
        """Send a batch, as soon as there is room for it."""
        deadline_s = time.monotonic() + self.config.max_block_ms / 1000
        while (future := self.try_put(batch)) is None:
            await self._room(deadline_s)
        await asyncio.sleep(0)
        return future

    def try_put(self, batch: ProducerBatch) -> BatchFuture | None:
        """Send a batch; None if there is no room. From any thread."""
        if self._is_closed:
            raise _closed()
        queue = self._accumulator.queue(batch.topic_partition)
        if not self._accumulator.put(queue, batch):
            return None
        self._sender.wake(queue)
        return BatchFuture(batch)

    def _fields(self, record: ProducerRecord) -> tuple[bytes | None, bytes | None, int, Headers]:
        fields = (*record, *_NOTHING)[:4] if isinstance(record, tuple) else (record, *_NOTHING)
        value, key, headers, timestamp_ms = fields
        return (
            None if key is None else _bytes("key", key, self._key_serializer),
            None if value is None else _bytes("value", value, self._value_serializer),
            self._broker.now_ms() if timestamp_ms is None else _timestamp(timestamp_ms),
            _headers(headers) if headers else (),
        )

    async def _room(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(max(deadline_s - time.monotonic(), 0)):
                await self._sender.room()
        except TimeoutError:
            raise BufferFull(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self._accumulator.used_bytes} bytes wait to be acknowledged, buffer_memory is "
                f"{self.config.buffer_memory}, and max_block_ms={self.config.max_block_ms} are over",
            ) from None


class Producer(Shell[AsyncProducer], Closing):
    """The blocking form of `AsyncProducer`; any number of threads may use it."""

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: HeadersLike = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Send one record; the future that it returns has the record's offset, or takes callbacks.

        Blocks, up to `max_block_ms`, for a topic that has to be created and for room in the buffer. Raises
        RaykaError: UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, `BufferFull`, INVALID_REQUEST for a bad argument.
        """
        future = self._core.try_send(topic, value, key, headers, partition, timestamp_ms)
        if future is None:
            future = self._loop.run(self._core.send(topic, value, key, headers, partition, timestamp_ms))
        return future

    def send_batch(self, topic: str, partition: int | None, records: Iterable[ProducerRecord]) -> list[BatchFuture]:
        """As `AsyncProducer.send_batch`."""
        self._loop.run(self._core.ready(topic))
        return [
            self._core.try_put(batch) or self._loop.run(self._core.put(batch))
            for batch in self._core.batches(topic, partition, records)
        ]

    def send_columns(self, topic: str, columns: pa.RecordBatch | pa.Table) -> list[BatchFuture]:
        """As `AsyncProducer.send_columns`."""
        self._loop.run(self._core.ready(topic))
        return [
            self._core.try_put(batch) or self._loop.run(self._core.put(batch))
            for batch in self._core.column_batches(topic, columns)
        ]

    flush = blocking(AsyncProducer.flush)
    close = blocking_close(AsyncProducer.close)

    def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic; empty if it does not exist."""
        return self._core.partitions_for(topic)


def _partitioner(given: Partitioner | type[Any] | None) -> Partitioner | None:
    return given() if isinstance(given, type) else given


def _bytes(argument: str, given: Any, serializer: Serializer | None) -> bytes | None:
    data = given if serializer is None else serializer(given)
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise RaykaError(
        ErrorCode.INVALID_REQUEST,
        f"{argument} must be bytes or None, not {type(data).__name__}; {argument}_serializer can make it so",
    )


def _timestamp(given: Any) -> int:
    if isinstance(given, int) and given >= 0:
        return given
    raise RaykaError(ErrorCode.INVALID_REQUEST, f"timestamp_ms must be ms since the epoch, not {given!r}")


def _headers(given: Any) -> Headers:
    pairs = tuple(given.items() if isinstance(given, Mapping) else given)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and _is_bytes(pair[1])):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"headers must be (str, bytes or None) pairs, not {pair!r}")
    return pairs


def _is_bytes(value: object) -> bool:
    return value is None or isinstance(value, bytes)


def _require_fits(route: TopicRoute, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    size = RecordBatchBuilder().append(key, value, 0, headers)
    if size > route.max_batch_size:
        raise RaykaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch with this record alone has {size} bytes, "
            f"and topic {route.topic} has max.message.bytes={route.max_batch_size}",
        )


def _closed() -> RaykaError:
    return RaykaError(ErrorCode.INVALID_REQUEST, "The producer is closed")
