"""The partitions of one topic in the metadata image, and the queue of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from rayka.client.producer.accumulator import Accumulator, PartitionQueue
from rayka.client.producer.partitioner import Partitioner, StickyPartition, key_partition
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.metadata.commands import NewTopic
from rayka.metadata.image import MetadataImage, TopicImage
from rayka.types import NO_LEADER, TopicPartition

NO_PARTITION = -1
_LOOK_AGAIN_S = 0.02
_IMAGE_LAG_MS = 2_000
"""How long another client's new topic may take to reach this process."""


class Route(Protocol):
    """The partitions of a topic, and the choice of one for each record; `TopicRoute` is one.

    `max_batch_size` is the topic's max.message.bytes.
    """

    topic: str
    partition_count: int
    max_batch_size: int

    def choose(self, key: bytes | None, size: int, partition: int | None, partitioner: Partitioner | None) -> int:
        """The partition for a record of `size` bytes. Raises UNKNOWN_TOPIC_OR_PARTITION for one that is not there."""


class TopicRoute:
    """Chooses the partition of each record of a topic. Belongs to one version of the metadata image."""

    __slots__ = (
        "available",
        "image",
        "max_batch_size",
        "partition_count",
        "partitions",
        "queues",
        "seen_bytes",
        "sticky",
        "sticky_queue",
        "topic",
        "topic_id",
    )

    def __init__(
        self, image: MetadataImage, topic: TopicImage, queues: list[PartitionQueue], sticky: StickyPartition,
        max_batch_size: int,
    ) -> None:  # fmt: skip
        self.image = image
        self.topic = topic.name
        self.topic_id = topic.topic_id
        self.partition_count = len(topic.partitions)
        self.partitions: Sequence[int] = range(self.partition_count)
        self.available: Sequence[int] = [
            partition.partition for partition in topic.partitions if partition.leader != NO_LEADER
        ] or self.partitions
        self.queues = queues
        self.sticky = sticky
        self.sticky_queue = PartitionQueue(TopicPartition(topic.name, NO_PARTITION))
        self.seen_bytes = 0
        self.max_batch_size = max_batch_size

    def choose(self, key: bytes | None, size: int, partition: int | None, partitioner: Partitioner | None) -> int:
        """The partition for a record of `size` bytes: the one asked for, else the partitioner's, else Kafka's choice.

        Raises UNKNOWN_TOPIC_OR_PARTITION for a partition that the topic does not have.
        """
        if partition is None:
            if partitioner is None:
                if key is None:
                    return self._choose_sticky(size)
                return key_partition(key, self.partition_count)
            partition = partitioner(key, self.partitions, self.available)
        if isinstance(partition, int) and 0 <= partition < self.partition_count:
            return partition
        raise RaykaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"partition {partition!r}: topic {self.topic} has partitions 0 to {self.partition_count - 1}",
        )

    def _choose_sticky(self, size: int) -> int:
        """Records were also added to the sticky partition's batch directly: these count too."""
        grown = max(self.sticky_queue.appended_bytes - self.seen_bytes, 0)
        partition = self.sticky.next(size + grown, self.available)
        self.sticky_queue = queue = self.queues[partition]
        self.seen_bytes = queue.appended_bytes + size
        return partition


class Routes:
    """The routes of a producer's topics, renewed by `get` when the image has changed."""

    def __init__(self, broker: Broker, accumulator: Accumulator, config: ProducerConfig) -> None:
        self._broker = broker
        self._accumulator = accumulator
        self._config = config
        self.known: dict[str, TopicRoute] = {}

    def get(self, topic: str) -> TopicRoute | None:
        """The topic's route; None if the image does not have the topic."""
        route = self.known.get(topic)
        image = self._broker.image
        if route is not None and route.image is image:
            return route
        found = image.topics.get(topic)
        if found is None:
            self.known.pop(topic, None)
            return None
        return self._renew(image, found, route)

    def _renew(self, image: MetadataImage, topic: TopicImage, old: TopicRoute | None) -> TopicRoute:
        queues = [self._accumulator.queue(TopicPartition(topic.name, index)) for index in range(len(topic.partitions))]
        if old is not None and old.topic_id != topic.topic_id:
            old = None  # another topic of the same name, with partitions of its own
            for queue in queues:
                queue.known_until_s = 0.0  # its leaders know no producer
        sticky = StickyPartition(max(self._config.batch_size, 1)) if old is None else old.sticky
        config = self._broker.config.log_config(image.topic_configs(topic.name))
        route = self.known[topic.name] = TopicRoute(image, topic, queues, sticky, config.max_message_bytes)
        return route


async def wait_for_topic(broker: Broker, topic: str, timeout_ms: int) -> None:
    """Return when the image has the topic; it is created if the broker's settings say so.

    Raises UNKNOWN_TOPIC_OR_PARTITION, or why the topic could not be created.
    """
    if not isinstance(topic, str):
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"topic must be a str, not {type(topic).__name__}")
    if broker.config["auto.create.topics.enable"]:
        await _create(broker, topic, timeout_ms)
    deadline_s = asyncio.get_running_loop().time() + min(timeout_ms, _IMAGE_LAG_MS) / 1000
    while topic not in broker.image.topics:
        if asyncio.get_running_loop().time() > deadline_s:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _create(broker: Broker, topic: str, timeout_ms: int) -> None:
    results = await broker.controller.create_topics([NewTopic(topic)], validate_only=False, timeout_ms=timeout_ms)
    for result in results:
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RaykaError(result.error, result.error_message or f"topic {topic} can't be created")
