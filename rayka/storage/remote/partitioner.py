"""Which partition of `__remote_log_metadata` has the records about a partition: that which Kafka takes."""

from __future__ import annotations

from rayka.types import TopicIdPartition

_MASK = 0xFFFF_FFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def metadata_partition(partition: TopicIdPartition, num_partitions: int) -> int:
    """murmur2 over Java's hash of topic id and partition number."""
    topic_id = partition.topic_id.int
    low, high = topic_id & ((1 << 64) - 1), topic_id >> 64
    value = 1
    for field in (_hash_of_long(low), _hash_of_long(high), partition.topic_partition.partition):
        value = (31 * value + field) & _MASK
    return (_murmur2_of_int(value) & 0x7FFF_FFFF) % num_partitions


def _hash_of_long(value: int) -> int:
    return (value ^ value >> 32) & _MASK


def _murmur2_of_int(value: int) -> int:
    """murmur2 of the four bytes of `value`, highest first."""
    piece = int.from_bytes(value.to_bytes(4, "big"), "little") * _M & _MASK
    piece = (piece ^ piece >> 24) * _M & _MASK
    hashed = (_SEED ^ 4) * _M & _MASK ^ piece
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15
