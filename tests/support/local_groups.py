"""The group coordinator's core behind the gateway's port, in the event loop: one coordinator for all groups."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import Future
from typing import TYPE_CHECKING, Any

from rayka.config.groups import GROUP_CONFIGS
from rayka.coordinator.clock import Now
from rayka.coordinator.groups.coordinator import GroupCoordinator, partition_for_group
from rayka.coordinator.groups.record_formats import decode, encode
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.result import Pending, Result
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import RaykaError
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.metadata.records import ConfigResource, ResourceType

if TYPE_CHECKING:
    from tests.support.local_broker import LocalBroker

COORDINATORS = 3


class LocalGroups:
    """`ports.Groups`. `log` is what the coordinator wrote; `failure`, when set, is what every call raises."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self.log: list[tuple[bytes, bytes | None]] = []
        self.failure: RaykaError | None = None
        self.core = GroupCoordinator(GroupSettings.parse(broker.config))
        self.core.loaded(self._now())
        self._waiting: dict[int, Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    async def coordinator_of(self, group_id: str) -> BrokerImage:
        self._check()
        return self._broker.image.brokers[self._broker.node_id]

    async def execute(self, group_id: str, command: str, *arguments: Any) -> Any:
        self._check()
        method = getattr(self.core, command)
        timed = "now" in inspect.signature(method).parameters
        result = method(*arguments, self._now()) if timed else method(*arguments)
        response = self._carry_out(result) if isinstance(result, Result) else result
        if isinstance(response, Pending):
            future = self._waiting[response.handle] = self._loop.create_future()
            response = await future
        return response

    async def execute_all(self, command: str, *arguments: Any) -> list[Any]:
        return [await self.execute("", command, *arguments), ()]

    def partition_of(self, group_id: str) -> int:
        return partition_for_group(group_id, COORDINATORS)

    def follow(self, image: MetadataImage) -> None:
        """Tell the coordinator of topics and of groups' configs."""
        topics = [TopicMetadata(topic.topic_id, topic.name, len(topic.partitions)) for topic in image.topics.values()]
        self._carry_out(self.core.metadata_changed(Topics(topics, image.version)))
        for resource, configs in image.configs.items():
            if isinstance(resource, ConfigResource) and resource.type is ResourceType.GROUP:
                self.core.configure(
                    resource.name, {name: int(configs[name]) for name in GROUP_CONFIGS if name in configs}
                )

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

    def _carry_out(self, result: Result[Any]) -> Any:
        base_offset = len(self.log)
        self.log += [encode(record) for record in result.records]
        if result.records or result.on_commit:
            self.core.commit(result, base_offset)
        self._deliver(result.completions)
        self._schedule()
        return result.response

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
