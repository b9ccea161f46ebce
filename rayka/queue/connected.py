"""The queues that this process uses, over one connection to the cluster."""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import threading
from typing import Final
from weakref import WeakSet

import ray

from rayka.client.connection import before_ray_ends
from rayka.client.joined import RayCluster
from rayka.client.producer.blocking import Producer
from rayka.errors import RaykaError
from rayka.queue.put_journal import JournalOpener
from rayka.queue.settings import QueueSettings
from rayka.queue.topic import QueueTopic
from rayka.queue.waiting_reader import WaitingReader
from rayka.queue.writer import QueueWriter

logger = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 256 << 20
_EXIT_TIMEOUT_S: Final = 5.0
_FLUSH_TIMEOUT_MS: Final = 10_000
"""As long as the producer waits when a cluster is closed."""
_producers: dict[RayCluster, Producer] = {}
CONNECTING = threading.RLock()
"""Held while a handle connects, so that two threads do not connect it twice."""


class Connected:
    """A queue in one process: the ports, a writer over the producer that all queues share, and its own reader."""

    def __init__(self, cluster: RayCluster, topic: QueueTopic, settings: QueueSettings) -> None:
        connection = cluster.connection()
        self.broker = connection.broker
        self.loop = connection.loop
        journals = JournalOpener(self.broker, self.loop, topic) if settings.may_use_journal else None
        self.writer = QueueWriter(_producer(cluster), topic.name, settings.put_ahead, journals)
        self.topic = topic
        self.reader = WaitingReader(self.broker, self.loop, topic, settings)

    def wait_until_known(self) -> None:
        """Wait a moment for the topic, if this process has not heard of it yet."""
        if not self.topic.is_known:
            self.loop.run(self.topic.wait_until_known())


_all: WeakSet[Connected] = WeakSet()
UNNAMED: dict[str, Connected] = {}
"""The queues without a name that this process made."""


def connect(cluster: RayCluster, name: str, settings: QueueSettings, topic_id: bytes | None) -> Connected:
    """Connect; `topic_id` is not known where the queue is to be opened."""

    async def topic() -> QueueTopic:
        return QueueTopic(connection.broker, name, topic_id)

    connection = cluster.connection()
    connected = Connected(cluster, connection.loop.run(topic()), settings)
    _all.add(connected)
    return connected


def _producer(cluster: RayCluster) -> Producer:
    if cluster not in _producers:
        _producers[cluster] = cluster.join().producer(buffer_memory=_BUFFER_BYTES)
        cluster.keep_for(_producers[cluster])
    return _producers[cluster]


def end_later(connected: Connected) -> None:
    """End the reader of a dropped handle. This may run in any thread, with any lock held, so it waits for nothing."""
    if not connected.loop.is_closed:
        connected.loop.submit(connected.reader.end())


def _flush() -> None:
    for producer in _producers.values():
        try:
            producer.flush(timeout_ms=_FLUSH_TIMEOUT_MS)
        except RaykaError as error:
            logger.error("items that were put with put_ahead may be missing from their queues: %s", error)


@before_ray_ends
@atexit.register
def _leave() -> None:
    """The program ends: write its items, end its leases, and delete the queues without a name that it made."""
    if not ray.is_initialized():
        return
    _flush()
    ends = [each.loop.submit(each.reader.end(is_exit=True)) for each in list(_all) if not each.loop.is_closed]
    ends += [each.loop.submit(each.topic.delete()) for each in UNNAMED.values() if not each.loop.is_closed]
    for ended in concurrent.futures.wait(ends, _EXIT_TIMEOUT_S).done:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            logger.error("a queue was not left: %s", error)
    _producers.clear()  # the program may connect again
    UNNAMED.clear()
