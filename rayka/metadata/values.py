"""The immutable values that a metadata image is made of."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from rayka.types import NO_LEADER


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A node: its address for clients, Ray's id of it, and whether it is believed to be down (fenced)."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    node_id: str
    epoch: int
    directory_ids: tuple[str, ...] = ()
    log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActorImage:
    """A PartitionReplica actor; `epoch` counts its starts."""

    name: str
    broker_id: int
    log_dir: str
    epoch: int
    online: bool
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition. `actors[i]` is the name of the actor that holds replica `replicas[i]`; `leader` is -1
    while there is none; `leader_epoch` grows with every change of leader, `partition_epoch` with every change."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int
    actors: tuple[str, ...]

    @property
    def leader_actor(self) -> str | None:
        """The name of the actor that leads, None while there is no leader."""
        return None if self.leader == NO_LEADER else self.actor_of(self.leader)

    def actor_of(self, broker_id: int) -> str:
        """The name of the actor that holds this broker's replica. Raises ValueError if it has none."""
        return self.actors[self.replicas.index(broker_id)]


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `partitions[i].partition == i`."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionImage, ...]
    is_internal: bool
