"""The admin client: topics, settings, offsets, groups and log directories, in plain types."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rayka.client.admin.groups import GroupAdmin
from rayka.client.admin.share_records import share_records, table_of
from rayka.client.consumer.offsets import OffsetAndTimestamp, absence, look_up
from rayka.client.consumer.positions import require_topic_partition
from rayka.client.forms import Shell, at_home, blocking
from rayka.client.unpicklable import Unpicklable
from rayka.config import ConfigEntry, describe_broker, describe_default_broker, describe_topic
from rayka.config.describe import describe_group, to_text
from rayka.config.groups import GROUP_CONFIGS, group_defaults
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.metadata.commands import (
    AlterOperation,
    ConfigAlteration,
    ConfigOperation,
    NewPartitions,
    NewTopic,
    TopicResult,
)
from rayka.metadata.image import BrokerImage, TopicImage
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.types import IsolationLevel, LogDirDescription, TopicPartition, is_number

if TYPE_CHECKING:
    import pyarrow as pa

_TIMEOUT_MS = 30_000
_RETRY_BACKOFF_MS = 100

Resource: TypeAlias = str | int | ConfigResource
"""What has settings: a topic (its name), a broker (its id), or a `ConfigResource`."""
Setting: TypeAlias = str | int | float | bool | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster and its live brokers."""

    cluster_id: str
    brokers: tuple[BrokerImage, ...]


class AsyncAdmin(Unpicklable, GroupAdmin):
    """The admin client: topics, settings, offsets, groups; for asyncio, in any event loop.

    It lives in the loop that `broker` belongs to: `home`, or else the running one. Every method raises RaykaError with
    Kafka's error code. If a call names several topics and some fail, the others are still carried out. With
    `raise_errors=False` such a call returns all results instead of raising an error.
    """

    def __init__(self, broker: Broker, home: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(broker, home or asyncio.get_running_loop())

    @at_home
    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, Setting] | None = None,
        *,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> TopicResult:
        """Create a topic. When this returns, its leaders are ready. -1 means the broker's default.

        `assignments` (partition -> broker ids) replaces both numbers.
        """
        topic = NewTopic(name, partitions, replication_factor, assignments, _texts(configs))
        return (await self.create_topics([topic], validate_only=validate_only, timeout_ms=timeout_ms))[0]

    @at_home
    async def create_topics(
        self,
        topics: Iterable[NewTopic | str],
        *,
        validate_only: bool = False,
        timeout_ms: int = _TIMEOUT_MS,
        raise_errors: bool = True,
    ) -> list[TopicResult]:
        """Create topics; a plain name is a topic with the broker's defaults."""
        wanted = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
        results = await self._broker.controller.create_topics(
            wanted, validate_only=validate_only, timeout_ms=timeout_ms
        )
        return _checked(results, "create", raise_errors)

    @at_home
    async def delete_topic(self, name: str, *, timeout_ms: int = _TIMEOUT_MS) -> None:
        """Delete a topic and its records."""
        await self.delete_topics([name], timeout_ms=timeout_ms)

    @at_home
    async def delete_topics(
        self, names: Iterable[str], *, timeout_ms: int = _TIMEOUT_MS, raise_errors: bool = True
    ) -> list[TopicResult]:
        """Delete topics and their records."""
        results = await self._broker.controller.delete_topics(list(_names(names)), timeout_ms)
        return _checked(results, "delete", raise_errors)

    @at_home
    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics."""
        topics = self._broker.image.topics.values()
        return sorted(topic.name for topic in topics if include_internal or not topic.is_internal)

    @at_home
    async def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicImage]:
        """Topics with their partitions, leaders and replicas; all if none is named.

        Raises UNKNOWN_TOPIC_OR_PARTITION.
        """
        wanted = await self.list_topics() if names is None else list(_names(names))
        return [self._topic(name) for name in wanted]

    @at_home
    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout_ms: int = _TIMEOUT_MS,
        raise_errors: bool = True,
    ) -> list[TopicResult]:
        """Increase the number of partitions of topics: name -> new total."""
        wanted = [NewPartitions(name, count) for name, count in counts.items()]
        results = await self._broker.controller.create_partitions(wanted, validate_only, timeout_ms)
        return _checked(results, "add partitions to", raise_errors)

    @at_home
    async def describe_configs(self, resource: Resource, names: Iterable[str] | None = None) -> dict[str, ConfigEntry]:
        """The settings of a topic, broker or group by name, each with its source; all if none is named.

        For a group use `ConfigResource(ResourceType.GROUP, "billing")`; the group need not exist.
        """
        kind, name = _resource(resource)
        image, config = self._broker.image, self._broker.config
        wanted = None if names is None else set(_names(names))
        if kind is ResourceType.TOPIC:
            self._topic(name)
            own = image.own_broker_configs(self._broker.node_id)
            entries = describe_topic(
                image.topic_configs(name), config.static, image.default_broker_configs, own, wanted
            )
        elif kind is ResourceType.GROUP:
            entries = self._describe_group(name, wanted)
        elif name:
            broker_id = self._broker_id(name)
            static = config.static if broker_id == self._broker.node_id else {}
            own = image.own_broker_configs(broker_id)
            entries = describe_broker(static, image.default_broker_configs, own, wanted)
        else:
            entries = describe_default_broker(image.default_broker_configs, wanted)
        return {entry.name: entry for entry in entries}

    def _describe_group(self, group_id: str, wanted: set[str] | None) -> tuple[ConfigEntry, ...]:
        if not group_id:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "the name of a group must not be empty")
        defaults = {own: to_text(value) or "" for own, value in group_defaults(self._broker.config).items()}
        own = self._broker.image.configs.get(ConfigResource(ResourceType.GROUP, group_id), {})
        return describe_group(GROUP_CONFIGS, own, defaults, wanted)

    @at_home
    async def alter_configs(
        self, resource: Resource, configs: Mapping[str, Setting], *, validate_only: bool = False
    ) -> None:
        """Change settings of a topic, broker or group. None restores a default. Other settings stay as they are.

        Broker "" means all brokers: `ConfigResource(ResourceType.BROKER, "")`. Raises INVALID_CONFIG.
        """
        operations = tuple(
            ConfigOperation(name, AlterOperation.DELETE if text is None else AlterOperation.SET, text)
            for name, text in _texts(configs).items()
        )
        alteration = ConfigAlteration(_resource(resource), operations)
        results = await self._broker.controller.incremental_alter_configs([alteration], validate_only)
        for result in results:
            if result.error is not ErrorCode.NONE:
                raise RaykaError(result.error, result.error_message or f"{result.resource.name} can't be altered")

    @at_home
    async def delete_records(
        self, offsets: Mapping[tuple[str, int], int], *, timeout_ms: int = _TIMEOUT_MS
    ) -> dict[TopicPartition, int]:
        """Delete the records before these offsets (-1: all), and return the new log start offsets."""
        wanted = {require_topic_partition(partition): offset for partition, offset in offsets.items()}
        results = await self._broker.partitions.delete_records(wanted, timeout_ms)
        for topic_partition, result in results.items():
            if result.error:
                reason = f"records of {topic_partition} before {wanted[topic_partition]} can't be deleted"
                raise RaykaError(ErrorCode(result.error), absence(self._broker.image, topic_partition) or reason)
        return {topic_partition: result.low_watermark for topic_partition, result in results.items()}

    @at_home
    async def list_offsets(
        self,
        timestamps: Mapping[tuple[str, int], int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The offset of each timestamp (ms since the epoch) or `OffsetSpec`; -1 where there is none."""
        found = await look_up(
            self._broker,
            {require_topic_partition(partition): timestamp for partition, timestamp in timestamps.items()},
            isolation,
            timeout_ms=timeout_ms,
            retry_backoff_ms=_RETRY_BACKOFF_MS,
        )
        return {
            topic_partition: OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)
            for topic_partition, answer in found.items()
        }

    @at_home
    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's id and its live brokers."""
        image = self._broker.image
        brokers = sorted(image.brokers.values(), key=lambda broker: broker.broker_id)
        return ClusterDescription(image.cluster_id, tuple(broker for broker in brokers if not broker.fenced))

    @at_home
    async def describe_log_dirs(self) -> list[LogDirDescription]:
        """The log directories of this node and the replicas in them. Sizes are in bytes."""
        return await self._broker.partitions.describe_log_dirs()

    @at_home
    async def describe_share_records(self, group_id: str) -> pa.Table:
        """The records in flight of a share group, as an Arrow table (`to_pandas()` makes a DataFrame).

        A row is a range of records in the same state (AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED), with
        their delivery count, the member that has acquired them, and the remaining milliseconds of its lock or of their
        delay. Raises GROUP_ID_NOT_FOUND.
        """
        return table_of(await share_records(self._broker, group_id))

    def _topic(self, name: str) -> TopicImage:
        topic = self._broker.image.topics.get(name)
        if topic is None:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        return topic

    def _broker_id(self, name: str) -> int:
        if is_number(name) and int(name) in self._broker.image.brokers:
            return int(name)
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"there is no broker {name}")


