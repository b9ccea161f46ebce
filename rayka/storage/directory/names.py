"""The names of directories in a log directory: partitions, those being deleted, and those set aside as stray."""

from __future__ import annotations

import uuid

from rayka.types import TopicPartition

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_MAX_NAME = 255


def parse_directory_name(name: str) -> TopicPartition | None:
    """`orders-2` -> the partition; None for any other kind of name."""
    topic, dash, partition = name.rpartition("-")
    if not (dash and topic and partition.isdecimal()) or str(int(partition)) != partition:
        return None
    return TopicPartition(topic, int(partition))


def stray_name(topic_partition: TopicPartition, topic_id: uuid.UUID | None) -> str:
    """The name of a partition that is set aside."""
    return renamed(topic_partition, "" if topic_id is None else topic_id.hex, STRAY_SUFFIX)


def renamed(topic_partition: TopicPartition, unique: str, suffix: str) -> str:
    """A name that no other has, short enough for a file system."""
    tail = f".{unique}{suffix}"
    return str(topic_partition)[: _MAX_NAME - len(tail)] + tail
