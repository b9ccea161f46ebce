"""What `rayka.start()` and `rayka.connect()` give: the way to producers, consumers and the admin."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import WeakSet

from rayka.client.admin import Admin, AsyncAdmin
from rayka.client.consumer import AsyncConsumer, Consumer
from rayka.client.loop import LoopThread
from rayka.client.producer import AsyncProducer, Producer
from rayka.gateway.ports import Broker

_FLUSH_TIMEOUT_S = 10.0
"""How long leaving a cluster waits for what producers have not sent yet."""


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


class Cluster:
    """A rayka cluster, seen from this program.

    As a context manager it ends with `stop`: what this process started goes, a cluster that it joined stays.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clients: WeakSet[AsyncProducer | AsyncConsumer] = WeakSet()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for Kafka clients in any language."""
        return self._connection.bootstrap_servers

    def producer(self, **config: Any) -> Producer:
        """A producer. Settings: `ProducerConfig`."""
        return Producer(self.async_producer(**config), self._connection.loop)

    def consumer(self, **config: Any) -> Consumer:
        """A consumer of partitions that the program assigns. Settings: `ConsumerConfig`."""
        return Consumer(self.async_consumer(**config), self._connection.loop)

    def admin(self) -> Admin:
        """Topics, settings, offsets, log directories."""
        return Admin(self.async_admin(), self._connection.loop)

    def async_producer(self, **config: Any) -> AsyncProducer:
        """A producer to be awaited, in any event loop."""
        producer = AsyncProducer(self._connection.broker, self._connection.loop.loop, **config)
        self._clients.add(producer)
        return producer

    def async_consumer(self, **config: Any) -> AsyncConsumer:
        """A consumer to be awaited, in any event loop."""
        consumer = AsyncConsumer(self._connection.broker, self._connection.loop.loop, **config)
        self._clients.add(consumer)
        return consumer

    def async_admin(self) -> AsyncAdmin:
        """An admin to be awaited, in any event loop."""
        return AsyncAdmin(self._connection.broker, self._connection.loop.loop)

    def close(self) -> None:
        """Close the producers (what they have is sent first) and consumers and leave the cluster; it goes on."""
        self._close_clients()
        self._connection.close()

    def stop(self) -> None:
        """As `close`, and stop the broker, if this process started it, and the Ray that came with it."""
        self._close_clients()
        self._connection.stop()

    def _close_clients(self) -> None:
        async def close() -> None:
            clients, self._clients = list(self._clients), WeakSet()
            await asyncio.gather(
                *(
                    client.close(_FLUSH_TIMEOUT_S) if isinstance(client, AsyncProducer) else client.close()
                    for client in clients
                )
            )

        if self._clients:
            self._connection.loop.run(close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
