"""What must hold of every metadata image, whatever commands led to it."""

from __future__ import annotations

from collections.abc import Iterator

from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.elections import Liveness
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.types import NO_LEADER


class InvalidState(RaykaError):
    """A command's records would break an invariant. Its author is to blame, not its caller."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, "; ".join(problems))


def validate_image(image: MetadataImage, before: MetadataImage | None = None) -> None:
    """Raises InvalidState. With `before` only the topics that differ from it are examined, and versions and epochs
    must not go back."""
    problems = list(_problems(image, before or MetadataImage()))
    if problems:
        raise InvalidState(problems)


def _problems(image: MetadataImage, before: MetadataImage) -> Iterator[str]:
    if image.version < before.version:
        yield f"version {image.version} follows {before.version}"
    if len(image.topic_names_by_id) != len(image.topics):
        yield f"{len(image.topics)} topics have {len(image.topic_names_by_id)} ids"
    liveness = Liveness.of(image)
    for name, topic in image.topics.items():
        known = before.topics.get(name)
        if topic is known:
            continue
        if image.topic_names_by_id.get(topic.topic_id) != name or topic.name != name:
            yield f"topic {name} is not found by its id {topic.topic_id}"
        if not topic.partitions:
            yield f"topic {name} has no partitions"
        earlier = known.partitions if known is not None and known.topic_id == topic.topic_id else ()
        for number, partition in enumerate(topic.partitions):
            previous = earlier[number] if number < len(earlier) else None
            if partition is previous:
                continue
            problems = [*_of_partition(image, partition, number, liveness), *_of_epochs(previous, partition)]
            yield from (f"{name}-{number}: {problem}" for problem in problems)


def _of_partition(image: MetadataImage, partition: PartitionImage, number: int, liveness: Liveness) -> Iterator[str]:
    replicas = partition.replicas
    if partition.partition != number:
        yield f"has number {partition.partition}"
    if len(set(replicas)) != len(replicas) or len(replicas) != len(partition.actors):
        yield f"replicas {replicas} are held by {partition.actors}"
        return
    if len(partition.directories) not in (0, len(replicas)):
        yield f"replicas {replicas} are in directories {partition.directories}"
    for broker_id, name in zip(replicas, partition.actors, strict=True):
        if name not in image.actors or image.actors[name].broker_id != broker_id:
            yield f"the replica of broker {broker_id} is held by {name}, which is not its actor"
    if not partition.isr or not set(partition.isr) <= set(replicas):
        yield f"the ISR {partition.isr} is not part of the replicas {replicas}"
    else:
        yield from _of_leader(partition, liveness)


def _of_leader(partition: PartitionImage, liveness: Liveness) -> Iterator[str]:
    online = {broker_id for broker_id in partition.replicas if liveness.is_online(partition, broker_id)}
    if partition.leader == NO_LEADER:
        if not online.isdisjoint(partition.isr):
            yield f"has no leader, but {sorted(online & set(partition.isr))} could lead"
    elif partition.leader not in partition.isr:
        yield f"leader {partition.leader} is not in the ISR {partition.isr}"
    elif not set(partition.isr) <= online:
        yield f"of the ISR {partition.isr} only {sorted(online)} are online"


def _of_epochs(before: PartitionImage | None, partition: PartitionImage) -> Iterator[str]:
    if before is None:
        return
    if partition.leader_epoch < before.leader_epoch:
        yield f"leader epoch {partition.leader_epoch} follows {before.leader_epoch}"
    if partition.leader != before.leader and partition.leader_epoch == before.leader_epoch:
        yield f"leaders {before.leader} and {partition.leader} have the same epoch {partition.leader_epoch}"
    if partition != before and partition.partition_epoch <= before.partition_epoch:
        yield f"changed without a new partition epoch: {partition.partition_epoch} follows {before.partition_epoch}"
