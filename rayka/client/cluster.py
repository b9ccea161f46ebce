"""What `rayka.start()` and `rayka.connect()` return: it creates producers, consumers and the admin client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypeVar, Unpack, overload
from weakref import WeakSet, finalize

from rayka.client.admin.admin import Admin, AsyncAdmin
from rayka.client.consumer.blocking import Consumer
from rayka.client.consumer.consumer import AsyncConsumer
from rayka.client.consumer.reader import AsyncReader, Reader
from rayka.client.group.blocking import GroupConsumer
from rayka.client.group.consumer import AsyncGroupConsumer
from rayka.client.group.member import BLOCKED
from rayka.client.group.settings import GroupConsumerOptions
from rayka.client.loop import LoopThread, running_loop
from rayka.client.producer.blocking import Producer
from rayka.client.producer.producer import AsyncProducer
from rayka.client.settings import ConsumerOptions, ProducerOptions
from rayka.client.share.blocking import ShareConsumer
from rayka.client.share.consumer import AsyncShareConsumer, ShareConsumerOptions
from rayka.client.share.pool import AsyncProcessingPool, ProcessingPool
from rayka.client.share.processing import RETRIABLE, Retriable
from rayka.client.share.worker import Process, spawner
from rayka.client.streams.streams import AsyncConsumerConnector, ConsumerConnector
from rayka.client.unpicklable import Unpicklable
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker

logger = logging.getLogger(__name__)

_FLUSH_TIMEOUT_MS = 10_000
"""How long leaving a cluster waits for what producers have not sent yet."""


_Client: TypeAlias = (
    AsyncProducer | AsyncConsumer | AsyncReader | AsyncShareConsumer | AsyncProcessingPool | AsyncConsumerConnector
)
M = TypeVar("M", bound=GroupConsumer | ConsumerConnector)


class Connection(Protocol):
    """A cluster's ports, alive on the loop of a thread."""

    @property
    def broker(self) -> Broker:
        """The ports."""

    @property
    def loop(self) -> LoopThread:
        """The thread whose loop they belong to."""

    @property
    def bootstrap_servers(self) -> str:
        """What a Kafka client is given to find the cluster: `host:port,host:port`."""

    def close(self) -> None:
        """Leave the cluster."""

    def stop(self) -> None:
        """Stop what this process started."""


