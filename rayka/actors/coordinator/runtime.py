"""The coordinators of one kind in one process: one for each partition of their topic that it leads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic

from rayka.actors.channel.messages import MessageCodec
from rayka.actors.coordinator.context import CoordinatorContext, Respond
from rayka.actors.coordinator.log import CoordinatorLog
from rayka.actors.coordinator.outside import Outside
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig
from rayka.config.definition import ConfigValue
from rayka.config.groups import GROUP_CONFIGS
from rayka.coordinator.request import Request
from rayka.coordinator.spec import C, CoordinatorConfigs, CoordinatorSpec
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.replica.partition import Partition
from rayka.types import TxnMarker


class CoordinatorRuntime(Generic[C]):
    """Follows which partitions of the topic are led here, and passes requests to their coordinators."""

    def __init__(self, spec: CoordinatorSpec[C], server: ReplicaServer, config: BrokerConfig, broker_id: int) -> None:
        self.topic = spec.topic
        self._spec = spec
        self._server = server
        self._config = config
        self._broker_id = broker_id
        self._codec = MessageCodec(spec.message_types())
        self._image = MetadataImage()
        self._topics = Topics()
        self._configs = CoordinatorConfigs(config)
        self._coordinators: dict[int, CoordinatorContext[C]] = {}
        self._epochs: dict[int, int] = {}
        self._has_resigned = False
        self.outside: Outside | None = None

    def leads(self, partition: Partition) -> None:
        """A partition of the topic is led here, from a new epoch on. Without effect after `resign`."""
        number = partition.topic_partition.partition
        if self._has_resigned or self._epochs.get(number) == partition.leader_epoch:
            return
        self.leaves(number)
        self._epochs[number] = partition.leader_epoch
        log = CoordinatorLog(partition, self._server)
        coordinator = CoordinatorContext(
            self._spec, log, lambda: self._topics, lambda: self._configs, lambda: self.outside
        )
        self._coordinators[number] = coordinator
        coordinator.start()

    def leaves(self, number: int) -> None:
        """A partition of the topic is not led here any more."""
        self._epochs.pop(number, None)
        coordinator = self._coordinators.pop(number, None)
        if coordinator is not None:
            coordinator.resign()

    def resign(self) -> None:
        """Stop all coordinators for good: the process stops, or its log directory is offline.

        A new image may still come. A coordinator that it started would expire sessions, and write that behind the
        marker of a clean shutdown.
        """
        self._has_resigned = True
        for number in list(self._coordinators):
            self.leaves(number)

    def take_image(self, image: MetadataImage) -> None:
        """Let the coordinators that load from now on begin with these topics and configs.

        One that has loaded while the logs of other partitions are still opened would know no topics otherwise: it
        would assign nothing to its groups, and delete their state for want of the topics at last.
        """
        before, self._image = self._image, image
        if before.topics is not image.topics or before.brokers is not image.brokers:
            self._topics = topics_of(image)
        if before.configs is not image.configs:
            broker = self._config.with_dynamic(image.broker_configs(self._broker_id))
            self._configs = CoordinatorConfigs(broker, group_configs(image))

    def image_changed(self, before: MetadataImage, after: MetadataImage) -> None:
        """Tell the coordinators about topics and configs."""
        self.take_image(after)
        if before.topics is not after.topics or before.brokers is not after.brokers:
            for coordinator in list(self._coordinators.values()):
                coordinator.on_new_metadata_image()
        if before.configs is not after.configs:
            for coordinator in list(self._coordinators.values()):
                coordinator.on_new_configs()

    def write_marker(self, number: int, marker: TxnMarker, done: Callable[[ErrorCode], None]) -> None:
        """Write the end of a transaction to a partition of the topic; `done` gets NONE when it is durable."""
        coordinator = self._coordinators.get(number)
        if coordinator is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            coordinator.write_marker(marker, done)

    def execute(self, number: int, message: bytes | Request[Any], respond: Callable[[Any], None]) -> None:
        """Carry out a request of one coordinator. A caller in another process sends bytes and gets bytes.

        Bytes that are not a request are answered with INVALID_REQUEST.
        """
        if not isinstance(message, bytes):
            self._execute(number, message, respond)
            return
        try:
            request = self._codec.decode(message)
        except RaykaError as error:
            respond(self._codec.encode(error))
            return
        self._execute(number, request, lambda response: respond(self._encode(response)))

    def _execute(self, number: int, request: Any, respond: Respond) -> None:
        coordinator = self._coordinators.get(number)
        if coordinator is None:
            respond(RaykaError(ErrorCode.NOT_COORDINATOR, f"this process does not lead {self.topic}-{number}"))
        else:
            coordinator.execute(request, respond)

    def _encode(self, response: Any) -> bytes:
        try:
            return self._codec.encode(response)
        except RaykaError as error:
            return self._codec.encode(RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message))


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


def group_configs(image: MetadataImage) -> Mapping[str, Mapping[str, ConfigValue]]:
    """The dynamic configs of groups, by group id and name."""
    return {
        resource.name: {
            name: GROUP_CONFIGS[name].parse(value) for name, value in configs.items() if name in GROUP_CONFIGS
        }
        for resource, configs in image.configs.items()
        if isinstance(resource, ConfigResource) and resource.type == ResourceType.GROUP
    }
