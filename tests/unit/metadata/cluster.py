"""A controller with brokers and actors, driven as the shell does it: records first, then the response."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TypeVar

from rayka.metadata.commands import (
    ActorRegistration,
    BrokerRegistration,
    ConfigAlteration,
    ConfigOperation,
    ControllerResult,
    NewTopic,
    TopicResult,
)
from rayka.metadata.controller import Controller
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.metadata.records import ConfigResource, MetadataRecord, ResourceType
from rayka.types import TopicPartition

T = TypeVar("T")
DIRECTORY = uuid.UUID(int=10)


class Cluster:
    """`log` holds every batch of records that was applied."""

    def __init__(self, configs: dict[str, str] | None = None) -> None:
        self.controller = Controller(MetadataImage(), configs or {})
        self.log: list[tuple[MetadataRecord, ...]] = []
        self._ids = 0
        self.run(self.controller.create_cluster("test"))

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def run(self, result: ControllerResult[T]) -> T:
        if result.records:
            self.log.append(result.records)
            self.controller.replay(result.records)
        return result.response

    def ids(self, count: int) -> list[uuid.UUID]:
        """Ids that are never the same twice."""
        self._ids += count
        return [uuid.UUID(int=number) for number in range(self._ids - count + 1, self._ids + 1)]

    def add_broker(self, actors: int = 2, rack: str | None = None, life: int = 1, broker_id: int = -1) -> int:
        """Register a broker and its actors, named a<broker>-<index>."""
        number = self.image.next_broker_id if broker_id == -1 else broker_id
        registration = BrokerRegistration(
            f"node-{number}-{life}", f"host-{number}", 9092, broker_id, rack, (f"dir-{number}",), ("/data",)
        )
        registered = self.run(self.controller.register_broker(registration))
        for index in range(actors):
            self.start_actor(f"a{registered.broker_id}-{index}", registered.broker_id, life)
        return registered.broker_id

    def start_actor(self, name: str, broker_id: int, life: int = 1, directory_id: uuid.UUID = DIRECTORY) -> int:
        """Register an actor; returns its epoch."""
        registration = ActorRegistration(name, broker_id, f"/data/{name}", f"life-{life}", directory_id)
        return self.run(self.controller.register_actor(registration)).epoch

    def create(self, *topics: NewTopic, validate_only: bool = False) -> list[TopicResult]:
        return self.run(self.controller.create_topics(topics, validate_only, self.ids(len(topics))))

    def partition(self, topic: str, partition: int = 0) -> PartitionImage:
        found = self.image.partition(TopicPartition(topic, partition))
        assert found is not None
        return found


def alteration(type_: ResourceType, name: str, *operations: tuple[str, int, str | None]) -> ConfigAlteration:
    """A ConfigAlteration in short."""
    return ConfigAlteration(ConfigResource(type_, name), tuple(ConfigOperation(*each) for each in operations))


def errors(results: Sequence[TopicResult]) -> list[tuple[str, str | None]]:
    """The name of each result's error, and its message."""
    return [(result.error.name, result.error_message) for result in results]