class Cluster(Unpicklable):
    """A rayka cluster, seen from this program.

    A `with` block ends with `stop`: it stops a broker that this process started, and only leaves a cluster that the
    process connected to.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clients: WeakSet[_Client] = WeakSet()
        self._members: WeakSet[GroupConsumer | ConsumerConnector] = WeakSet()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for Kafka clients in any language."""
        return self._connection.bootstrap_servers

    def producer(self, **config: Unpack[ProducerOptions]) -> Producer:
        """A producer; close it, or use it in a `with` block. Settings: `ProducerConfig`.

            with cluster.producer(linger_ms=5) as producer:
                producer.send("events", b"hello", key=b"user-1")

        Raises INVALID_CONFIG.
        """
        return Producer(self.async_producer(**config), self._connection.loop)

    @overload
    def consumer(self, group_id: None = None, topics: None = None, **config: Unpack[ConsumerOptions]) -> Consumer: ...

    @overload
    def consumer(
        self, group_id: str, topics: Iterable[str] | None = None, **config: Unpack[GroupConsumerOptions]
    ) -> GroupConsumer: ...

    def consumer(
        self, group_id: str | None = None, topics: Iterable[str] | None = None, **config: Any
    ) -> Consumer | GroupConsumer:
        """A consumer in a group: it shares topics with the other members of the group, and commits its positions.

        Settings: `GroupConsumerConfig`. Without a `group_id`, a consumer of partitions that the program assigns.
        Settings: `ConsumerConfig`.
        """
        if group_id is None:
            _require_none(topics)
            return self._forgettable(self.async_consumer(**config))
        return self._member(GroupConsumer(self._group_consumer(group_id, topics, config), self._connection.loop))

    def share_consumer(
        self, group_id: str, topics: Iterable[str], **config: Unpack[ShareConsumerOptions]
    ) -> ShareConsumer:
        """A member of a share group (KIP-932): many members read the same partition, and each record is locked for one.

            with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
                for record in consumer.poll(timeout_ms=3000):
                    consumer.accept(record)  # or release(record), reject(record)
                consumer.commit()

        Settings: `AsyncShareConsumer`. A new group starts at the end of its topics, unless its setting
        `share.auto.offset.reset` is `earliest`.
        """
        consumer = self._connection.loop.run(self._share_consumer(group_id, topics, config))
        self._clients.add(consumer)
        return ShareConsumer(consumer, self._connection.loop)

    def process(
        self,
        topic: str,
        group_id: str,
        fn: Process | type[Any],
        *,
        actors: int = 2,
        retriable: Retriable = RETRIABLE,
        delay_ms: int | None = None,
        max_processing_ms: float | None = None,
        ray_actor_options: Mapping[str, Any] | None = None,
    ) -> ProcessingPool:
        """Process the records of a topic in a pool of Ray actors, as a member of a share group.

            with cluster.process("tasks", "workers", print, actors=4) as pool:
                pool.join(idle_ms=2000)

        The pool works until it is closed. `fn` is a function that takes a `ShareRecord`, or a class; each actor then
        makes one instance and calls it. A record is accepted when `fn` returns. It is released with `delay_ms` after an
        error of the `retriable` types or a retriable `RaykaError`. It is rejected after any other error; the traceback
        goes to the group's dead-letter topic, if it has one. Locks are renewed while a record is processed. When an
        actor dies, the record that it was processing goes back to the group at once, and a new actor takes its place.
        An actor that takes longer than `max_processing_ms` for a record is killed; without that argument it keeps the
        record, and those that wait behind it, as long as the pool works. `ray_actor_options` are Ray's options, such as
        `num_cpus`.

        If the topic does not exist, the pool waits for it. Raises INVALID_REQUEST if `fn` can't be called, for fewer
        than one actor, and for a `max_processing_ms` that is not above 0.
        """
        spawn = spawner(fn, retriable, delay_ms, ray_actor_options or {})

        async def create() -> AsyncProcessingPool:
            config = ShareConsumerOptions(acknowledgement_mode="explicit", acquire_mode="record_limit")
            consumer = await self._share_consumer(group_id, [topic], config)
            return AsyncProcessingPool(consumer, spawn, actors, max_processing_ms)

        pool = self._connection.loop.run(create())
        self._clients.add(pool)
        return ProcessingPool(pool, self._connection.loop)

    def consumer_connector(
        self, group_id: str, consumer_id: str | None = None, **config: Unpack[GroupConsumerOptions]
    ) -> ConsumerConnector:
        """The streams of Kafka's design papers, one for each thread. Settings: `AsyncConsumerConnector`."""
        core = self.async_consumer_connector(group_id, consumer_id, **config)
        return self._member(ConsumerConnector(core, self._connection.loop))

    def reader(self, **config: Unpack[ConsumerOptions]) -> Reader:
        """The stateless reader of Kafka's design papers. Settings: `AsyncReader`."""
        return Reader(self.async_reader(**config), self._connection.loop)

    def admin(self) -> Admin:
        """The admin client: topics, settings, offsets, groups and log directories."""
        return Admin(self.async_admin(), self._connection.loop)

    def async_producer(self, **config: Unpack[ProducerOptions]) -> AsyncProducer:
        """A producer for asyncio, in any event loop."""
        producer = AsyncProducer(self._connection.broker, self._connection.loop.loop, **config)
        self._clients.add(producer)
        return producer

    @overload
    def async_consumer(
        self, group_id: None = None, topics: None = None, **config: Unpack[ConsumerOptions]
    ) -> AsyncConsumer: ...

    @overload
    def async_consumer(
        self, group_id: str, topics: Iterable[str] | None = None, **config: Unpack[GroupConsumerOptions]
    ) -> AsyncGroupConsumer: ...

    def async_consumer(
        self, group_id: str | None = None, topics: Iterable[str] | None = None, **config: Any
    ) -> AsyncConsumer | AsyncGroupConsumer:
        """A consumer for asyncio, in any event loop; with a `group_id`, a consumer in that group."""
        if group_id is not None:
            return self._group_consumer(group_id, topics, config)
        _require_none(topics)
        consumer = AsyncConsumer(self._connection.broker, self._connection.loop.loop, **config)
        self._clients.add(consumer)
        return consumer

    def async_share_consumer(
        self, group_id: str, topics: Iterable[str], **config: Unpack[ShareConsumerOptions]
    ) -> AsyncShareConsumer:
        """A member of a share group for asyncio, in any event loop. Settings: `AsyncShareConsumer`.

        async with cluster.async_share_consumer("workers", ["tasks"]) as consumer:
            records = await consumer.poll(timeout_ms=3000)
            results = await consumer.commit()
        """
        consumer = self._connection.loop.run(self._share_consumer(group_id, topics, config))
        self._clients.add(consumer)
        return consumer

    def async_consumer_connector(
        self, group_id: str, consumer_id: str | None = None, **config: Unpack[GroupConsumerOptions]
    ) -> AsyncConsumerConnector:
        """The streams for asyncio, in any event loop."""
        connection = self._connection
        connector = AsyncConsumerConnector(
            connection.broker, connection.loop.loop, group_id=group_id, consumer_id=consumer_id, **config
        )
        self._clients.add(connector)
        return connector

    def async_reader(self, **config: Unpack[ConsumerOptions]) -> AsyncReader:
        """The stateless reader for asyncio, in any event loop."""
        reader = AsyncReader(self._connection.broker, self._connection.loop.loop, **config)
        self._clients.add(reader)
        return reader

    def async_admin(self) -> AsyncAdmin:
        """An admin client for asyncio, in any event loop."""
        return AsyncAdmin(self._connection.broker, self._connection.loop.loop)

    def close(self) -> None:
        """Send what the producers still have, close all clients, and leave the cluster, which keeps running.

        Safe to repeat: after an interrupt (Ctrl-C) the next call does the rest, but a group consumer that was just
        closing does not leave its group. In a fork of the process it does nothing.
        """
        if not self._connection.loop.is_in_fork:
            self._close_clients()
            self._connection.close()

    def stop(self) -> None:
        """Like `close`; then stop the broker and Ray, each if this process started it."""
        if not self._connection.loop.is_in_fork:
            self._close_clients()
            self._connection.stop()

    def _group_consumer(
        self, group_id: str, topics: Iterable[str] | None, config: dict[str, Any]
    ) -> AsyncGroupConsumer:
        """It lives on in its group, even when the program has forgotten it, until it is closed here."""
        connection = self._connection
        consumer = AsyncGroupConsumer(
            connection.broker, connection.loop.loop, group_id=group_id, topics=topics, **config
        )
        self._clients.add(consumer)
        return consumer

    async def _share_consumer(
        self, group_id: str, topics: Iterable[str], config: ShareConsumerOptions
    ) -> AsyncShareConsumer:
        """It lives in the loop of the connection."""
        return AsyncShareConsumer(self._connection.broker, group_id, topics, **config)

    def _forgettable(self, core: AsyncConsumer) -> Consumer:
        """Its fetches end when the program has forgotten it, though it did not close it."""
        consumer = Consumer(core, self._connection.loop)
        finalize(consumer, self._connection.loop.call_soon, core.end_fetches).atexit = False
        return consumer

    def _member(self, member: M) -> M:
        """It is closed with the cluster, in the thread that closes that."""
        self._members.add(member)
        return member

    def _close_clients(self) -> None:
        """The callbacks of blocking consumers run in this thread."""
        for member in list(self._members):
            try:
                member.close()
            except Exception as error:
                logger.warning("closing a consumer failed: %r", error)
            self._members.discard(member)
        if self._clients or self._closing:
            self._connection.loop.run(self._close_asynchronous(running_loop()))

    async def _close_asynchronous(self, blocked: asyncio.AbstractEventLoop | None) -> None:
        """If this is interrupted, it goes on, and the next call waits for its end. `blocked` is the caller's loop."""
        BLOCKED.set(blocked)
        closing = self._connection.loop.loop.create_task(self._close_together(list(self._clients)))
        self._closing.add(closing)  # first: another thread looks at both
        self._clients = WeakSet()
        closing.add_done_callback(self._closing.discard)
        await asyncio.wait(set(self._closing))

    async def _close_together(self, clients: Sequence[_Client]) -> None:
        outcomes = await asyncio.gather(
            *(
                client.close(timeout_ms=_FLUSH_TIMEOUT_MS) if isinstance(client, AsyncProducer) else client.close()
                for client in clients
            ),
            return_exceptions=True,
        )
        for client, outcome in zip(clients, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                logger.warning("closing a client failed: %r", outcome)
                if isinstance(client, AsyncGroupConsumer):  # it refuses a close that a rebalance callback makes
                    await client.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._leave_streams()
        self.stop()

    def _leave_streams(self) -> None:
        """The program has failed with the records that streams returned last: they do not count as read."""
        for member in list(self._members):
            if isinstance(member, ConsumerConnector):
                try:
                    member.leave()
                except Exception as error:
                    logger.warning("leaving streams failed: %r", error)


def _require_none(topics: object) -> None:
    if topics is not None:
        raise RaykaError(ErrorCode.INVALID_GROUP_ID, "topics need a group: give a group id, or call assign instead")
