"""Sends the requests of one process to the coordinators of one kind.

For groups it implements `gateway.ports.Groups`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from rayka.actors.channel.link import result_setter
from rayka.actors.channel.messages import MessageCodec
from rayka.actors.channel.requests import Coordinate
from rayka.actors.channel.router import Router
from rayka.actors.channel.socket import ChannelClosed
from rayka.actors.controller.client import ControllerClient
from rayka.config import BrokerConfig
from rayka.coordinator.request import Request
from rayka.coordinator.spec import CoordinatorSpec, partition_for
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import NewTopic
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.types import TopicPartition

# A join waits for the group: as long as the longest rebalance timeout that a client may ask for.
_LONGEST_WAIT_S = 3600.0
_CREATE_TIMEOUT_MS = 30_000

R = TypeVar("R")


class CoordinatorRouter:
    """Takes requests to their coordinators. `image` and `config` give what is newest."""

    def __init__(
        self,
        spec: CoordinatorSpec[Any],
        router: Router,
        controller: ControllerClient,
        image: Callable[[], MetadataImage],
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._spec = spec
        self._codec = MessageCodec(spec.message_types())
        self._router = router
        self._controller = controller
        self._image = image
        self._config = config
        self._creation = asyncio.Lock()

    def partition_of(self, coordinator_key: str) -> int:
        """The partition of the coordinator's topic that a group id or transactional id hashes to."""
        topic = self._image().topics.get(self._spec.topic)
        default = int(self._config()[self._spec.num_partitions_config])
        return partition_for(coordinator_key, default if topic is None else len(topic.partitions))

    async def coordinator_of(self, coordinator_key: str) -> BrokerImage:
        """The node of a coordinator. Creates the topic when it is first needed."""
        if self._spec.topic not in self._image().topics:
            await self._create_topic()
        image = self._image()
        partition = image.partition(TopicPartition(self._spec.topic, self.partition_of(coordinator_key)))
        broker = image.brokers.get(partition.leader) if partition is not None else None
        if broker is None:
            reason = f"{self._spec.name} {coordinator_key!r} has no coordinator now"
            raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
        return broker

    async def execute(self, request: Request[R]) -> R:
        """Carry out a request at its coordinator."""
        return await self._ask(self.partition_of(request.coordinator_key), request)

    async def execute_all(self, request: Request[R], node_id: int | None = None) -> list[R]:
        """Carry out a request at every coordinator, or every one of a node.

        A process that does not coordinate a partition yet is loading it: a list without what is there would be wrong,
        and tools do not ask again after NOT_COORDINATOR. Raises COORDINATOR_LOAD_IN_PROGRESS.
        """
        topic = self._image().topics.get(self._spec.topic)
        partitions = topic.partitions if topic is not None else ()
        asked = (number for number, one in enumerate(partitions) if node_id is None or one.leader == node_id)
        try:
            return list(await asyncio.gather(*(self._ask(number, request) for number in asked)))
        except RaykaError as error:
            if error.code is not ErrorCode.NOT_COORDINATOR:
                raise
            raise RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from error

    async def _ask(self, number: int, request: Request[R]) -> R:
        """Raises COORDINATOR_NOT_AVAILABLE also if there is no answer in time.

        Clients look for the coordinator after that; for REQUEST_TIMED_OUT of a join they have no rule, and end.
        """
        link = self._router.link(self._leader_of(number))
        message = request if link.is_in_process else self._codec.encode(request)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        link.ask(Coordinate(self._spec.name, number, message), result_setter(future), _LONGEST_WAIT_S)
        answer = await future
        if isinstance(answer, ChannelClosed):
            raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(answer))
        if isinstance(answer, RaykaError):
            is_late = answer.code is ErrorCode.REQUEST_TIMED_OUT
            raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, answer.message) if is_late else answer
        response: Any = answer if link.is_in_process else self._codec.decode(answer)
        if isinstance(response, RaykaError):
            raise response
        found: R = response
        return found

    def _leader_of(self, number: int) -> str:
        """The actor that leads a partition of the topic."""
        topic_partition = TopicPartition(self._spec.topic, number)
        found = self._router.locate(topic_partition)
        if found is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise RaykaError(ErrorCode.NOT_COORDINATOR, f"{topic_partition} does not exist")
        if isinstance(found, ErrorCode):
            raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic_partition} has no leader now")
        return found[0]

    async def _create_topic(self) -> None:
        """Create the topic, with its own settings. Another process may do so at the same time."""
        async with self._creation:
            if self._spec.topic in self._image().topics:
                return
            (result,) = await self._controller.create_topics(
                [NewTopic(self._spec.topic)], validate_only=False, timeout_ms=_CREATE_TIMEOUT_MS
            )
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, result.error_message or result.error.name)
