"""The share coordinator's core behind the gateway's port: one coordinator for all share-partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from rayka.coordinator.clock import Now
from rayka.coordinator.request import Request
from rayka.coordinator.result import Result
from rayka.coordinator.shares.coordinator import ShareCoordinator
from rayka.coordinator.shares.settings import ShareCoordinatorSettings
from rayka.coordinator.shares.spec import SHARES
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import RaykaError
from rayka.metadata.image import BrokerImage, MetadataImage

if TYPE_CHECKING:
    from tests.support.local_broker import LocalBroker

R = TypeVar("R")


class LocalShares:
    """`ports.Shares`. `failures`, while there are any, are what the next calls raise."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self.failures: list[RaykaError] = []
        self.core = ShareCoordinator(ShareCoordinatorSettings())
        self._offset = 0

    async def coordinator_of(self, coordinator_key: str) -> BrokerImage:
        return self._broker.image.brokers[self._broker.node_id]

    async def execute(self, request: Request[R]) -> R:
        if self.failures:
            raise self.failures.pop(0)
        query = SHARES.queries.get(type(request))
        if query is not None:
            found: R = query(self.core, request)
            return found
        now_ms = self._broker.now_ms()
        result = SHARES.commands[type(request)](self.core, request, Now(now_ms, now_ms))
        self._carry_out(result)
        answer: R = result.response
        return answer

    def follow(self, image: MetadataImage) -> None:
        """Tell the coordinator of topics."""
        topics = [TopicMetadata(topic.topic_id, topic.name, len(topic.partitions)) for topic in image.topics.values()]
        self._carry_out(self.core.on_new_metadata_image(Topics(topics, image.version)))

    def _carry_out(self, result: Result[Any]) -> None:
        for record in result.records:
            self.core.replay(record, self._offset)
            self._offset += 1
