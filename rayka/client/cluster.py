"""What `rayka.start()` and `rayka.connect()` give: the way to producers, consumers and the admin."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

from rayka.client.admin import Admin, AsyncAdmin
from rayka.client.consumer import AsyncConsumer, Consumer
from rayka.client.loop import LoopThread
from rayka.client.producer import AsyncProducer, Producer
from rayka.gateway.ports import Broker


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

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for Kafka clients in any language."""
        return self._connection.bootstrap_servers

    def producer(self, **config: Any) -> Producer:
        """A producer. Settings: `ProducerConfig`."""
        return Producer(self._connection.broker, self._connection.loop, **config)

    def consumer(self, **config: Any) -> Consumer:
        """A consumer of partitions that the program assigns. Settings: `ConsumerConfig`."""
        return Consumer(self._connection.broker, self._connection.loop, **config)

    def admin(self) -> Admin:
        """Topics, settings, offsets, log directories."""
        return Admin(self._connection.broker, self._connection.loop)

    def async_producer(self, **config: Any) -> AsyncProducer:
        """A producer to be awaited, in any event loop."""
        return AsyncProducer(self._connection.broker, self._connection.loop.loop, **config)

    def async_consumer(self, **config: Any) -> AsyncConsumer:
        """A consumer to be awaited, in any event loop."""
        return AsyncConsumer(self._connection.broker, self._connection.loop.loop, **config)

    def async_admin(self) -> AsyncAdmin:
        """An admin to be awaited, in any event loop."""
        return AsyncAdmin(self._connection.broker, self._connection.loop.loop)

    def close(self) -> None:
        """Leave the cluster; it goes on."""
        self._connection.close()

    def stop(self) -> None:
        """Stop the broker, if this process started it, and the Ray that came with it."""
        self._connection.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
