"""Creating topics and partitions, and deleting topics.

Names follow Kafka's documentation of topics, and KIP-4.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rayka.config import BrokerConfig, check_topic_configs, describe_topic
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import ControllerResult, NewPartitions, NewTopic, TopicResult
from rayka.metadata.image import MetadataImage, PartitionImage, TopicImage
from rayka.metadata.internal_topics import check_may_grow, with_own_settings
from rayka.metadata.placement import Placement, check_assignment, check_consecutive
from rayka.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from rayka.metadata.values import UNASSIGNED

MAX_PARTITIONS_PER_REQUEST = 10_000
MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
CLUSTER_METADATA_TOPIC = "__cluster_metadata"


def check_topic_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION if no topic may have this name."""
    reason = _reason(name)
    if reason:
        raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def is_topic_name(name: str) -> bool:
    """Whether a topic may have this name."""
    return _reason(name) is None


def _reason(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


class TopicCollisions:
    """Finds names that differ only in '.' and '_', which would share the name of a metric."""

    def __init__(self, names: Iterable[str]) -> None:
        self._taken: dict[str, str] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """The name is taken from now on."""
        if "." in name or "_" in name:
            self._taken.setdefault(name.replace(".", "_"), name)

    def check(self, name: str) -> None:
        """Raises INVALID_TOPIC_EXCEPTION if the name collides with one that is taken."""
        other = self._taken.get(name.replace(".", "_"))
        if other is not None and ("." in name or "_" in name):
            raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


class TopicCreation:
    """One CreateTopics request against an image; topics that come later see the earlier ones."""

    def __init__(self, image: MetadataImage, config: BrokerConfig) -> None:
        self._image = image
        self._config = config
        self._placement = Placement(image)
        self._collisions = TopicCollisions(image.topics)
        self._partitions = 0

    def create_all(
        self, topics: Sequence[NewTopic], topic_ids: Sequence[uuid.UUID], validate_only: bool
    ) -> ControllerResult[list[TopicResult]]:
        """Each topic is created or not on its own; `topic_ids` are fresh and as many as `topics`."""
        requested = Counter(topic.name for topic in topics)
        records: list[MetadataRecord] = []
        results = []
        for topic, topic_id in zip(topics, topic_ids, strict=True):
            try:
                if requested[topic.name] > 1:
                    raise RaykaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                created, result = self._create(topic, topic_id)
                records += created
                results.append(result)
            except RaykaError as error:
                results.append(TopicResult(topic.name, error=error.code, error_message=error.message))
        return ControllerResult(() if validate_only else tuple(records), results)

    def _create(self, topic: NewTopic, topic_id: uuid.UUID) -> tuple[list[MetadataRecord], TopicResult]:
        self._check_name(topic.name)
        topic = with_own_settings(topic, self._config, self._placement.broker_count)
        configs = self._configs(topic)
        replicas = self._assignments(topic)
        records: list[MetadataRecord] = [
            TopicRecord(TopicImage(topic.name, topic_id, is_internal=topic.name in INTERNAL_TOPICS))
        ]
        records += (
            ConfigRecord(ResourceType.TOPIC, topic.name, name, value) for name, value in sorted(configs.items())
        )
        records += new_partitions(self._placement, topic_id, 0, replicas)
        self._partitions += len(replicas)
        self._collisions.add(topic.name)
        entries = describe_topic(configs, self._config.static, self._image.default_broker_configs)
        return records, TopicResult(
            topic.name,
            topic_id,
            num_partitions=len(replicas),
            replication_factor=len(replicas[0]),
            configs=entries,
        )

    def _check_name(self, name: str) -> None:
        check_topic_name(name)
        if name == CLUSTER_METADATA_TOPIC:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        if name in self._image.topics:
            raise RaykaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        self._collisions.check(name)

    def _configs(self, topic: NewTopic) -> dict[str, str]:
        missing = sorted(name for name, value in topic.configs.items() if value is None)
        if missing:
            message = f"Null value not supported for topic configs: {','.join(missing)}"
            raise RaykaError(ErrorCode.INVALID_CONFIG, message)
        configs = {name: value for name, value in topic.configs.items() if value is not None}
        check_topic_configs(configs, self._config.texts)
        return configs

    def _assignments(self, topic: NewTopic) -> Sequence[Sequence[int]]:
        if topic.assignments:
            return self._manual_assignments(topic, topic.assignments)
        if topic.replication_factor < -1 or topic.replication_factor == 0:
            raise RaykaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if topic.num_partitions < -1 or topic.num_partitions == 0:
            raise RaykaError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        partitions = self._config["num.partitions"] if topic.num_partitions == -1 else topic.num_partitions
        factor = (
            self._config["default.replication.factor"] if topic.replication_factor == -1 else topic.replication_factor
        )
        _check_size(self._partitions + partitions)
        return self._placement.assign(partitions, factor)

    def _manual_assignments(self, topic: NewTopic, assignments: Mapping[int, Sequence[int]]) -> Sequence[Sequence[int]]:
        for value, what in ((topic.replication_factor, "replication factor"), (topic.num_partitions, "numPartitions")):
            if value != -1:
                raise RaykaError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        factor = None
        for partition, replicas in sorted(assignments.items()):
            check_assignment(self._image, self._placement, partition, replicas, factor)
            factor = len(replicas)
        check_consecutive(assignments)
        _check_size(self._partitions + len(assignments))
        return [assignments[partition] for partition in range(len(assignments))]


def new_partitions(
    placement: Placement, topic_id: uuid.UUID, first: int, assignments: Sequence[Sequence[int]]
) -> Iterator[PartitionRecord]:
    """The records of partitions `first`, `first + 1` ... with these replicas."""
    for index, replicas in enumerate(assignments):
        isr = tuple(broker_id for broker_id in replicas if placement.is_active(broker_id))
        image = PartitionImage(
            partition=first + index,
            leader=isr[0],
            leader_epoch=0,
            replicas=tuple(replicas),
            isr=isr,
            partition_epoch=0,
            actors=placement.actors_for(replicas),
            directories=(UNASSIGNED,) * len(replicas),
        )
        yield PartitionRecord(topic_id, image)


def create_partitions(
    image: MetadataImage, requests: Sequence[NewPartitions], validate_only: bool
) -> ControllerResult[list[TopicResult]]:
    """Add partitions to topics, each topic on its own."""
    requested = Counter(request.name for request in requests)
    placement = Placement(image)
    records: list[MetadataRecord] = []
    results = []
    for request in requests:
        try:
            if requested[request.name] > 1:
                raise RaykaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _check_size(len(records) + request.count, "additional partitions")
            records += _add_partitions(image, placement, request)
            results.append(TopicResult(request.name, image.topics[request.name].topic_id))
        except RaykaError as error:
            results.append(TopicResult(request.name, error=error.code, error_message=error.message))
    return ControllerResult(() if validate_only else tuple(records), results)


def _add_partitions(image: MetadataImage, placement: Placement, request: NewPartitions) -> list[PartitionRecord]:
    topic = image.topics.get(request.name)
    if topic is None:
        raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    check_may_grow(request.name)
    present = len(topic.partitions)
    added = request.count - present
    if added == 0:
        raise RaykaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if added < 0:
        raise RaykaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {request.name} currently has {present} partition(s); {request.count} would not be an increase.",
        )
    factor = len(topic.partitions[0].replicas)
    assignments = request.assignments
    if assignments is None:
        return list(new_partitions(placement, topic.topic_id, present, placement.assign(added, factor)))
    if len(assignments) != added:
        raise RaykaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) were "
            "specified.",
        )
    for index, replicas in enumerate(assignments):
        check_assignment(image, placement, present + index, replicas, factor)
    return list(new_partitions(placement, topic.topic_id, present, assignments))


