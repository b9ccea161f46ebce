"""The group coordinator's core behind the gateway's port, in the event loop: one coordinator for all groups."""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import TYPE_CHECKING, Any, TypeVar

from rayka.actors.coordinator.runtime import group_configs
from rayka.coordinator.clock import Now
from rayka.coordinator.groups.coordinator import GroupCoordinator
from rayka.coordinator.groups.record_formats import decode, encode
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.groups.spec import COMMANDS, QUERIES
from rayka.coordinator.request import Request
from rayka.coordinator.result import Pending, Result
from rayka.coordinator.spec import CoordinatorConfigs, partition_for
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import RaykaError
from rayka.metadata.image import BrokerImage, MetadataImage

if TYPE_CHECKING:
    from tests.support.local_broker import LocalBroker

COORDINATORS = 3
R = TypeVar("R")


class LocalGroups:
    """`ports.Groups`. `log` is what the coordinator wrote; `failure`, when set, is what every call raises."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self.log: list[tuple[bytes, bytes | None]] = []
        self.failure: RaykaError | None = None
        self.core = GroupCoordinator(GroupSettings.parse(broker.config))
        self.core.on_loaded(self._now())
        self._waiting: dict[int, Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    async def coordinator_of(self, group_id: str) -> BrokerImage:
        self._check()
        return self._broker.image.brokers[self._broker.node_id]

    async def execute(self, request: Request[R]) -> R:
        self._check()
        kind = type(request)
        if kind in QUERIES:
            found: R = QUERIES[kind](self.core, request)
            return found
        result = COMMANDS[kind](self.core, request, self._now())
        answer: R
        if isinstance(result.response, Pending):
            future = self._waiting[result.response.request_id] = self._loop.create_future()
            self._carry_out(result)
            answer = await future
        else:
            self._carry_out(result)
            answer = result.response
        return answer

    async def execute_all(self, request: Request[R], node_id: int | None = None) -> list[R]:
        return [await self.execute(request)]

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, COORDINATORS)

    def follow(self, image: MetadataImage) -> None:
        """Tell the coordinator of topics and of groups' configs."""
        topics = [TopicMetadata(topic.topic_id, topic.name, len(topic.partitions)) for topic in image.topics.values()]
        self._carry_out(self.core.on_new_metadata_image(Topics(topics, image.version)))
        self.core.on_new_configs(CoordinatorConfigs(self._broker.config, group_configs(image)))

    def close(self) -> None:
        """Answer all who wait."""
        if self._timer is not None:
            self._timer.cancel()
        self._deliver(self.core.unload())

    def _now(self) -> Now:
        return Now(self._broker.now_ms(), self._broker.now_ms())

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _carry_out(self, result: Result[Any]) -> None:
        for record in result.records:
            self.log.append(encode(record))
            self.core.replay(record, len(self.log) - 1)
        completions = () if result.step is None else self.core.commit(result.step, self._now())
        self._deliver((*result.completions, *completions))
        self._schedule()

    def _deliver(self, completions: Any) -> None:
        for handle, response in completions:
            future = self._waiting.pop(handle, None)
            if future is not None and not future.done():
                future.set_result(response)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.core.next_deadline()
        if deadline is not None:
            delay_s = max(0.001, (deadline - self._now().ms) / 1000)
            self._timer = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        while (result := self.core.expire(self._now())) is not None:
            self._carry_out(result)
        self._schedule()

    def records(self) -> list[Any]:
        """The log, decoded."""
        return [decode(key, value) for key, value in self.log]
