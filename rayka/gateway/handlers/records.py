"""DeleteRecords 0-2 and DescribeLogDirs 0-5: what the logs of this node hold."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rayka.errors import ErrorCode
from rayka.gateway.handlers.responses import NO_THROTTLE, milliseconds
from rayka.gateway.server.request import Call
from rayka.types import DeleteRecordsResult, LogDirDescription, ReplicaDescription, TopicPartition

_HIGH_WATERMARK = -1


async def handle_delete_records(call: Call) -> Any:
    """Move log start offsets up; offset -1 stands for the high watermark."""
    offsets = {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in call.request.topics
        for partition in topic.partitions
    }
    sound = {name: offset for name, offset in offsets.items() if offset >= _HIGH_WATERMARK}
    results = dict.fromkeys(offsets, DeleteRecordsResult(ErrorCode.OFFSET_OUT_OF_RANGE))
    if sound:
        results |= await call.broker.partitions.delete_records(sound, milliseconds(call.request.timeout))
    types = call.types
    return types.DeleteRecordsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            types.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    _deletion(
                        call, partition.partition_index, results[TopicPartition(topic.name, partition.partition_index)]
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in call.request.topics
        ),
    )


def _deletion(call: Call, partition: int, result: DeleteRecordsResult) -> Any:
    return call.types.DeleteRecordsPartitionResult(
        partition_index=partition, low_watermark=result.low_watermark, error_code=result.error
    )


async def handle_describe_log_dirs(call: Call) -> Any:
    """The log directories of this node, with the replicas asked for in them."""
    asked = call.request.topics
    wanted = None
    if asked is not None:
        wanted = {TopicPartition(topic.topic, partition) for topic in asked for partition in topic.partitions}
    directories = await call.broker.partitions.describe_log_dirs()
    return call.types.DescribeLogDirsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.NONE,
        results=tuple(_directory(call, directory, wanted) for directory in directories),
    )


def _directory(call: Call, directory: LogDirDescription, wanted: set[TopicPartition] | None) -> Any:
    types = call.types
    topics: dict[str, list[ReplicaDescription]] = defaultdict(list)
    for replica in directory.replicas:
        if wanted is None or replica.topic_partition in wanted:
            topics[replica.topic_partition.topic].append(replica)
    return types.DescribeLogDirsResult(
        error_code=directory.error,
        log_dir=directory.path,
        topics=tuple(
            types.DescribeLogDirsTopic(
                name=name,
                partitions=tuple(
                    types.DescribeLogDirsPartition(
                        partition_index=replica.topic_partition.partition,
                        partition_size=replica.size,
                        offset_lag=replica.offset_lag,
                        is_future_key=replica.is_future,
                    )
                    for replica in replicas
                ),
            )
            for name, replicas in topics.items()
        ),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
        is_cordoned=False,
    )
