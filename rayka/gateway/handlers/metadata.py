"""Metadata 0-13: brokers, topics and leaders, by name or by id; creates topics that are asked for.

Version 0 asks for all topics with an empty list, later ones with null. Before version 4 the broker's
setting alone says whether a missing topic is created. A topic that is being created is waited for, so the
client need not ask again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import CLUSTER_OPERATIONS, NO_THROTTLE, OPERATIONS_NOT_ASKED, TOPIC_OPERATIONS
from rayka.gateway.server.request import Call
from rayka.metadata.commands import NewTopic
from rayka.metadata.image import MetadataImage, PartitionImage, TopicImage
from rayka.metadata.topics import INTERNAL_TOPICS, is_topic_name
from rayka.types import NO_LEADER

_FIRST_BY_ID = 12
_CREATION_TIMEOUT_MS = 15_000


async def handle(call: Call) -> Any:
    """Answer from the image, after creating what is to be created."""
    asked = call.request.topics
    if asked is None or (call.version == 0 and not asked):
        image = call.broker.image
        topics = [_topic(call, image, topic) for topic in image.topics.values()]
    else:
        topics = await _topics_asked(call, asked)
        image = call.broker.image
    types = call.types
    return types.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            types.MetadataResponseBroker(node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in image.brokers.values()
            if not broker.fenced
        ),
        cluster_id=image.cluster_id,
        controller_id=call.broker.node_id,
        topics=tuple(topics),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if call.field("include_cluster_authorized_operations", False) else OPERATIONS_NOT_ASKED
        ),
        error_code=ErrorCode.NONE,
    )


async def _topics_asked(call: Call, asked: Iterable[Any]) -> list[Any]:
    """Each topic once, as in Kafka: repeating it would let a small request use up the memory."""
    wanted = list(dict.fromkeys(_name_and_id(call, topic) for topic in asked))
    missing = [name for name, topic_id in wanted if name is not None and name not in call.broker.image.topics]
    refused = await _create(call, missing) if missing else {}
    image = call.broker.image
    return [
        _topic_by_id(call, image, topic_id)
        if topic_id is not None
        else _topic_by_name(call, image, name or "", refused)
        for name, topic_id in wanted
    ]


def _name_and_id(call: Call, topic: Any) -> tuple[str | None, uuid.UUID | None]:
    topic_id = getattr(topic, "topic_id", None)
    if topic_id is not None and call.version < _FIRST_BY_ID:
        return topic.name or "", None
    return (None, topic_id) if topic_id is not None else (topic.name or "", None)


async def _create(call: Call, names: list[str]) -> dict[str, ErrorCode]:
    """Create topics, as far as request and settings allow; the errors of those that are not there after."""
    if not (call.field("allow_auto_topic_creation", True) and call.broker.config["auto.create.topics.enable"]):
        return {}
    new = [NewTopic(name) for name in names]
    try:
        results = await call.broker.controller.create_topics(new, validate_only=False, timeout_ms=_CREATION_TIMEOUT_MS)
    except RaykaError:
        return dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)
    return {name: _creation_error(result.error) for name, result in zip(names, results, strict=True)}


def _creation_error(error: ErrorCode) -> ErrorCode:
    """What Metadata may say of a failed creation: a bad name, a lack of brokers, or else try again."""
    if error in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_REPLICATION_FACTOR):
        return error
    return ErrorCode.LEADER_NOT_AVAILABLE


def _topic_by_name(call: Call, image: MetadataImage, name: str, refused: dict[str, ErrorCode]) -> Any:
    topic = image.topics.get(name)
    if topic is None:
        return _missing(call, name, None, refused.get(name) or _absence(name))
    return _topic(call, image, topic)


def _absence(name: str) -> ErrorCode:
    """Why there is no such topic: a client waits for one that may still come, not for a name that no topic may have."""
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION


def _topic_by_id(call: Call, image: MetadataImage, topic_id: uuid.UUID) -> Any:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        return _missing(call, None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    return _topic(call, image, topic)


def _missing(call: Call, name: str | None, topic_id: uuid.UUID | None, error: ErrorCode) -> Any:
    return call.types.MetadataResponseTopic(
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
        topic_authorized_operations=OPERATIONS_NOT_ASKED,
    )


def _topic(call: Call, image: MetadataImage, topic: TopicImage) -> Any:
    asked = call.field("include_topic_authorized_operations", False)
    return call.types.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(_partition(call, image, partition) for partition in topic.partitions),
        topic_authorized_operations=TOPIC_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    )


def _partition(call: Call, image: MetadataImage, partition: PartitionImage) -> Any:
    return call.types.MetadataResponsePartition(**partition_fields(image, partition))


def partition_fields(image: MetadataImage, partition: PartitionImage) -> dict[str, Any]:
    """The fields of a partition in both of its descriptions. Replicas on brokers that are down are offline."""
    replicas, brokers = partition.replicas, image.brokers
    offline = (replica for replica in replicas if (broker := brokers.get(replica)) is None or broker.fenced)
    return {
        "error_code": ErrorCode.NONE if partition.leader != NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": partition.partition,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": tuple(offline),
    }