class Admin(Unpicklable, Shell[AsyncAdmin]):
    """The blocking form of `AsyncAdmin`; any number of threads may use it."""

    create_topic = blocking(AsyncAdmin.create_topic)
    create_topics = blocking(AsyncAdmin.create_topics)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    delete_topics = blocking(AsyncAdmin.delete_topics)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topics = blocking(AsyncAdmin.describe_topics)
    create_partitions = blocking(AsyncAdmin.create_partitions)
    describe_configs = blocking(AsyncAdmin.describe_configs)
    alter_configs = blocking(AsyncAdmin.alter_configs)
    delete_records = blocking(AsyncAdmin.delete_records)
    list_offsets = blocking(AsyncAdmin.list_offsets)
    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    describe_log_dirs = blocking(AsyncAdmin.describe_log_dirs)
    describe_share_records = blocking(AsyncAdmin.describe_share_records)
    list_groups = blocking(AsyncAdmin.list_groups)
    describe_group = blocking(AsyncAdmin.describe_group)
    reset_offsets = blocking(AsyncAdmin.reset_offsets)
    set_offsets = blocking(AsyncAdmin.set_offsets)
    delete_offsets = blocking(AsyncAdmin.delete_offsets)
    delete_groups = blocking(AsyncAdmin.delete_groups)


def _names(names: Iterable[str]) -> Iterable[str]:
    """Guards against a single name, which would be mistaken for its letters."""
    if isinstance(names, str):
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"names must be a list of names, not the str {names!r}")
    return names


def _resource(resource: Resource) -> ConfigResource:
    if isinstance(resource, ConfigResource):
        return resource
    if isinstance(resource, int):
        return ConfigResource(ResourceType.BROKER, str(resource))
    return ConfigResource(ResourceType.TOPIC, resource)


def _texts(configs: Mapping[str, Setting] | None) -> dict[str, str | None]:
    return {name: _text(value) for name, value in (configs or {}).items()}


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else ",".join(value)


def _checked(results: list[TopicResult], what: str, raise_errors: bool) -> list[TopicResult]:
    failed = [result for result in results if result.error is not ErrorCode.NONE]
    if failed and raise_errors:
        reasons = "; ".join(f"{result.name}: {result.error_message or result.error.name}" for result in failed)
        raise RaykaError(failed[0].error, f"can't {what} {reasons}")
    return results
