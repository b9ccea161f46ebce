"""Registration and failure of brokers and partition actors, and the elections that follow."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rayka.config import BrokerConfig, resolve
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import (
    ActorRegistered,
    ActorRegistration,
    AssignReplicasToDirs,
    BrokerRegistered,
    BrokerRegistration,
    ControllerResult,
)
from rayka.metadata.elections import Liveness, change, failover, failover_state, held_by
from rayka.metadata.image import ActorImage, BrokerImage, MetadataImage, PartitionImage, TopicImage
from rayka.metadata.records import (
    ActorChangeRecord,
    BrokerFencingRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterActorRecord,
    RegisterBrokerRecord,
    UnregisterActorRecord,
    UnregisterBrokerRecord,
)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The commands about brokers and actors, against one image."""

    image: MetadataImage
    config: BrokerConfig

    def register_broker(self, registration: BrokerRegistration) -> ControllerResult[BrokerRegistered]:
        """Give a node its id and a new epoch.

        A node that registers with another node id has restarted: its actors count as offline until they register.
        Raises DUPLICATE_BROKER_REGISTRATION if the id belongs to another node that is alive.
        """
        broker_id = _broker_id(self.image, registration)
        before = self.image.brokers.get(broker_id)
        broker = BrokerImage(
            broker_id=broker_id,
            host=registration.host,
            port=registration.port,
            rack=registration.rack,
            fenced=False,
            node_id=registration.node_id,
            epoch=self.image.next_broker_epoch,
            directory_ids=registration.directory_ids,
            log_dirs=registration.log_dirs,
        )
        if before is not None and replace(before, epoch=broker.epoch) == broker:
            return ControllerResult((), BrokerRegistered(broker_id, before.epoch))
        records: list[MetadataRecord] = [RegisterBrokerRecord(broker)]
        if before is not None and before.node_id != registration.node_id:
            records += self._offline([actor for actor in self.image.actors.values() if actor.broker_id == broker_id])
        return ControllerResult(tuple(records), BrokerRegistered(broker_id, broker.epoch))

    def broker_died(self, broker_id: int) -> ControllerResult[None]:
        """Fence a broker and elect other leaders. Without effect for an unknown or fenced broker."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.fenced:
            return ControllerResult((), None)
        actors = [actor for actor in self.image.actors.values() if actor.broker_id == broker_id]
        return ControllerResult((BrokerFencingRecord(broker_id, broker.epoch, True), *self._offline(actors)), None)

    def unregister_broker(self, broker_id: int) -> ControllerResult[None]:
        """Remove a broker that will not come back. Raises BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST while it
        still holds replicas."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise RaykaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
        actors = [actor.name for actor in self.image.actors.values() if actor.broker_id == broker_id]
        if any(True for _ in held_by(self.image, frozenset(actors))):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} still holds replicas")
        return ControllerResult(
            (*map(UnregisterActorRecord, actors), UnregisterBrokerRecord(broker_id, broker.epoch)), None
        )

    def register_actor(self, registration: ActorRegistration) -> ControllerResult[ActorRegistered]:
        """Register an actor that is ready to serve. It leads the partitions that it can lead, in a new epoch.

        An actor that was declared dead, but is the same process, is online again and keeps its own epoch.
        Raises BROKER_ID_NOT_REGISTERED, or INVALID_REGISTRATION if the name belongs to another broker.
        """
        broker = self.image.brokers.get(registration.broker_id)
        if broker is None:
            raise RaykaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {registration.broker_id} is not currently registered"
            )
        before = self.image.actors.get(registration.name)
        if before is not None and before.broker_id != registration.broker_id:
            raise RaykaError(
                ErrorCode.INVALID_REGISTRATION, f"actor {registration.name} belongs to broker {before.broker_id}"
            )
        if before is not None and before.online and before.incarnation == registration.incarnation:
            return ControllerResult((), ActorRegistered(before.epoch))
        epoch = _actor_epoch(before, registration)
        actor = ActorImage(
            name=registration.name,
            broker_id=registration.broker_id,
            log_dir=registration.log_dir,
            epoch=epoch,
            online=True,
            incarnation=registration.incarnation,
            directory_id=registration.directory_id,
        )
        return ControllerResult((RegisterActorRecord(actor), *self._restart(registration)), ActorRegistered(epoch))

    def assign_replicas_to_dirs(self, request: AssignReplicasToDirs) -> ControllerResult[None]:
        """Record the directory in which an actor has created replicas, or that it has LOST them (AssignReplicasToDirs).

        Replicas that do not belong to the actor, or no longer do, are ignored. Raises INVALID_REGISTRATION for an
        actor that has not registered, or that another process of the same name has replaced.
        """
        actor = self.image.actors.get(request.actor)
        if actor is None or not actor.online or actor.incarnation != request.incarnation:
            raise RaykaError(ErrorCode.INVALID_REGISTRATION, f"actor {request.actor} is not registered as this process")
        liveness = Liveness.of(self.image)
        records = (
            record
            for (topic_id, number), directory_id in request.directories.items()
            if (topic := self.image.topic_by_id(topic_id)) is not None
            and number < len(topic.partitions)
            and (record := self._assign(topic, topic.partitions[number], actor, directory_id, liveness)) is not None
        )
        return ControllerResult(tuple(records), None)

    def _assign(
        self, topic: TopicImage, before: PartitionImage, actor: ActorImage, directory_id: uuid.UUID, liveness: Liveness
    ) -> PartitionChangeRecord | None:
        if actor.name not in before.actors or before.directory_of(actor.broker_id) == directory_id:
            return None
        after = replace(before, directories=before.with_directory(actor.broker_id, directory_id))
        elected = failover_state(after, liveness, unclean=self._unclean(topic))
        return PartitionChangeRecord.between(topic.topic_id, before, elected)

    def actor_died(self, name: str, epoch: int | None = None) -> ControllerResult[None]:
        """An actor died: elect other leaders for its partitions.

        Does nothing if the actor is unknown or offline, or has registered again since `epoch`.
        """
        actor = self.image.actors.get(name)
        if actor is None or not actor.online or epoch not in (None, actor.epoch):
            return ControllerResult((), None)
        return ControllerResult(tuple(self._offline([actor])), None)

    def retire_actor(self, name: str) -> ControllerResult[None]:
        """Remove an actor without replicas. Raises INVALID_REQUEST if it holds replicas."""
        if name not in self.image.actors:
            return ControllerResult((), None)
        if any(True for _ in held_by(self.image, frozenset((name,)))):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"actor {name} still holds replicas")
        return ControllerResult((UnregisterActorRecord(name),), None)

    def _offline(self, actors: list[ActorImage]) -> Iterator[MetadataRecord]:
        online = [actor for actor in actors if actor.online]
        names = frozenset(actor.name for actor in online)
        for actor in online:
            yield ActorChangeRecord(actor.name, actor.epoch, False)
        liveness = Liveness.of(self.image).without(names)
        yield from self._failovers(names, liveness)

    def _failovers(self, names: frozenset[str], liveness: Liveness) -> Iterator[PartitionChangeRecord]:
        for topic, partition in held_by(self.image, names):
            record = failover(topic, partition, liveness, unclean=self._unclean(topic))
            if record is not None:
                yield record

    def _restart(self, registration: ActorRegistration) -> Iterator[PartitionChangeRecord]:
        """New epochs for the partitions that the actor leads, and leaders for those that had none without it."""
        liveness = Liveness.of(self.image).with_actor(registration.name, registration.directory_id)
        for topic, partition in held_by(self.image, frozenset((registration.name,))):
            if partition.leader == registration.broker_id and liveness.is_online(partition, partition.leader):
                yield change(topic.topic_id, partition, partition.leader, partition.isr, restarted=True)
            else:
                record = failover(topic, partition, liveness, unclean=self._unclean(topic))
                if record is not None:
                    yield record

    def _unclean(self, topic: TopicImage) -> bool:
        configs = self.image.topic_configs(topic.name)
        return bool(resolve("unclean.leader.election.enable", self.config.texts, configs))


