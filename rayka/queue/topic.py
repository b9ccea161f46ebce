"""A queue in the broker: a topic, and a share group of the same name without members.

Each program acquires from all partitions of the topic. So no partitions are assigned, and no program has to join before
the first item. The state of the share-partitions has to be initialized once, which the coordinator does when a member
joins.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from rayka.client.admin.admin import AsyncAdmin
from rayka.client.calls import in_time
from rayka.coordinator.groups.share.requests import ShareGroupHeartbeatRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.gateway.share_groups import ShareGroups
from rayka.metadata.commands import NewTopic
from rayka.metadata.image import TopicImage
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.queue.settings import DEAD_LETTER_PREFIX, QueueSettings
from rayka.share.requests import ShareDepth
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TIMEOUT_MS: Final = 30_000
_LOOK_AGAIN_S: Final = 0.02
_IMAGE_LAG_S: Final = 3.0
_JOINS, _LEAVES = 0, -1
_DEAD_LETTERS: Final = {"errors.deadletterqueue.group.enable": "true"}
GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class QueueTopic:
    """The topic and the group of one queue; in the loop of the broker's ports.

    Raises UNKNOWN_TOPIC_OR_PARTITION once the queue was shut down.
    """

    def __init__(self, broker: Broker, name: str, topic_id: bytes | None = None) -> None:
        self.name = name
        self._broker = broker
        self._admin = AsyncAdmin(broker)
        self._topic_id = topic_id

    @property
    def topic_id(self) -> bytes:
        """The id of the topic, 16 bytes."""
        if self._topic_id is None:
            raise gone(self.name)
        return self._topic_id

    @property
    def is_known(self) -> bool:
        """Whether the topic is in this process's image."""
        topic = self._broker.image.topics.get(self.name)
        return topic is not None and topic.topic_id.bytes == self._topic_id

    def image(self) -> TopicImage:
        """The topic. Raises UNKNOWN_TOPIC_OR_PARTITION if another topic has the name now."""
        if not self.is_known:
            raise gone(self.name)
        return self._broker.image.topics[self.name]

    def partitions(self) -> list[TopicPartition]:
        """The partitions of the topic."""
        return [TopicPartition(self.name, number) for number in range(len(self.image().partitions))]

    async def open(self, settings: QueueSettings) -> bytes:
        """Create what does not exist, and return the id of the topic when the queue can be used.

        Raises RaykaError: INVALID_REQUEST if there is a topic of that name that is not a queue.
        """
        is_new = self.name not in self._broker.image.topics
        if is_new:
            await self._create(NewTopic(self.name, settings.partitions, configs=_texts(settings.topic_configs())))
        await self.wait_until_known()
        require_queue(self._broker, self.name)
        await self._configure(settings)
        if is_new or not await self._is_initialized():
            await self._initialize()
        return self.topic_id

    async def _create(self, topic: NewTopic) -> None:
        (result,) = await self._admin.create_topics([topic], raise_errors=False)
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RaykaError(result.error, result.error_message or f"the queue {self.name} can't be created")

    async def wait_until_known(self) -> None:
        """Return when the topic is in this process's image, which may take a moment."""
        end = _now() + _IMAGE_LAG_S
        while (topic := self._broker.image.topics.get(self.name)) is None or (
            self._topic_id is not None and topic.topic_id.bytes != self._topic_id
        ):
            if _now() > end:
                raise gone(self.name)
            await asyncio.sleep(_LOOK_AGAIN_S)
        self._topic_id = topic.topic_id.bytes

    async def _configure(self, settings: QueueSettings) -> None:
        locks = int(str(self._broker.config["group.share.max.partition.max.record.locks"]))
        group = ConfigResource(ResourceType.GROUP, self.name)
        await self._admin.alter_configs(group, settings.group_configs(self.name, locks))
        if settings.dead_letters:
            await self._create(NewTopic(DEAD_LETTER_PREFIX + self.name, 1, configs=_DEAD_LETTERS))

    async def _initialize(self) -> None:
        """Join the group and leave it, until its state is initialized."""
        end = _now() + _TIMEOUT_MS / 1000
        while True:
            try:
                await self._join_and_leave()
                if await self._is_initialized():
                    return
            except RaykaError as error:
                if not error.code.retriable:
                    raise
            if _now() > end:
                reason = f"the share-partitions of the queue {self.name} could not be initialized"
                raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _is_initialized(self) -> bool:
        try:
            await self.depths()
        except RaykaError as error:
            if error.code in GONE or not error.code.retriable:
                raise
            return False
        return True

    async def _join_and_leave(self) -> None:
        groups, member_id = ShareGroups(self._broker), str(uuid.uuid4())
        await self._broker.groups.coordinator_of(self.name)
        joins = ShareGroupHeartbeatRequest(self.name, member_id, _JOINS, subscribed_topic_names=(self.name,))
        coordinator = f"the coordinator of the queue {self.name}"
        answer = await in_time(groups.heartbeat(joins), _TIMEOUT_MS / 1000, coordinator)
        if answer.error is not ErrorCode.NONE:
            raise RaykaError(answer.error, answer.error_message or answer.error.name)
        leaves = ShareGroupHeartbeatRequest(self.name, member_id, _LEAVES)
        await in_time(groups.heartbeat(leaves), _TIMEOUT_MS / 1000, coordinator)

    async def depths(self) -> Sequence[ShareDepth]:
        """The number of items that can be acquired now, for each partition."""
        leaders, topic_id = self._broker.share_leaders, self.topic_id
        return await asyncio.gather(*(leaders.depth(self.name, one, topic_id) for one in self.partitions()))

    async def depth(self) -> ShareDepth:
        """The depth of all partitions together."""
        return ShareDepth(*map(sum, zip(*await self.depths(), strict=True)))

    async def count(self) -> ShareDepth:
        """Like `depth`. While a leader is unavailable it is asked again, for up to 30 seconds."""
        return await self.until_answered(self.depth)

    async def until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` returns; it is called again while a leader is unavailable, for up to 30 seconds."""
        end = _now() + _TIMEOUT_MS / 1000
        while True:
            try:
                return await ask()
            except RaykaError as error:
                if error.code in GONE or not error.code.retriable or _now() > end:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def trim(self) -> None:
        """Delete finished items from the log. After an error the next call tries again."""
        try:
            depths = await self.depths()
            starts = {one: depth.start_offset for one, depth in zip(self.partitions(), depths, strict=True)}
            await self._admin.delete_records({one: offset for one, offset in starts.items() if offset > 0})
        except RaykaError as error:
            logger.info("cannot trim the queue %s: %s", self.name, error)

    async def delete(self) -> None:
        """Delete the topic with all items, and the group. Does nothing if another program has deleted them.

        Raises the error of a topic that can't be deleted. Then the group stays: without it, items that are done with
        would be delivered again.
        """
        if self.name in self._broker.image.topics and not self.is_known:
            return  # The name has been given to another queue since.
        (result,) = await self._admin.delete_topics([self.name], raise_errors=False)
        if result.error is not ErrorCode.NONE and result.error not in GONE:
            reason = result.error_message or result.error.name
            raise RaykaError(result.error, f"The queue {self.name} can't be deleted: {reason}")
        await self._admin.delete_groups([self.name], raise_errors=False)


def require_queue(broker: Broker, name: str) -> None:
    """Require a queue: finished items are deleted, which would take a topic's records from its other readers.

    Raises INVALID_REQUEST.
    """
    if broker.image.topic_configs(name).get("retention.ms") != "-1":
        reason = f"The topic {name} is not a queue: its retention.ms is not -1"
        raise RaykaError(ErrorCode.INVALID_REQUEST, reason)


def gone(name: str) -> RaykaError:
    """The error of a queue that was shut down."""
    return RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The queue {name} was shut down")


def _texts(configs: dict[str, int]) -> dict[str, str]:
    return {name: str(value) for name, value in configs.items()}


def _now() -> float:
    return asyncio.get_running_loop().time()
