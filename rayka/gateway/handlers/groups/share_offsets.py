"""DescribeShareGroupOffsets 0-1, AlterShareGroupOffsets 0 and DeleteShareGroupOffsets 0 (KIP-932, KIP-1226)."""

from __future__ import annotations

import asyncio
from typing import Any

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.requests import NamedPartitions
from rayka.coordinator.groups.share.requests import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    TopicStartOffsets,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE, message_of
from rayka.gateway.server.request import Call
from rayka.gateway.share_groups import ShareGroups, SharePartitionOffset, ShareTopicOffsets

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def handle_describe(call: Call) -> Any:
    """Where share-partitions are, and from version 1 on how far they lag behind."""
    share_groups = ShareGroups(call.broker)
    asked = dict.fromkeys(call.request.groups)
    groups = await asyncio.gather(*(_describe(call, share_groups, group) for group in asked))
    return call.types.DescribeShareGroupOffsetsResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


async def _describe(call: Call, share_groups: ShareGroups, group: Any) -> Any:
    topics: list[ShareTopicOffsets] = []
    error, message = ErrorCode.NONE, None
    try:
        topics = await _offsets(call, share_groups, group)
    except RaykaError as refused:
        error, message = refused.code, refused.message
    types = call.types
    return types.DescribeShareGroupOffsetsResponseGroup(
        group_id=group.group_id,
        error_code=error,
        error_message=message_of(error, message),
        topics=tuple(
            types.DescribeShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=topic.topic_id,
                partitions=tuple(_partition(call, partition) for partition in topic.partitions),
            )
            for topic in topics
        ),
    )


async def _offsets(call: Call, share_groups: ShareGroups, group: Any) -> list[ShareTopicOffsets]:
    """All topics of the group, or those asked for; topics that do not exist come last."""
    if group.topics is None:
        return await share_groups.describe_offsets(group.group_id)
    image = call.broker.image
    known = [
        NamedPartitions(image.topics[topic.topic_name].topic_id, topic.topic_name, topic.partitions)
        for topic in group.topics
        if topic.topic_name in image.topics
    ]
    found = await share_groups.describe_offsets(group.group_id, known) if known else []
    missing = [topic for topic in group.topics if topic.topic_name not in image.topics]
    return [*found, *map(_missing, missing)]


def _missing(topic: Any) -> ShareTopicOffsets:
    partitions = (
        SharePartitionOffset(number, error=_UNKNOWN, error_message=f"There is no topic {topic.topic_name}.")
        for number in topic.partitions
    )
    return ShareTopicOffsets(ZERO_UUID, topic.topic_name, tuple(partitions))


def _partition(call: Call, partition: SharePartitionOffset) -> Any:
    return call.types.DescribeShareGroupOffsetsResponsePartition(
        partition_index=partition.partition,
        start_offset=partition.start_offset,
        leader_epoch=partition.leader_epoch,
        lag=partition.lag,
        error_code=partition.error,
        error_message=message_of(partition.error, partition.error_message),
    )


async def handle_alter(call: Call) -> Any:
    """New start offsets for a group without members."""
    request = AlterShareGroupOffsetsRequest(
        call.request.group_id,
        tuple(
            TopicStartOffsets(
                topic.topic_name, tuple((one.partition_index, one.start_offset) for one in topic.partitions)
            )
            for topic in call.request.topics
        ),
    )
    try:
        answer = await ShareGroups(call.broker).alter_offsets(request)
    except RaykaError as error:
        answer = AlterShareGroupOffsetsResponse(error.code, error.message)
    return _altered(call, request, answer)


def _altered(call: Call, request: AlterShareGroupOffsetsRequest, answer: AlterShareGroupOffsetsResponse) -> Any:
    types = call.types
    return types.AlterShareGroupOffsetsResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        error_message=message_of(answer.error, answer.error_message),
        responses=tuple(
            types.AlterShareGroupOffsetsResponseTopic(
                topic_name=altered.topic_name,
                topic_id=altered.topic_id,
                partitions=tuple(
                    types.AlterShareGroupOffsetsResponsePartition(
                        partition_index=number,
                        error_code=error,
                        error_message=message_of(error, f"The offset could not be altered: {error.name}."),
                    )
                    for (number, _), error in zip(topic.partitions, altered.errors, strict=True)
                ),
            )
            for topic, altered in zip(request.topics, answer.topics, strict=False)
        ),
    )


async def handle_delete(call: Call) -> Any:
    """Forget topics in a group without members."""
    names = tuple(topic.topic_name for topic in call.request.topics)
    try:
        request = DeleteShareGroupOffsetsRequest(call.request.group_id, names)
        answer = await ShareGroups(call.broker).delete_offsets(request)
    except RaykaError as error:
        answer = DeleteShareGroupOffsetsResponse(error.code, error.message)
    types = call.types
    return types.DeleteShareGroupOffsetsResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        error_message=message_of(answer.error, answer.error_message),
        responses=tuple(
            types.DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=topic.topic_id,
                error_code=topic.error,
                error_message=message_of(topic.error, topic.error_message),
            )
            for topic in answer.topics
        ),
    )
