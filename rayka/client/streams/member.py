"""A stream as a member of its group, named after its consumer and its number.

The group's `range` assignor gives the members of a topic, in order of their names, rows of partitions as even as can
be. That is the algorithm of Kafka's design paper: sort the partitions, sort the streams "consumer-number" of the
topic, give stream i the partitions from i*N on.

A stream takes part in rebalances whether or not its thread asks for records.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

from rayka.client.consumer.fetch_collector import FetchCollector
from rayka.client.consumer.pending import RecordPlace
from rayka.client.consumer.poll_guard import UNGUARDED, Poll
from rayka.client.consumer.positions import AssignedPartition
from rayka.client.consumer.records import ConsumerRecord
from rayka.client.consumer.sequence import ConsumerRecords
from rayka.client.forms import at_home
from rayka.client.group.consumer import AsyncGroupConsumer
from rayka.client.group.subscription import Subscription
from rayka.errors import RaykaError
from rayka.gateway.ports import Broker
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

_MIN_WAIT_S = 0.01


class StreamCollector(FetchCollector):
    """Also knows what was given out last. That record, or batch, counts as read when the next one is asked for, or when
    the program commits.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lock = threading.RLock()
        self.current: ConsumerRecord | RecordPlace | None = None

    def forget_unassigned(self) -> None:
        """As for every consumer."""
        with self.lock:
            super().forget_unassigned()
            if self.current is not None and self.current.topic_partition not in self._fetcher.partitions:
                self.current = None

    def _drop_pending(self, topic_partition: TopicPartition) -> None:
        with self.lock:
            super()._drop_pending(topic_partition)
            if self.current is not None and self.current.topic_partition == topic_partition:
                self.current = None

    def position(self, state: AssignedPartition) -> int | None:
        """As for every consumer, or where the record begins that was given out last."""
        with self.lock:
            current = self.current
            if current is not None and current.topic_partition == state.topic_partition:
                return current.offset
            return super().position(state)


class StreamMember(AsyncGroupConsumer):
    """The consumer behind one stream."""

    collector: StreamCollector
    collector_class = StreamCollector

    def __init__(
        self, broker: Broker, home: asyncio.AbstractEventLoop, *, group_id: str, member_id: str, **config: Any
    ) -> None:
        super().__init__(
            broker, home, group_id=group_id, member_id=member_id, is_independent=True, group_remote_assignor="range",
            **config,
        )  # fmt: skip
        self._reader: object = None
        self._saver: asyncio.Task[None] | None = None

    @at_home
    async def join(self, topics: Iterable[str]) -> None:
        """Read these topics, which may be none, instead of those before."""
        self._require_protocol()
        if self._saver is None:
            self._saver = asyncio.get_running_loop().create_task(self._save_regularly())
        self._member.subscribe(Subscription(tuple(topics)), {})
        self._member.start()

    def take_next(self, reader: object) -> ConsumerRecord | None:
        """The next record that is here, for `reader`: a thread or a task. The one before it is read."""
        collector = self.collector
        with collector.lock:
            self._reader = reader
            collector.current = record = self.pending.popleft() if self.pending else None
            return record

    def take_batch(self, reader: object, limit: int) -> ConsumerRecords:
        """The next records of one partition that are here, as `take_next`. They count as read at the next call."""
        with self.collector.lock:
            self._reader = reader
            self.collector.current = self.pending.next_place()
            return self.pending.take(limit)

    def finish(self, reader: object) -> None:
        """If this thread or task reads the stream, it has processed the last record."""
        with self.collector.lock:
            if self._reader == reader:
                self.collector.current = None

    @at_home
    async def commit_given_out(self) -> None:
        """Commit behind all records that were returned; the last one counts as read from now on."""
        with self.collector.lock:
            self.collector.current = None
            prepared = self._commits.prepare()
        await self._commits.commit(prepared)

    async def fill(self, poll: Poll = UNGUARDED) -> bool:
        """As for every consumer, and False when there will be no more records."""
        try:
            return await super().fill(poll)
        except RaykaError:
            if self._is_closed or self._is_leaving:
                return False
            raise

    @at_home
    async def stop(self) -> None:
        """As for every consumer."""
        try:
            if self._saver is not None:
                self._saver.cancel()
                await asyncio.gather(self._saver, return_exceptions=True)
        finally:  # also if this is cancelled
            await super().stop()

    def filling(self) -> bool:
        """More records for `take_next`."""
        with self.collector.lock:
            return super().filling()

    async def _save_regularly(self) -> None:
        while True:
            await asyncio.sleep(max(self._commits.next_save_s - time.monotonic(), _MIN_WAIT_S))
            try:
                self._commits.save_if_due()
            except Exception:  # say for lack of memory
                logger.exception("An automatic commit could not be started")
