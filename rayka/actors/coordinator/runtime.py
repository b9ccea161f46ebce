"""The group coordinators of one process: a coordinator for each partition of `__consumer_offsets` that it leads."""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rayka.actors.background import BackgroundTasks, StopLoop
from rayka.actors.coordinator.context import CoordinatorContext
from rayka.actors.coordinator.log import CoordinatorLog
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig
from rayka.config.groups import GROUP_CONFIGS
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.replica.partition import Partition

OFFSETS_TOPIC = "__consumer_offsets"


class CoordinatorRuntime:
    """Follows which partitions of the offsets topic are led here, and passes commands on to their coordinators."""

    def __init__(self, server: ReplicaServer, config: BrokerConfig, broker_id: int) -> None:
        self._server = server
        self._config = config
        self._broker_id = broker_id
        self._settings = GroupSettings.parse(config)
        self._image = MetadataImage()
        self._topics = Topics()
        self._coordinators: dict[int, CoordinatorContext] = {}
        self._epochs: dict[int, int] = {}
        self._background = BackgroundTasks("group coordinators")
        self._loads: dict[int, asyncio.Task[None]] = {}

    def leads(self, partition: Partition) -> None:
        """A partition of the offsets topic is led here, from a new epoch on."""
        number = partition.topic_partition.partition
        if self._epochs.get(number) == partition.leader_epoch:
            return
        self.leaves(number)
        self._epochs[number] = partition.leader_epoch
        self._coordinators[number] = self._context(partition)
        self._loads[number] = self._background.repeat(
            f"load of {partition.topic_partition}", functools.partial(self._load, partition)
        )

    def _context(self, partition: Partition) -> CoordinatorContext:
        return CoordinatorContext(CoordinatorLog(partition, self._server), self._settings, self._group_configs())

    async def _load(self, partition: Partition) -> None:
        """Load once. After a failure the next attempt begins with an empty coordinator."""
        number = partition.topic_partition.partition
        try:
            await self._coordinators[number].load(lambda: self._topics)
        except Exception:
            self._coordinators[number] = self._context(partition)
            raise
        raise StopLoop

    def leaves(self, number: int) -> None:
        """A partition of the offsets topic is not led here any more."""
        self._epochs.pop(number, None)
        load = self._loads.pop(number, None)
        if load is not None:
            load.cancel()
        coordinator = self._coordinators.pop(number, None)
        if coordinator is not None:
            coordinator.resign()

    def resign(self) -> None:
        """Coordinate nothing any longer."""
        for number in list(self._coordinators):
            self.leaves(number)

    def image_changed(self, before: MetadataImage, after: MetadataImage) -> None:
        """Tell the coordinators of topics and of configs."""
        self._image = after
        if before.topics is not after.topics or before.brokers is not after.brokers:
            self._topics = topics_of(after)
            for coordinator in list(self._coordinators.values()):
                coordinator.metadata_changed(self._topics)
        if before.configs is not after.configs:
            self._configure(before, after)

    def _configure(self, before: MetadataImage, after: MetadataImage) -> None:
        self._settings = GroupSettings.parse(self._config.with_dynamic(after.broker_configs(self._broker_id)))
        for coordinator in self._coordinators.values():
            coordinator.configure_broker(self._settings.consumer)
        old, new = group_configs(before), group_configs(after)
        for group_id in old.keys() | new.keys():
            if old.get(group_id) != new.get(group_id):
                for coordinator in self._coordinators.values():
                    coordinator.configure(group_id, new.get(group_id, {}))

    def _group_configs(self) -> Mapping[str, Mapping[str, int]]:
        return group_configs(self._image)

    def execute(self, number: int, command: str, arguments: bytes | Sequence[Any], done: Callable[[Any], None]) -> None:
        """Carry out a command of one coordinator; between processes of ours arguments and response travel pickled."""
        if isinstance(arguments, bytes):
            arguments, done = pickle.loads(arguments), _pickled(done)
        coordinator = self._coordinators.get(number)
        if coordinator is None:
            done(RaykaError(ErrorCode.NOT_COORDINATOR))
        else:
            coordinator.execute(command, arguments, done)


def _pickled(done: Callable[[bytes], None]) -> Callable[[Any], None]:
    return lambda response: done(pickle.dumps(response, pickle.HIGHEST_PROTOCOL))


def topics_of(image: MetadataImage) -> Topics:
    """The cluster's topics as coordinators see them."""

    def racks(replicas: tuple[int, ...]) -> tuple[str, ...]:
        found = (image.brokers[broker_id].rack for broker_id in replicas if broker_id in image.brokers)
        return tuple(sorted({rack for rack in found if rack is not None}))

    return Topics(
        (
            TopicMetadata(
                topic.topic_id,
                topic.name,
                len(topic.partitions),
                tuple(racks(partition.replicas) for partition in topic.partitions),
            )
            for topic in image.topics.values()
        ),
        image.version,
    )


def group_configs(image: MetadataImage) -> dict[str, dict[str, int]]:
    """The dynamic configs of groups, by group id and name."""
    found: dict[str, dict[str, int]] = {}
    for resource, configs in image.configs.items():
        if isinstance(resource, ConfigResource) and resource.type == ResourceType.GROUP:
            found[resource.name] = {name: int(value) for name, value in configs.items() if name in GROUP_CONFIGS}
    return found
