"""DescribeCluster 0-2 and DescribeTopicPartitions 0 (KIP-966)."""

from __future__ import annotations

from typing import Any

from rayka.errors import ErrorCode
from rayka.gateway.handlers.metadata import partition_fields
from rayka.gateway.handlers.responses import CLUSTER_OPERATIONS, NO_THROTTLE, OPERATIONS_NOT_ASKED, TOPIC_OPERATIONS
from rayka.gateway.server.request import Call
from rayka.metadata.image import MetadataImage, PartitionImage, TopicImage

_BROKERS = 1
_CONTROLLERS = 2


async def handle_describe_cluster(call: Call) -> Any:
    """The brokers. Controllers have no endpoint for clients."""
    image, types = call.broker.image, call.types
    endpoint_type = call.field("endpoint_type", _BROKERS)
    error = ErrorCode.NONE
    if endpoint_type != _BROKERS:
        known = endpoint_type == _CONTROLLERS
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    fenced_too = call.field("include_fenced_brokers", False)
    return types.DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=None
        if error == ErrorCode.NONE
        else f"this is an endpoint of brokers, not of type {endpoint_type}",
        endpoint_type=_BROKERS,
        cluster_id=image.cluster_id,
        controller_id=call.broker.node_id,
        brokers=tuple(
            types.DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for broker in image.brokers.values()
            if error == ErrorCode.NONE and (fenced_too or not broker.fenced)
        ),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if call.request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
        ),
    )


async def handle_describe_topic_partitions(call: Call) -> Any:
    """Topics by name, a bounded number of partitions at a time; the cursor says where to continue."""
    request, image, types = call.request, call.broker.image, call.types
    names = sorted({topic.name for topic in request.topics} or image.topics)
    first_partition = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first_partition = max(request.cursor.partition_index, 0)
    left = max(1, min(request.response_partition_limit, call.broker.config["max.request.partition.size.limit"]))
    topics = []
    next_cursor = None
    for name in names:
        if left <= 0:
            next_cursor = types.Cursor(topic_name=name, partition_index=0)
            break
        topic = image.topics.get(name)
        partitions = topic.partitions[first_partition : first_partition + left] if topic is not None else ()
        topics.append(_topic(call, image, name, topic, partitions))
        left -= len(partitions)
        reached = first_partition + len(partitions)
        first_partition = 0
        if topic is not None and reached < len(topic.partitions):
            next_cursor = types.Cursor(topic_name=name, partition_index=reached)
            break
    return types.DescribeTopicPartitionsResponse(
        throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=next_cursor
    )


def _topic(
    call: Call, image: MetadataImage, name: str, topic: TopicImage | None, partitions: tuple[PartitionImage, ...]
) -> Any:
    return call.types.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name=name,
        topic_id=None if topic is None else topic.topic_id,
        is_internal=topic is not None and topic.is_internal,
        partitions=tuple(_partition(call, image, partition) for partition in partitions),
        topic_authorized_operations=TOPIC_OPERATIONS if topic is not None else OPERATIONS_NOT_ASKED,
    )


def _partition(call: Call, image: MetadataImage, partition: PartitionImage) -> Any:
    return call.types.DescribeTopicPartitionsResponsePartition(
        eligible_leader_replicas=(),
        last_known_elr=(),
        **partition_fields(image, partition),
    )
