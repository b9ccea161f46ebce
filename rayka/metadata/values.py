"""The immutable values that a metadata image is made of, each with the one list of its fields.

Records carry these values whole, and the bytes of a record hold their fields by name. So a new field with a default is
added here, and records, image, delta, snapshot and bytes have it; older logs are read with the default.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from rayka.types import NO_LEADER

UNASSIGNED = uuid.UUID(int=0)
"""The directory of a replica that no actor has created yet (KIP-858)."""
LOST = uuid.UUID(int=1)
"""The directory of a replica whose files were there and are gone (KIP-858)."""

NAME = "name"
"""In a field's metadata: the field's name in the bytes, where that is another one."""
RECORDED = "recorded"
"""In a field's metadata: False if other records build the field up."""


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A node: its address for clients, Ray's id of it, and whether it is believed to be down (fenced)."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    node_id: str
    epoch: int = field(metadata={NAME: "broker_epoch"})
    directory_ids: tuple[str, ...] = ()
    log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActorImage:
    """A partition actor; `epoch` counts its starts, `incarnation` names this one.

    `log_dir` is its log directory and `directory_id` the id in that directory's meta.properties.
    """

    name: str
    broker_id: int
    log_dir: str
    epoch: int
    online: bool
    incarnation: str = ""
    directory_id: uuid.UUID = UNASSIGNED


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition. `actors[i]` is the name of the actor that holds replica `replicas[i]`; `leader` is -1
    while there is none; `leader_epoch` grows with every change of leader, `partition_epoch` with every change.

    `directories[i]` is the directory in which the replica was created, UNASSIGNED until it has been, LOST when its
    files are gone. It is empty in logs that were written before there were directory ids.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int
    actors: tuple[str, ...]
    directories: tuple[uuid.UUID, ...] = ()

    @property
    def leader_actor(self) -> str | None:
        """The name of the actor that leads, None while there is no leader."""
        return None if self.leader == NO_LEADER else self.actor_of(self.leader)

    def actor_of(self, broker_id: int) -> str:
        """The name of the actor that holds this broker's replica. Raises ValueError if it has none."""
        return self.actors[self.replicas.index(broker_id)]

    def directory_of(self, broker_id: int) -> uuid.UUID:
        """The directory of this broker's replica. Raises ValueError if it has none."""
        index = self.replicas.index(broker_id)
        return self.directories[index] if self.directories else UNASSIGNED

    def with_directory(self, broker_id: int, directory_id: uuid.UUID) -> tuple[uuid.UUID, ...]:
        """`directories` with another one for this broker's replica."""
        return tuple(directory_id if each == broker_id else self.directory_of(each) for each in self.replicas)


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `partitions[i].partition == i`."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionImage, ...] = field(default=(), metadata={RECORDED: False})
    is_internal: bool = False
