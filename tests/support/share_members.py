"""librdkafka's share consumers, for tests of the tools that look at their groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from confluent_kafka import ShareConsumer

from rayka.testing import wait_until

TIMEOUT_S = 90.0


@contextmanager
def member(bootstrap: str, group_id: str, topic: str, **settings: str) -> Iterator[ShareConsumer]:
    """A share consumer of the topic."""
    named = {"bootstrap.servers": bootstrap, "group.id": group_id, "client.id": "worker", **settings}
    with closing(ShareConsumer(named)) as consumer:
        consumer.subscribe([topic])
        yield consumer


def consume(consumer: ShareConsumer, count: int) -> None:
    """Read and, by reading on, acknowledge so many records."""
    read = 0

    def is_read() -> bool:
        nonlocal read
        read += sum(message.error() is None for message in consumer.poll(0.2) or ())
        return read >= count

    wait_until(is_read, TIMEOUT_S, f"{count} records are consumed")
    consumer.poll(0.1)
