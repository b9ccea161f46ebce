"""What ShareFetch and ShareAcknowledge requests have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rayka.coordinator.codec import ZERO_UUID
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import MetadataImage
from rayka.share.acknowledge import AcknowledgementBatch
from rayka.share.requests import ShareFetchPartition
from rayka.share.session import SessionKey, SharePartitionId, ShareSession
from rayka.types import TopicPartition

Acknowledged = dict[SharePartitionId, tuple[AcknowledgementBatch, ...]]


def session_key(request: Any) -> SessionKey:
    """The member that asks. Raises INVALID_REQUEST."""
    if not request.group_id or not request.member_id:
        raise RaykaError(ErrorCode.INVALID_REQUEST, "a share session needs a group id and a member id")
    return SessionKey(request.group_id, request.member_id)


def partition_ids(topics: Iterable[Any]) -> list[SharePartitionId]:
    """The partitions that a request names, in its order."""
    return [
        SharePartitionId(topic.topic_id or ZERO_UUID, partition.partition_index)
        for topic in topics
        for partition in topic.partitions
    ]


def acknowledgements(topics: Iterable[Any]) -> Acknowledged:
    """The acknowledgements in a request, of the partitions that have any."""
    return {
        SharePartitionId(topic.topic_id or ZERO_UUID, partition.partition_index): tuple(
            AcknowledgementBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
            for batch in partition.acknowledgement_batches
        )
        for topic in topics
        for partition in topic.partitions
        if partition.acknowledgement_batches
    }


def topic_partition(partition: SharePartitionId, image: MetadataImage) -> TopicPartition | None:
    """The partition by name; None if its topic is not known."""
    name = image.topic_names_by_id.get(partition.topic_id)
    return None if name is None else TopicPartition(name, partition.partition)


def fetch_partition(
    partition: SharePartitionId, name: TopicPartition, acknowledged: Acknowledged, *, is_fetched: bool
) -> ShareFetchPartition:
    """What to ask of the partition's leader."""
    return ShareFetchPartition(name, partition.topic_id.bytes, is_fetched, acknowledged.get(partition, ()))


def names_of(session: ShareSession, image: MetadataImage) -> list[TopicPartition]:
    """All partitions of which a member may hold records."""
    found = (topic_partition(partition, image) for partition in session.seen)
    return [name for name in found if name is not None]
