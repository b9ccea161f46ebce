"""The streams of Kafka's design papers: a consumer asks for a number of iterators over topics, one for each thread.

with cluster.consumer_connector("billing") as connector:
    streams = connector.create_message_streams({"orders": 2})["orders"]
    # one thread for each:  for record in stream: ...

The asynchronous form has one for each task: `async for record in stream`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rayka.client.consumer.records import ConsumerRecord
from rayka.client.consumer.sequence import ConsumerRecords
from rayka.client.forms import AsyncClosing, Closing, Shell, at_home, blocking
from rayka.client.group.settings import require_text
from rayka.client.settings import invalid
from rayka.client.streams.member import StreamMember
from rayka.client.streams.topic_filter import TopicFilter
from rayka.client.unpicklable import Unpicklable
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.2
"""How often the topics are examined for what passes a filter: at an image that is here already."""
_LOOK_AGAIN_AFTER_ERROR_S = 5.0
BATCH_RECORDS = 500
_SHUTDOWN_TIMEOUT_MS = 30_000
_MAX_STREAMS = 1_000


class AsyncStream(Unpicklable, AsyncIterator[ConsumerRecord]):
    """The records of some partitions, for one task. No other stream has these partitions.

    Iteration ends when no record came for `consumer_timeout_ms`, and can then be repeated. It ends permanently when the
    connector is shut down.
    """

    def __init__(self, member: StreamMember) -> None:
        self.member = member

    async def __anext__(self) -> ConsumerRecord:
        while (record := self.member.take_next(asyncio.current_task())) is None:
            if not await self.member.fill():
                raise StopAsyncIteration
        return record

    async def next_batch(self, max_records: int = BATCH_RECORDS) -> ConsumerRecords:
        """Return at most `max_records` next records of one partition; an empty sequence where iteration would end.

        Records are made when they are accessed. They count as read when the next batch or record is requested.
        """
        _require_batch(max_records)
        while not (records := self.member.take_batch(asyncio.current_task(), max_records)):
            if not await self.member.fill():
                break
        return records


class Stream(Unpicklable, Shell[AsyncStream], Iterator[ConsumerRecord]):
    """The blocking form of `AsyncStream`, for one thread."""

    def __next__(self) -> ConsumerRecord:
        while (record := self._core.member.take_next(threading.current_thread())) is None:
            if not self._fill():
                raise StopIteration
        return record

    def next_batch(self, max_records: int = BATCH_RECORDS) -> ConsumerRecords:
        """As `AsyncStream.next_batch`."""
        _require_batch(max_records)
        while not (records := self._core.member.take_batch(threading.current_thread(), max_records)):
            if not self._fill():
                break
        return records

    def _fill(self) -> bool:
        try:
            return self._loop.run(self._core.member.fill())
        except RaykaError:
            if self._loop.is_closed:
                return False
            raise


class _Filtered(NamedTuple):
    topic_filter: TopicFilter
    members: list[StreamMember]


class AsyncConsumerConnector(Unpicklable, AsyncClosing):
    """Creates streams of a group; for asyncio, in any event loop.

    Settings: `GroupConsumerConfig`, without static membership and the assignor. The assignor orders the consumers of a
    group by `consumer_id`; the default has the host's name and a random part. Offsets of returned records are committed
    every `auto_commit_interval_ms`, unless `enable_auto_commit` is False.
    """

    def __init__(
        self,
        broker: Broker,
        home: asyncio.AbstractEventLoop | None = None,
        *,
        group_id: str,
        consumer_id: str | None = None,
        **config: Any,
    ) -> None:
        for name in ("group_instance_id", "group_remote_assignor", "max_poll_interval_ms"):
            for spelled in (name, name.replace("_", ".")):
                if spelled in config:
                    raise invalid(name, config[spelled], "it is not for streams")
        require_text("consumer_id", consumer_id)
        self.home = home or asyncio.get_running_loop()
        self._broker = broker
        self._group_id = group_id
        self._consumer_id = consumer_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self._config = config
        self._members: list[StreamMember] = []
        self._filtered: list[_Filtered] = []
        self._watch: asyncio.Task[None] | None = None
        self._seen_topics: object = None
        self._is_shut_down = False
        self._leaving: asyncio.Task[None] | None = None
        self._member("")  # raises for bad settings now, not with the first stream

    @at_home
    async def create_message_streams(self, topic_count: Mapping[str, int]) -> dict[str, list[AsyncStream]]:
        """Create the given number of streams for each topic: {"orders": 2} returns {"orders": [stream, stream]}.

        One call for all topics saves rebalances. A topic may be created later.
        """
        for topic, count in topic_count.items():
            if not isinstance(topic, str) or not topic:
                raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"a topic is a name, not {topic!r}")
            _require_count(count)
        members = {topic: self._new_members(count) for topic, count in topic_count.items()}
        await _join([(member, (topic,)) for topic, of_topic in members.items() for member in of_topic])
        return {topic: list(map(AsyncStream, of_topic)) for topic, of_topic in members.items()}

    @at_home
    async def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, num_streams: int = 1
    ) -> list[AsyncStream]:
        """Create streams of all topics that pass the filter, also those created later, but no internal ones."""
        if not isinstance(topic_filter, TopicFilter):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"a filter is a Whitelist or a Blacklist, not {topic_filter!r}")
        _require_count(num_streams)
        members = self._new_members(num_streams)
        topics = topic_filter.allowed(self._topics())
        await _join([(member, topics) for member in members])
        self._require_running()
        self._filtered.append(_Filtered(topic_filter, members))
        self._seen_topics = None  # a topic may have come meanwhile
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._follow_topics())
        return list(map(AsyncStream, members))

    @at_home
    async def commit_offsets(self) -> None:
        """Commit the offsets after all records that the streams have returned. Raises RaykaError if that fails."""
        self._require_running()
        await asyncio.gather(*(member.commit_given_out() for member in self._members))

    async def shutdown(self) -> None:
        """Commit, unless `enable_auto_commit` is False, leave the group and end the streams. Safe to repeat.

        A record that another task is processing does not count as read.
        """
        self.finish(asyncio.current_task())
        await self.leave()

    close = shutdown

    async def __aexit__(self, *raised: object) -> None:
        """As `shutdown`. A record in whose processing the program raised an exception does not count as read."""
        await (self.shutdown() if raised[0] is None else self.leave())

    def finish(self, reader: object) -> None:
        """The thread or task that read streams has processed their last records, unless `leave` was called before."""
        if not self._is_shut_down:
            for member in tuple(self._members):
                member.finish(reader)

    @at_home
    async def leave(self) -> None:
        """As `shutdown`, but records that were returned last do not count as read.

        If it is cancelled, or interrupted, it goes on, and the next call waits for its end.
        """
        self._is_shut_down = True
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._close_members())
        await asyncio.wait([self._leaving])

    async def _close_members(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        outcomes = await asyncio.gather(
            *(member.close(_SHUTDOWN_TIMEOUT_MS) for member in self._members), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                logger.warning("closing a stream failed: %r", outcome)

    def _member(self, suffix: str) -> StreamMember:
        name = f"{self._consumer_id}-{suffix}"
        return StreamMember(self._broker, self.home, group_id=self._group_id, member_id=name, **self._config)

    def _new_members(self, count: int) -> list[StreamMember]:
        self._require_running()
        members = [self._member(str(len(self._members) + number)) for number in range(count)]
        self._members += members
        return members

    def _topics(self) -> list[str]:
        return [name for name, topic in self._broker.image.topics.items() if not topic.is_internal]

    async def _follow_topics(self) -> None:
        """Let the filtered streams read what passes their filters now."""
        while True:
            topics = self._broker.image.topics
            if topics is not self._seen_topics:
                self._seen_topics = topics
                if not all([await self._join_allowed(*filtered) for filtered in self._filtered]):
                    self._seen_topics = None
                    await asyncio.sleep(_LOOK_AGAIN_AFTER_ERROR_S)
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _join_allowed(self, topic_filter: TopicFilter, members: Sequence[StreamMember]) -> bool:
        """Let members read what passes their filter now; returns whether that was possible."""
        try:
            allowed = topic_filter.allowed(self._topics())
            for member in members:
                if await member.subscription() != set(allowed):
                    await member.join(allowed)
        except Exception:  # of the program's filter, for example
            logger.exception("The topics that pass a filter could not be found; trying again")
            return False
        return True

    def _require_running(self) -> None:
        if self._is_shut_down:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "The connector is shut down")


class ConsumerConnector(Unpicklable, Shell[AsyncConsumerConnector], Closing):
    """The blocking form of `AsyncConsumerConnector`; any number of threads may use it."""

    def create_message_streams(self, topic_count: Mapping[str, int]) -> dict[str, list[Stream]]:
        """See `AsyncConsumerConnector.create_message_streams`."""
        streams = self._loop.run(self._core.create_message_streams(topic_count))
        return {topic: self._blocking(of_topic) for topic, of_topic in streams.items()}

    def create_message_streams_by_filter(self, topic_filter: TopicFilter, num_streams: int = 1) -> list[Stream]:
        """See `AsyncConsumerConnector.create_message_streams_by_filter`."""
        return self._blocking(self._loop.run(self._core.create_message_streams_by_filter(topic_filter, num_streams)))

    commit_offsets = blocking(AsyncConsumerConnector.commit_offsets)

    def shutdown(self) -> None:
        """Commit, unless `enable_auto_commit` is False, leave the group and end the streams. Safe to repeat.

        A record that another thread is processing does not count as read.
        """
        if not self._loop.is_closed:
            self._core.finish(threading.current_thread())
            self.leave()

    close = shutdown

    def __exit__(self, *raised: object) -> None:
        """As `shutdown`. A record in whose processing the program raised an exception does not count as read."""
        if raised[0] is None:
            self.shutdown()
        else:
            self.leave()

    def leave(self) -> None:
        """As `shutdown`, but records that were returned last do not count as read."""
        if not self._loop.is_closed:
            self._loop.run(self._core.leave())

    def _blocking(self, streams: Sequence[AsyncStream]) -> list[Stream]:
        return [Stream(stream, self._loop) for stream in streams]


async def _join(wanted: Sequence[tuple[StreamMember, tuple[str, ...]]]) -> None:
    await asyncio.gather(*(member.join(topics) for member, topics in wanted))


def _require_batch(max_records: int) -> None:
    if not isinstance(max_records, int) or max_records < 1:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"max_records must be an int, 1 or more, not {max_records!r}")


def _require_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_STREAMS:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"a number of streams is 1 to {_MAX_STREAMS}, not {count!r}")