def delete_topics(
    image: MetadataImage, config: BrokerConfig, topics: Sequence[str | uuid.UUID]
) -> ControllerResult[list[TopicResult]]:
    """Delete topics by name or by id, each on its own."""
    requested = Counter(topics)
    deleted: dict[uuid.UUID, None] = {}
    results = []
    for wanted in topics:
        name, topic_id = (None, wanted) if isinstance(wanted, uuid.UUID) else (wanted, None)
        try:
            if not config["delete.topic.enable"]:
                raise RaykaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
            if requested[wanted] > 1:
                raise RaykaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if name is None else 'name'}.")
            topic_id, name = _find(image, wanted)
            if topic_id in deleted:
                raise RaykaError(
                    ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
                )
            deleted[topic_id] = None
            results.append(TopicResult(name, topic_id))
        except RaykaError as error:
            results.append(TopicResult(name, topic_id, error.code, error.message))
    return ControllerResult(tuple(map(RemoveTopicRecord, deleted)), results)


def _find(image: MetadataImage, wanted: str | uuid.UUID) -> tuple[uuid.UUID, str]:
    if isinstance(wanted, uuid.UUID):
        topic = image.topic_by_id(wanted)
        if topic is None:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    else:
        topic = image.topics.get(wanted)
        if topic is None:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return topic.topic_id, topic.name


def _check_size(partitions: int, what: str = "partitions") -> None:
    if partitions > MAX_PARTITIONS_PER_REQUEST:
        raise RaykaError(ErrorCode.POLICY_VIOLATION, f"Excessively large number of {what} per request.")
