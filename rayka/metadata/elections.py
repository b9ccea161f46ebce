"""Leader election when brokers and actors fail or return.

The leader epoch grows by one with every election, also when the same broker leads again after a restart.
Requests that were sent in an earlier epoch can then be refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rayka.metadata.image import MetadataImage, PartitionImage, TopicImage
from rayka.metadata.records import PartitionChangeRecord
from rayka.metadata.values import UNASSIGNED
from rayka.types import NO_LEADER


@dataclass(frozen=True, slots=True)
class Liveness:
    """Which replicas can serve, with what the command at hand is about to change.

    `actors` are those online, with the id of the log directory that each has open.
    """

    actors: Mapping[str, uuid.UUID]
    brokers: frozenset[int]

    @classmethod
    def of(cls, image: MetadataImage) -> Liveness:
        """The replicas that the image says are online."""
        return cls(
            {actor.name: actor.directory_id for actor in image.actors.values() if actor.online},
            frozenset(broker.broker_id for broker in image.brokers.values() if not broker.fenced),
        )

    def without(self, names: Iterable[str]) -> Liveness:
        """With these actors gone."""
        gone = set(names)
        return Liveness({name: each for name, each in self.actors.items() if name not in gone}, self.brokers)

    def with_actor(self, name: str, directory_id: uuid.UUID) -> Liveness:
        """With an actor that serves from this directory."""
        return Liveness({**self.actors, name: directory_id}, self.brokers)

    def is_online(self, partition: PartitionImage, broker_id: int) -> bool:
        """Whether this broker's replica can serve: its actor does, and has the directory that the replica is in.

        A replica that was never created is in no directory yet. One whose directory is missing is offline, not new
        (KIP-858): it would begin again at offset 0.
        """
        name = partition.actor_of(broker_id)
        if broker_id not in self.brokers or name not in self.actors:
            return False
        return partition.directory_of(broker_id) in (UNASSIGNED, self.actors[name])


def elect(partition: PartitionImage, is_online: Callable[[int], bool], *, unclean: bool = False) -> int:
    """The broker to lead: the current leader, else the first replica in sync; -1 if none is online.

    With `unclean`, any online replica is chosen if none in sync is online.
    """
    in_sync = [broker_id for broker_id in partition.replicas if broker_id in partition.isr and is_online(broker_id)]
    if partition.leader in in_sync:
        return partition.leader
    if in_sync:
        return in_sync[0]
    any_online = (broker_id for broker_id in partition.replicas if is_online(broker_id))
    return next(any_online, NO_LEADER) if unclean else NO_LEADER


def failover_state(partition: PartitionImage, liveness: Liveness, *, unclean: bool = False) -> PartitionImage:
    """The partition after replicas came or went, in its present partition epoch.

    Replicas that are gone leave the ISR, but the last one stays: it is the one that has everything.
    """

    def is_online(broker_id: int) -> bool:
        return liveness.is_online(partition, broker_id)

    leader = elect(partition, is_online, unclean=unclean)
    isr = tuple(broker_id for broker_id in partition.isr if is_online(broker_id)) or partition.isr
    if leader != NO_LEADER and leader not in isr:
        isr = (leader,)
    epoch = partition.leader_epoch + (leader != partition.leader)
    return replace(partition, leader=leader, leader_epoch=epoch, isr=isr)


def failover(
    topic: TopicImage, partition: PartitionImage, liveness: Liveness, *, unclean: bool = False
) -> PartitionChangeRecord | None:
    """The change that a partition needs after replicas came or went; None if it needs none."""
    after = failover_state(partition, liveness, unclean=unclean)
    return None if after == partition else PartitionChangeRecord.between(topic.topic_id, partition, after)


def change(
    topic_id: uuid.UUID, partition: PartitionImage, leader: int, isr: tuple[int, ...], *, restarted: bool = False
) -> PartitionChangeRecord:
    """The record of an election or a change of the ISR; `restarted` if the leader is new though it is the same."""
    elected = restarted or leader != partition.leader
    after = replace(partition, leader=leader, leader_epoch=partition.leader_epoch + elected, isr=isr)
    return PartitionChangeRecord.between(topic_id, partition, after)


def held_by(image: MetadataImage, names: frozenset[str]) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """The partitions of which one of these actors holds a replica."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if not names.isdisjoint(partition.actors):
                yield topic, partition
