"""The ways to the group coordinators, from one process: implements `gateway.ports.Groups`."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

from rayka.actors.channel.router import Router
from rayka.actors.channel.socket import ChannelClosed
from rayka.actors.controller.client import ControllerClient
from rayka.actors.coordinator.runtime import OFFSETS_TOPIC
from rayka.config import BrokerConfig
from rayka.coordinator.groups.coordinator import partition_for_group
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import NewTopic
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.types import TopicPartition

# A join waits for the group: as long as the longest rebalance timeout that a client may ask for.
_LONGEST_WAIT_S = 3600.0
_CREATE_TIMEOUT_MS = 30_000


class GroupRouter:
    """Takes commands to the coordinator of their group. `image` and `config` give what is newest."""

    def __init__(
        self,
        router: Router,
        controller: ControllerClient,
        image: Callable[[], MetadataImage],
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._router = router
        self._controller = controller
        self._image = image
        self._config = config
        self._creation = asyncio.Lock()

    def partition_of(self, group_id: str) -> int:
        """The partition of the topic of offsets that the group hashes to."""
        topic = self._image().topics.get(OFFSETS_TOPIC)
        count = len(topic.partitions) if topic is not None else int(self._config()["offsets.topic.num.partitions"])
        return partition_for_group(group_id, count)

    async def coordinator_of(self, group_id: str) -> BrokerImage:
        """The node that has the group's coordinator."""
        if OFFSETS_TOPIC not in self._image().topics:
            await self._create_topic()
        image = self._image()
        partition = image.partition(TopicPartition(OFFSETS_TOPIC, self.partition_of(group_id)))
        broker = image.brokers.get(partition.leader) if partition is not None else None
        if broker is None:
            raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id!r} has no coordinator now")
        return broker

    async def execute(self, group_id: str, command: str, *arguments: Any) -> Any:
        """Carry out a command at the group's coordinator."""
        return await self._ask(self.partition_of(group_id), command, arguments)

    async def execute_all(self, command: str, *arguments: Any) -> list[Any]:
        """Carry out a command at every coordinator."""
        topic = self._image().topics.get(OFFSETS_TOPIC)
        numbers = range(len(topic.partitions)) if topic is not None else ()
        return list(await asyncio.gather(*(self._ask(number, command, arguments) for number in numbers)))

    async def _ask(self, number: int, command: str, arguments: tuple[Any, ...]) -> Any:
        found = self._router.locate(TopicPartition(OFFSETS_TOPIC, number))
        if isinstance(found, ErrorCode):
            missing = found is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise RaykaError(ErrorCode.NOT_COORDINATOR if missing else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        actor_name, _ = found
        is_in_process = self._router.link(actor_name).is_in_process
        packed = arguments if is_in_process else pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL)
        answer = await self._router.call(actor_name, "group", number, command, packed, timeout_s=_LONGEST_WAIT_S)
        if isinstance(answer, ChannelClosed):
            raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(answer))
        response = answer if is_in_process else pickle.loads(answer)
        if isinstance(response, RaykaError):
            raise response
        return response

    async def _create_topic(self) -> None:
        """Make the topic of offsets. Somebody else may do so at the same time."""
        async with self._creation:
            if OFFSETS_TOPIC in self._image().topics:
                return
            config = self._config()
            brokers = sum(not broker.fenced for broker in self._image().brokers.values())
            topic = NewTopic(
                OFFSETS_TOPIC,
                num_partitions=int(config["offsets.topic.num.partitions"]),
                replication_factor=max(1, min(int(config["offsets.topic.replication.factor"]), brokers)),
                configs={
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config["offsets.topic.segment.bytes"]),
                },
            )
            (result,) = await self._controller.create_topics(
                [topic], validate_only=False, timeout_ms=_CREATE_TIMEOUT_MS
            )
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, result.error_message or result.error.name)
