"""Checks of assignments that a client wrote by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import MetadataImage
from rayka.metadata.placement import Placement


def check_assignment(
    image: MetadataImage, placement: Placement, partition: int, replicas: Sequence[int], factor: int | None
) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT if these can't be the replicas of a partition.

    `factor` is the number of replicas that the topic's other partitions have, None if this is the first.
    """
    reason = _reason(image, placement, partition, replicas, factor)
    if reason:
        raise RaykaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def check_consecutive(partitions: Iterable[int]) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT unless the partitions are 0, 1, 2 ..."""
    if sorted(partitions) != list(range(len(list(partitions)))):
        raise RaykaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )


def _reason(
    image: MetadataImage, placement: Placement, partition: int, replicas: Sequence[int], factor: int | None
) -> str | None:
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    seen: set[int] = set()
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            return f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
        if broker_id in seen:
            return f"The manual partition assignment includes the broker {broker_id} more than once."
        seen.add(broker_id)
    if factor is not None and len(replicas) != factor:
        return (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )
    if not any(placement.is_active(broker_id) for broker_id in replicas):
        return (
            f"All brokers specified in the manual partition assignment for partition {partition} are fenced or in "
            "controlled shutdown."
        )
    return None
