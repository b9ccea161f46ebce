"""The producer for threads.

It puts a record into its batch in the caller's own thread, because a hop to the event loop would cost ten times as much
as the record. Only where it would have to wait (for an unknown topic, for room in the buffer) does it go through the
asynchronous form.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from rayka.client.forms import Closing, Shell, blocking, blocking_close
from rayka.client.loop import LoopThread
from rayka.client.producer.arguments import HeadersLike
from rayka.client.producer.batch import BatchFuture, ProducerBatch, RecordFuture
from rayka.client.producer.partitioner import key_partition
from rayka.client.producer.producer import AsyncProducer, ProducerRecord
from rayka.client.unpicklable import Unpicklable


class Producer(Unpicklable, Shell[AsyncProducer], Closing):
    """The blocking form of `AsyncProducer`; any number of threads may use it."""

    def __init__(self, core: AsyncProducer, loop: LoopThread) -> None:
        super().__init__(core, loop)
        self._quick_routes = core.quick_routes
        self._takes_keys = core.config.key_serializer is None

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: HeadersLike = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Send one record; return a future for its offset, which also takes callbacks.

        Blocks for at most `max_block_ms` until the topic is created and the buffer has room. Raises RaykaError:
        UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, `BufferFull`, INVALID_REQUEST for a bad argument.
        """
        if headers is None and partition is None and timestamp_ms is None:
            route = self._quick_routes.get(topic)
            if route is not None and (key is None or (type(key) is bytes and self._takes_keys)):
                queue = route.sticky_queue if key is None else route.queues[key_partition(key, route.partition_count)]
                batch = queue.filling
                if batch is not None:  # it may be closed or sent by now: then it takes nothing
                    index = batch.append(value, key)
                    if index is not None:
                        return RecordFuture(batch, index)
        return self._send(topic, value, key, headers, partition, timestamp_ms)

    def _send(self, topic: str, *its_fields: Any) -> RecordFuture:
        fields = *its_fields, self._core.transaction_number
        future = self._core.try_send(topic, *fields)
        return future or self._loop.run(self._core.send_when_possible(topic, *fields))

    def send_batch(self, topic: str, partition: int | None, records: Iterable[ProducerRecord]) -> list[BatchFuture]:
        """As `AsyncProducer.send_batch`."""
        self._wait_until_ready(topic)
        return self._put_all(self._core.batches(topic, partition, records))

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        partition: int | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
    ) -> list[BatchFuture]:
        """As `AsyncProducer.send_many`."""
        self._wait_until_ready(topic)
        return self._put_all(self._core.list_batches(topic, values, keys, headers, partition, timestamps_ms))

    def send_table(self, topic: str, table: Any) -> list[BatchFuture]:
        """As `AsyncProducer.send_table`."""
        self._wait_until_ready(topic)
        return self._put_all(self._core.table_batches(topic, table))

    def _wait_until_ready(self, topic: str) -> None:
        if not self._core.is_ready(topic):
            self._loop.run(self._core.ready(topic))

    def _put_all(self, batches: Iterator[ProducerBatch]) -> list[BatchFuture]:
        try:
            return [self._core.try_put(batch) or self._loop.run(self._core.put(batch)) for batch in batches]
        except BaseException:
            self._loop.call_soon(self._core.look_again)
            raise

    init_transactions = blocking(AsyncProducer.init_transactions)
    begin_transaction = blocking(AsyncProducer.begin_transaction)
    share_transaction = blocking(AsyncProducer.share_transaction)
    commit_transaction = blocking(AsyncProducer.commit_transaction)
    abort_transaction = blocking(AsyncProducer.abort_transaction)
    send_offsets = blocking(AsyncProducer.send_offsets)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction for a `with` block: committed at its end, aborted if the block raises an exception."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException:
            if self._core.has_open_transaction:
                self.abort_transaction()
            raise

    def flush(self, *, timeout_ms: float | None = None) -> None:
        """As `AsyncProducer.flush`."""
        if self._loop.is_current or not self._core.flush_here(timeout_ms):
            self._loop.run(self._core.flush(timeout_ms=timeout_ms))

    close = blocking_close(AsyncProducer.close)

    def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic; empty if it does not exist."""
        return self._core.partitions_for(topic)
