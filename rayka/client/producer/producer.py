"""The producer: records in, futures out.

`send` puts a record into the batch of its partition and returns; the sender's event loop does the rest. `blocking.py`
has the form for threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from rayka.actors.channel.memory_file import take_memory
from rayka.client.forms import AsyncClosing, at_home
from rayka.client.group.coordinator import GroupMetadata
from rayka.client.loop import tell_of_end
from rayka.client.producer.accumulator import Accumulator
from rayka.client.producer.arguments import SINGLE_VALUES, HeadersLike, bytes_of, headers_of, require_fits, timestamp_of
from rayka.client.producer.batch import MAX_RECORD_OVERHEAD, BatchFuture, ProducerBatch, RecordFuture
from rayka.client.producer.filling import Headers
from rayka.client.producer.partitioner import Partitioner
from rayka.client.producer.route import Routes, TopicRoute, wait_for_topic
from rayka.client.producer.sender import Sender
from rayka.client.producer.transactions import Offsets, OffsetsReader, Transactions, in_one_transaction
from rayka.client.settings import OpenTransaction, ProducerConfig, ProducerOptions, configure
from rayka.client.unpicklable import Unpicklable
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.format.builder import max_record_size
from rayka.types import TopicPartition

if TYPE_CHECKING:
    from rayka.client.producer.row_batches import EncodedBatch

logger = logging.getLogger(__name__)

ProducerRecord = Any

_BULK_BATCH_SIZE = 1 << 20
_NOTHING = (None, None, None)
_CLOSED = "The producer is closed"


class AsyncProducer(Unpicklable, AsyncClosing):
    """Sends records to topics; for asyncio, in any event loop.

    It lives in the loop of `broker`: `home`, or the running one. Settings: `ProducerConfig`. Raises INVALID_CONFIG.
    """

    def __init__(
        self, broker: Broker, home: asyncio.AbstractEventLoop | None = None, **config: Unpack[ProducerOptions]
    ) -> None:
        self.config = configure(ProducerConfig, config)
        self.home = home or asyncio.get_running_loop()
        self._broker = broker
        is_plain = self.config.transactional_id is None and self.config.joins is None
        self._transactions = None if is_plain else Transactions(broker, self.config)
        check = None if self._transactions is None else self._transactions.check_open
        self._accumulator = Accumulator(self.config, check)
        self._routes = Routes(broker, self._accumulator, self.config)
        self._sender = Sender(broker, self._accumulator, self.config, self.home, self._transactions)
        given = self.config.partitioner
        self._partitioner: Partitioner | None = given() if isinstance(given, type) else given
        self._key_serializer = self.config.key_serializer
        self._value_serializer = self.config.value_serializer
        is_plain = self._value_serializer is None and self._partitioner is None and self._transactions is None
        self.quick_routes: Mapping[str, TopicRoute] = self._routes.known if is_plain else {}
        self.lock, self.look_again = self._accumulator.lock, self._sender.look_again
        tell_of_end(self.home, self._sender)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: HeadersLike = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Send one record; return a future, which you can await for the record's offset.

        Waits for at most `max_block_ms` until the topic is created and the buffer has room. Raises RaykaError:
        UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, `BufferFull`, INVALID_REQUEST for a bad argument.
        """
        fields = value, key, headers, partition, timestamp_ms, self.transaction_number
        return self.try_send(topic, *fields) or await self.send_when_possible(topic, *fields)

    @at_home
    async def send_when_possible(self, topic: str, *fields: Any) -> RecordFuture:
        """What `try_send` could not send at once."""
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
        transaction: int | None = None,
    ) -> RecordFuture | None:
        """Send one record, in this transaction, if no wait is needed, else None. From any thread; errors as `send`."""
        route = self._routes.get(topic)
        if route is None:
            return None
        if value is not None and (self._value_serializer is not None or type(value) is not bytes):
            value = bytes_of("value", value, self._value_serializer)
        if key is not None and (self._key_serializer is not None or type(key) is not bytes):
            key = bytes_of("key", key, self._key_serializer)
        timestamp_ms = self._broker.now_ms() if timestamp_ms is None else timestamp_of(timestamp_ms)
        size = MAX_RECORD_OVERHEAD + (0 if value is None else len(value)) + (0 if key is None else len(key))
        pairs: Headers = ()
        if headers:
            pairs = headers_of(headers)
            size = max_record_size(key, value, pairs)
        limit = route.max_batch_size
        if size > limit - RECORD_BATCH_OVERHEAD:
            require_fits(route, key, value, pairs)
        queue = route.queues[route.choose(key, size, partition, self._partitioner)]
        try:
            appended = self._accumulator.append(queue, key, value, pairs, timestamp_ms, size, limit, transaction)
            if appended is None:
                return None
            future, is_news = appended
            if is_news:
                self._sender.wake(queue)
        except RaykaError:  # the record is refused
            raise
        except BaseException:  # Ctrl-C, or no memory: a batch may be ready of which the sender has not heard
            self._sender.take_over(queue)
            raise
        return future

    async def send_batch(
        self, topic: str, partition: int | None, records: Iterable[ProducerRecord]
    ) -> list[BatchFuture]:
        """Send many records to one partition; faster than one `send` for each.

        A record is a value, or a tuple `(value, key, headers, timestamp_ms)` whose last parts may be missing. The
        records go into as few batches as fit (1 MiB, or the topic's `max.message.bytes` if that is less). Each batch is
        appended as a whole or not at all, and has a future. Without `partition` they go where a record without a key
        would go. Raises as `send`; batches that were sent before an error stay sent.
        """
        await self.ready(topic)
        return [await self.put(batch) for batch in self.batches(topic, partition, records)]

    @at_home
    async def flush(self, *, timeout_ms: float | None = None) -> None:
        """Wait for the outcome of everything sent so far, for at most `timeout_ms` (then REQUEST_TIMED_OUT)."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._sender.flush()
        except TimeoutError:
            unsent = f"{self._accumulator.used_bytes} bytes are not sent after {timeout_ms} ms"
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, unsent) from None

    def flush_here(self, timeout_ms: float | None) -> bool:
        """Wait in this thread for what it has sent itself; whether everything sent so far has an outcome."""
        return self._sender.flush_here(None if timeout_ms is None else timeout_ms / 1000)

    @at_home
    async def close(self, *, timeout_ms: float | None = None) -> None:
        """Flush, abort an open transaction, and close, within `timeout_ms`. Other records fail. Safe to repeat."""
        self._accumulator.refuse(_CLOSED)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._sender.flush()
                if self._transactions is not None:
                    await self._transactions.leave(self._sender.flush)
        except (RaykaError, TimeoutError) as error:
            logger.warning("a producer was closed with %d bytes unsent: %r", self._accumulator.used_bytes, error)
        finally:
            self._sender.abandon(RaykaError(ErrorCode.INVALID_REQUEST, _CLOSED))

    def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic; empty if it does not exist."""
        route = self._routes.get(topic)
        return set() if route is None else set(route.partitions)

    def is_ready(self, topic: str) -> bool:
        """Whether the topic is known. From any thread."""
        return self._routes.get(topic) is not None

    @at_home
    async def ready(self, topic: str) -> None:
        """Wait until the topic is known, and create it if the broker's settings say so."""
        if not self.is_ready(topic):
            await wait_for_topic(self._broker, topic, self.config.max_block_ms)

    def batches(self, topic: str, partition: int | None, records: Iterable[ProducerRecord]) -> Iterator[ProducerBatch]:
        """The batches that hold the records, built and not sent. From any thread."""
        yield from in_one_transaction(self._transactions, self._built(topic, partition, records))

    def _built(self, topic: str, partition: int | None, records: Iterable[ProducerRecord]) -> Iterator[ProducerBatch]:
        if isinstance(records, SINGLE_VALUES):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"records must be a list, not {type(records).__name__}")
        route = self._existing_route(topic)
        limit = min(route.max_batch_size, _BULK_BATCH_SIZE)
        chosen = route.choose(None, limit, partition, None)
        batch = ProducerBatch(TopicPartition(topic, chosen), self.config, limit)
        is_full = self._value_serializer is None and batch.fill(records, self._broker.now_ms(), limit)
        for record in () if is_full else records:
            key, value, timestamp, headers = self._fields(record)
            size = max_record_size(key, value, headers)
            if size > route.max_batch_size - RECORD_BATCH_OVERHEAD:
                require_fits(route, key, value, headers)
            if batch.add(key, value, timestamp, headers, size) is None:
                yield batch
                batch = ProducerBatch(batch.topic_partition, self.config, limit)
                batch.add(key, value, timestamp, headers, size)
        if batch.count:
            yield batch

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        partition: int | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
    ) -> list[BatchFuture]:
        """Send a record for each value; several times as fast as one `send` for each.

        `keys` and `headers` are as long as `values`. `timestamps_ms` is as long, or one number for all. Records without
        a key go to one partition until they fill a batch. The records of a partition keep their order. Each batch has a
        future. Raises as `send`; batches that were sent before an error stay sent.
        """
        await self.ready(topic)
        batches = self.list_batches(topic, values, keys, headers, partition, timestamps_ms)
        return [await self.put(batch) for batch in batches]

    def list_batches(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        partition: int | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
    ) -> Iterator[ProducerBatch]:
        """The batches that hold the records of `send_many`, built and not sent. From any thread."""
        from rayka.client.producer.lists import ListRows
        from rayka.client.producer.row_batches import RowEncoder

        route = self._existing_route(topic)
        if partition is not None:
            route.choose(None, 0, partition, None)
        encoder = RowEncoder(route, self.config, self._partitioner, take_memory)
        rows = ListRows(values, keys, headers, timestamps_ms)
        parts = rows.read(self.config, self._broker.now_ms(), encoder.chunk_bytes(keys is None))
        encoded = (batch for part in parts for batch in encoder.encode(part, partition))
        yield from in_one_transaction(self._transactions, self._of_encoded(topic, encoded))

    async def send_table(self, topic: str, table: Any) -> list[BatchFuture]:
        """Send each row of a table as a record, without a Python object for each.

        `table` is a pyarrow.Table or RecordBatch, a DataFrame, or a dict of columns (NumPy arrays, lists). The columns
        are value and key (binary or text), headers (lists of structs of key and value), timestamp (a timestamp, or ms
        since the epoch) and partition. The other columns of `poll_table` are ignored. The rows of a partition keep
        their order. Each batch has a future. Raises as `send`, INVALID_REQUEST for any other column, and INVALID_RECORD
        for a column of a wrong type; batches that were sent before an error stay sent. Needs pyarrow
        (`rayka[columns]`).
        """
        await self.ready(topic)
        return [await self.put(batch) for batch in self.table_batches(topic, table)]

    def table_batches(self, topic: str, table: Any) -> Iterator[ProducerBatch]:
        """The batches that hold the rows, built and not sent. From any thread."""
        from rayka.client.producer.row_batches import RowEncoder
        from rayka.client.producer.tables import arrow_table, require_known_columns, rows_of_table

        route = self._existing_route(topic)
        encoder = RowEncoder(route, self.config, self._partitioner, take_memory)
        given = require_known_columns(arrow_table(table))
        parts = rows_of_table(given, route, self.config, self._broker.now_ms())
        encoded = (batch for rows, partitions in parts for batch in encoder.encode(rows, partitions))
        yield from in_one_transaction(self._transactions, self._of_encoded(topic, encoded))

    def _of_encoded(self, topic: str, encoded: Iterator[EncodedBatch]) -> Iterator[ProducerBatch]:
        for partition, buffer, count in encoded:
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
        queue = self._accumulator.queue(batch.topic_partition)
        if not self._accumulator.put(queue, batch):
            return None
        self._sender.wake(queue)
        return BatchFuture(batch)

    @at_home
    async def init_transactions(self) -> None:
        """Fence earlier producers with this `transactional_id`, and abort a transaction that they left open.

        The first transaction does this too. Call it before you read the committed offsets from which to start, so that
        an earlier producer can no longer change them. Raises INVALID_TXN_STATE if there is no id.

        Raises PRODUCER_FENCED if a later producer with the id has begun, and INVALID_PRODUCER_ID_MAPPING if the broker
        has forgotten the id meanwhile (`transactional.id.expiration.ms`). Then only a new producer can go on.
        """
        await self._its_transactions.init()

    @at_home
    async def begin_transaction(self) -> None:
        """Begin a transaction. A producer has at most one open transaction.

        Raises INVALID_TXN_STATE if one is open or there is no id, and otherwise as `init_transactions`.
        """
        await self._its_transactions.begin()

    @at_home
    async def share_transaction(self) -> OpenTransaction:
        """The open transaction, so that producers in other processes can send in it too (`joins=`).

        Each partition is written by only one of them. End the transaction here, after all their records are
        acknowledged. If none of them sent a record, abort it. Raises INVALID_TXN_STATE if none is open.
        """
        return self._its_transactions.share()

    @at_home
    async def commit_transaction(self) -> None:
        """Send all remaining records, and commit the records and offsets of the transaction.

        Raises TRANSACTION_ABORTABLE if a record was not appended: then abort the transaction. Raises REQUEST_TIMED_OUT
        if it is not known whether the transaction was committed, PRODUCER_FENCED also if it was open for longer than
        `transaction_timeout_ms`, and otherwise as `init_transactions`.
        """
        await self._its_transactions.end(True, self._sender.flush)

    @at_home
    async def abort_transaction(self) -> None:
        """Discard the records and offsets of the transaction. Raises as `commit_transaction`.

        Records that are not sent yet are dropped: their futures raise TRANSACTION_ABORTABLE.
        """
        await self._its_transactions.end(False, self._sender.flush)

    @at_home
    async def send_offsets(self, offsets: Offsets | OffsetsReader, group: str | GroupMetadata | None = None) -> None:
        """Commit a group's offsets, those of the next records to read, with the transaction.

        `offsets` is a consumer of the group, whose positions are committed (KIP-447), or a mapping. With a mapping,
        `group` is the result of the consumer's `group_metadata` or, if the program assigns the partitions itself, the
        group's id. Raises ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID if the group has removed this
        member: then abort the transaction; other members read the records again. After an interrupt abort it too.
        """
        if not isinstance(offsets, Mapping):
            offsets, group = offsets.read_offsets()
        if group is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "send_offsets needs the group of the offsets")
        member = GroupMetadata(group) if isinstance(group, str) else group
        await self._its_transactions.send_offsets(offsets, member)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction for `async with`: committed at its end, aborted if the block raises an exception."""
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException:
            if self.has_open_transaction:
                await self.abort_transaction()
            raise

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction was begun and neither committed nor aborted."""
        return self._transactions is not None and self._transactions.is_open

    @property
    def transaction_number(self) -> int | None:
        """That of the transaction that was begun last."""
        return None if self._transactions is None else self._transactions.number

    @property
    def _its_transactions(self) -> Transactions:
        if self._transactions is None:
            raise RaykaError(ErrorCode.INVALID_TXN_STATE, "A producer needs a transactional_id for transactions")
        return self._transactions

    def _fields(self, record: ProducerRecord) -> tuple[bytes | None, bytes | None, int, Headers]:
        fields = (*record, *_NOTHING)[:4] if isinstance(record, tuple) else (record, *_NOTHING)
        value, key, headers, timestamp_ms = fields
        return (
            None if key is None else bytes_of("key", key, self._key_serializer),
            None if value is None else bytes_of("value", value, self._value_serializer),
            self._broker.now_ms() if timestamp_ms is None else timestamp_of(timestamp_ms),
            headers_of(headers) if headers else (),
        )

    async def _room(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(max(deadline_s - time.monotonic(), 0)):
                await self._sender.room()
        except TimeoutError:
            if self._accumulator.is_full:
                raise self._accumulator.overflow from None