def _actor_epoch(before: ActorImage | None, registration: ActorRegistration) -> int:
    if before is None:
        return 1
    return before.epoch if before.incarnation == registration.incarnation else before.epoch + 1


def _broker_id(image: MetadataImage, registration: BrokerRegistration) -> int:
    known = _known_id(image, registration)
    wanted = registration.broker_id
    if wanted == -1:
        return image.next_broker_id if known is None else known
    holder = image.brokers.get(wanted)
    if holder is not None and known != wanted and not holder.fenced and holder.node_id != registration.node_id:
        raise RaykaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"broker id {wanted} is in use by another node, {holder.host}:{holder.port}: choose another id",
        )
    if known is not None and known != wanted:
        raise RaykaError(
            ErrorCode.INVALID_REGISTRATION,
            f"broker id {wanted} was requested, but the log directories belong to broker {known}",
        )
    return wanted


def _known_id(image: MetadataImage, registration: BrokerRegistration) -> int | None:
    """The id that the node's directories belong to.

    If none of the ids is known, a path in common with a broker on the same host decides. Without directory ids to tell
    them apart, so does a path that only one fenced broker has: its host may have a new name.
    """
    brokers = image.brokers.values()
    ids = set(registration.directory_ids)
    for broker in brokers:
        if not ids.isdisjoint(broker.directory_ids):
            return broker.broker_id
    paths = set(registration.log_dirs)
    sharing = [broker for broker in brokers if not paths.isdisjoint(broker.log_dirs)]
    here = [broker.broker_id for broker in sharing if broker.host == registration.host]
    down = [broker.broker_id for broker in sharing if broker.fenced and not (ids and broker.directory_ids)]
    if here:
        return here[0]
    return down[0] if len(down) == 1 else None
