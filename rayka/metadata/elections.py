"""Who leads a partition when brokers and actors come and go.

The leader epoch grows by one with every election, also when the same broker leads again after a restart:
whatever its former life still sends is then recognisably old.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rayka.metadata.image import MetadataImage, PartitionImage, TopicImage
from rayka.metadata.records import PartitionChangeRecord
from rayka.types import NO_LEADER

IsOnline = Callable[[PartitionImage, int], bool]


@dataclass(frozen=True, slots=True)
class Liveness:
    """Which replicas can serve: the image, with what the command at hand is about to change."""

    image: MetadataImage
    actors: frozenset[str]
    brokers: frozenset[int]

    @classmethod
    def of(cls, image: MetadataImage) -> Liveness:
        """As the image has it."""
        return cls(
            image,
            frozenset(actor.name for actor in image.actors.values() if actor.online),
            frozenset(broker.broker_id for broker in image.brokers.values() if not broker.fenced),
        )

    def without(self, actors: Iterable[str] = (), brokers: Iterable[int] = ()) -> Liveness:
        """With these gone."""
        return Liveness(self.image, self.actors.difference(actors), self.brokers.difference(brokers))

    def with_(self, actors: Iterable[str] = (), brokers: Iterable[int] = ()) -> Liveness:
        """With these serving."""
        return Liveness(self.image, self.actors.union(actors), self.brokers.union(brokers))

    def is_online(self, partition: PartitionImage, broker_id: int) -> bool:
        """Whether this broker's replica of the partition can serve."""
        return broker_id in self.brokers and partition.actor_of(broker_id) in self.actors


def elect(partition: PartitionImage, is_online: Callable[[int], bool], *, unclean: bool = False) -> int:
    """The broker that is to lead: the present leader, else the first replica in sync; -1 if none is online.

    With `unclean` any replica will do when none in sync is online.
    """
    in_sync = [broker_id for broker_id in partition.replicas if broker_id in partition.isr and is_online(broker_id)]
    if partition.leader in in_sync:
        return partition.leader
    if in_sync:
        return in_sync[0]
    any_online = (broker_id for broker_id in partition.replicas if is_online(broker_id))
    return next(any_online, NO_LEADER) if unclean else NO_LEADER


def failover(
    topic: TopicImage, partition: PartitionImage, liveness: Liveness, *, unclean: bool = False
) -> PartitionChangeRecord | None:
    """The change that a partition needs after replicas came or went; None if it needs none.

    Replicas that are gone leave the ISR, but the last one stays: it is the one that has everything.
    """

    def is_online(broker_id: int) -> bool:
        return liveness.is_online(partition, broker_id)

    leader = elect(partition, is_online, unclean=unclean)
    isr = tuple(broker_id for broker_id in partition.isr if is_online(broker_id)) or partition.isr
    if leader != NO_LEADER and leader not in isr:
        isr = (leader,)
    if leader == partition.leader and isr == partition.isr:
        return None
    return change(topic.topic_id, partition, leader, isr)


def change(
    topic_id: uuid.UUID, partition: PartitionImage, leader: int, isr: tuple[int, ...], *, restarted: bool = False
) -> PartitionChangeRecord:
    """The record of an election or a change of the ISR; `restarted` if the leader is new though it is the same."""
    elected = restarted or leader != partition.leader
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition=partition.partition,
        partition_epoch=partition.partition_epoch + 1,
        leader=leader if elected else None,
        leader_epoch=partition.leader_epoch + 1 if elected else None,
        isr=None if isr == partition.isr else isr,
    )


def held_by(image: MetadataImage, names: frozenset[str]) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """The partitions of which one of these actors holds a replica."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if not names.isdisjoint(partition.actors):
                yield topic, partition
