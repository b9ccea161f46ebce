"""Placement of the replicas of new partitions on brokers and their actors, and checks of manual assignments.

Brokers are taken round robin, from a list in which racks alternate; the followers of one partition are
shifted against its leader a little further on each round, so that the partitions of a failed broker are
led by many others. A rack holds a second replica only when every rack holds one. On its broker a replica
goes to the online actor with the fewest replicas.

Source: the placement that Kafka has had since 0.10 (KIP-36), without its random start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import BrokerImage, MetadataImage


class Placement:
    """Places the replicas of one command; each placed replica counts when the next one is placed."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._actors: dict[int, list[str]] = defaultdict(list)
        for actor in image.actors.values():
            broker = image.brokers.get(actor.broker_id)
            if actor.online and broker is not None and not broker.fenced:
                self._actors[actor.broker_id].append(actor.name)
        partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
        self._load = Counter(name for partition in partitions for name in partition.actors)
        self._placed = len(partitions)

    @property
    def broker_count(self) -> int:
        """How many brokers can take replicas."""
        return len(self._actors)

    def is_active(self, broker_id: int) -> bool:
        """Whether the broker is up and has an actor that can take replicas."""
        return broker_id in self._actors

    def assign(self, partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
        """The replicas (broker ids, preferred leader first) of each of so many new partitions.

        Raises INVALID_REPLICATION_FACTOR if there are too few brokers.
        """
        brokers = [self._image.brokers[broker_id] for broker_id in sorted(self._actors)]
        self._check(replication_factor, len(brokers))
        ring = alternate_racks(brokers)
        start = self._placed
        self._placed += partitions
        return [_replicas(ring, start + index, replication_factor) for index in range(partitions)]

    def actors_for(self, replicas: Sequence[int]) -> tuple[str, ...]:
        """The actor for each replica. A broker without online actors keeps its least loaded one.

        Raises INVALID_REPLICA_ASSIGNMENT if a broker has no actor at all.
        """
        return tuple(self._take_actor(broker_id) for broker_id in replicas)

    def _take_actor(self, broker_id: int) -> str:
        names = self._actors.get(broker_id) or [
            actor.name for actor in self._image.actors.values() if actor.broker_id == broker_id
        ]
        if not names:
            raise RaykaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"broker {broker_id} has no partition actors yet")
        name = min(names, key=lambda name: (self._load[name], len(name), name))
        self._load[name] += 1
        return name

    @staticmethod
    def _check(replication_factor: int, brokers: int) -> None:
        prefix = f"Unable to replicate the partition {replication_factor} time(s): "
        if brokers == 0:
            raise RaykaError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{prefix}All brokers are currently fenced.")
        if replication_factor > brokers:
            raise RaykaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{prefix}The target replication factor of {replication_factor} cannot be reached because only "
                f"{brokers} broker(s) are registered.",
            )


def alternate_racks(brokers: Iterable[BrokerImage]) -> list[BrokerImage]:
    """The brokers in an order in which racks take turns: rack a's first, rack b's first, rack a's second ..."""
    racks: dict[str, list[BrokerImage]] = defaultdict(list)
    for broker in brokers:
        racks[broker.rack or ""].append(broker)
    columns = [racks[rack] for rack in sorted(racks)]
    height = max(map(len, columns), default=0)
    return [column[row] for row in range(height) for column in columns if row < len(column)]


def _replicas(ring: Sequence[BrokerImage], index: int, count: int) -> tuple[int, ...]:
    """The leader is the ring's broker at `index`; followers come from the ring behind it, shifted by one
    more for each full round, those in racks without a replica first."""
    leader = ring[index % len(ring)]
    behind = [ring[(index + step) % len(ring)] for step in range(1, len(ring))]
    shift = (index // len(ring)) % max(1, len(behind))
    candidates = behind[shift:] + behind[:shift]
    chosen = [leader]
    while len(chosen) < count:
        uses = Counter(broker.rack for broker in chosen)
        follower = min(candidates, key=lambda broker: uses[broker.rack])
        candidates.remove(follower)
        chosen.append(follower)
    return tuple(broker.broker_id for broker in chosen)


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
