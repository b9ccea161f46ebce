"""Which partition of `__remote_log_metadata` has the records about a partition, as in Kafka."""

from __future__ import annotations

from rayka.murmur2 import POSITIVE, UINT32, murmur2
from rayka.types import TopicIdPartition


def metadata_partition(partition: TopicIdPartition, num_partitions: int) -> int:
    """murmur2 over Java's hash of topic id and partition number."""
    topic_id = partition.topic_id.int
    low, high = topic_id & ((1 << 64) - 1), topic_id >> 64
    value = 1
    for field in (_hash_of_long(low), _hash_of_long(high), partition.topic_partition.partition):
        value = (31 * value + field) & UINT32
    return (murmur2(value.to_bytes(4, "big")) & POSITIVE) % num_partitions


def _hash_of_long(value: int) -> int:
    return (value ^ value >> 32) & UINT32
