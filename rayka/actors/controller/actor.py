"""The controller actor: owns the metadata log and its image, and keeps partition actors running.

The core turns a command into records and a response. The records are appended to the log, replayed and
sent to the followers of the image; then the command is answered. Produce, fetch and group requests never
wait for the controller. After a restart it replays its log and finds the partition actors running.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray.exceptions

from rayka.actors.background import BackgroundTasks, exit_if_failed, exit_process
from rayka.actors.controller.log import ChangeTooLarge, MetadataLog, MetadataLogDamaged
from rayka.actors.controller.watchers import Watchers
from rayka.actors.node.options import actor_options
from rayka.actors.node.pool import PartitionPool
from rayka.actors.node.spec import NodeSpec, is_partition_actor
from rayka.config import BrokerConfig
from rayka.config.groups import GROUP_CONFIGS
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import (
    ActorDied,
    ActorRegistration,
    AllocateProducerIds,
    AlterConfigs,
    AssignReplicasToDirs,
    BrokerRegistration,
    ControllerRequest,
    ControllerResult,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    ReadVersion,
    TopicResult,
    UpdateFeatures,
)
from rayka.metadata.controller import Changes, Controller, HistoryLost, Position
from rayka.metadata.features import NEW_CLUSTER_FEATURES
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import MetadataRecord, PartitionRecord
from rayka.storage.files import RealFiles

logger = logging.getLogger(__name__)

_WATCH_TIMEOUT_S = 60.0
_SETTLE_TIMEOUT_S = 5.0
_SPARE_TIMEOUT_S = 10.0
_OPEN_RETRY_S = 0.2
_START_PATIENCE_S = 20.0
_EXIT_DELAY_S = 0.2
_SETTLED_REQUESTS = (CreateTopics, CreatePartitions)


class ControllerActor:
    """Shell of `metadata.controller`. `spec` is that of the node that it runs on."""

    def __init__(self, spec: NodeSpec, files: RealFiles | None = None) -> None:
        self._spec = spec
        self._files = files
        self._watchers = Watchers()
        self._background = BackgroundTasks("controller")
        self._pool: PartitionPool | None = None
        self._log: MetadataLog | None = None
        self._refusal: RaykaError | None = None
        self._waits_for = "its start"
        self._started = asyncio.ensure_future(self._start())
        self._started.add_done_callback(exit_if_failed)

    async def _start(self) -> None:
        """Open the log and replay it. Whatever may pass (a lock that is held, a full disk) is waited for."""
        while (waits_for := self._try_open()) is not None:
            if waits_for != self._waits_for:
                logger.error("the controller can't start yet: %s", waits_for)
            self._waits_for = waits_for
            await asyncio.sleep(_OPEN_RETRY_S)
        if (broker_id := self._registered_broker()) is not None:
            self._manage(replace(self._spec, broker_id=broker_id))

    def _try_open(self) -> str | None:
        """The reason why the log can't be used yet, None if it is open. Raises MetadataLogDamaged."""
        try:
            config = BrokerConfig.parse(self._spec.configs)
            between_snapshots = config["metadata.log.max.record.bytes.between.snapshots"]
            self._log = MetadataLog(self._spec.controller_dir, between_snapshots, self._files)
            self._core = Controller(
                self._log.load(), self._spec.configs, GROUP_CONFIGS, uuid.uuid4().hex, self._log.removed
            )
            self._begin()
        except BlockingIOError:
            return f"{self._spec.controller_dir}, which another process holds"
        except (RaykaError, OSError) as error:
            self._release()
            if isinstance(error, MetadataLogDamaged) or not _may_pass(error):
                raise
            return str(error)
        return None

    def _begin(self) -> None:
        """Give a new cluster its id. In an old one, no actor of before is alive if Ray itself was restarted."""
        if not self._image.cluster_id:
            self._check_new()
            self._commit(self._core.create_cluster(str(uuid.uuid4()), NEW_CLUSTER_FEATURES).records)
        elif self._registered_broker() is None:
            for known in list(self._image.brokers):
                self._commit(self._core.broker_died(known).records)

    def _check_new(self) -> None:
        """The log directories remember their cluster: beside them an empty metadata log is one that was lost."""
        if self._spec.cluster_id:
            raise MetadataLogDamaged(
                f"{self._spec.controller_dir} is empty, but the log directories belong to cluster "
                f"{self._spec.cluster_id}"
            )

    def _release(self) -> None:
        if self._log is not None:
            self._log.release()
            self._log = None

    async def _serving(self) -> None:
        """Wait for the start. Raises what keeps the controller from serving, after a while also if it may pass."""
        try:
            await asyncio.wait_for(asyncio.shield(self._started), _START_PATIENCE_S)
        except TimeoutError:
            raise RaykaError(ErrorCode.BROKER_NOT_AVAILABLE, f"the controller waits for {self._waits_for}") from None
        if self._refusal is not None:
            raise self._refusal

    async def started(self) -> None:
        """Returns when the controller serves; raises the reason if it doesn't."""
        await self._serving()

    @property
    def _image(self) -> MetadataImage:
        return self._core.image

    def _registered_broker(self) -> int | None:
        """Our node's broker id, if it registered in this life of the Ray cluster: then its actors run."""
        ids = [broker.broker_id for broker in self._image.brokers.values() if broker.node_id == self._spec.node_id]
        return ids[0] if ids else None

    async def start_node(self, spec: NodeSpec, directory_ids: tuple[str, ...]) -> NodeSpec:
        """Register a node as a broker and start its partition actors.

        `directory_ids` are those of its log directories. Returns the spec with the ids of broker and cluster.
        """
        await self._serving()
        registration = BrokerRegistration(
            node_id=spec.node_id,
            host=spec.advertised_host,
            port=spec.advertised_port,
            broker_id=spec.broker_id,
            rack=spec.rack,
            directory_ids=directory_ids,
            log_dirs=spec.log_dirs,
        )
        result = self._core.register_broker(registration)
        self._commit(result.records)
        spec = replace(spec, broker_id=result.response.broker_id, cluster_id=self._image.cluster_id)
        self._manage(spec)
        await self._watchers.notify()
        return spec

    def _manage(self, spec: NodeSpec) -> None:
        """Start the node's partition actors: those that the image knows, and spares."""
        if self._pool is None:
            self._spec = spec = replace(spec, cluster_id=self._image.cluster_id)
            config = BrokerConfig.parse(spec.configs)
            grace_s = config["broker.session.timeout.ms"] / 1000
            self._pool = PartitionPool(spec, actor_options, self._actor_epoch, self._actor_lost, grace_s)
        known = max(self._limit(), len(self._image.actors))  # those that exist stay, even if the limit fell
        names = {spec.partition_actor_name(index): index for index in range(known)}
        self._pool.ensure(index for name, index in names.items() if name in self._image.actors)
        self._add_spares()

    def _limit(self) -> int:
        """How many partition actors the node may have."""
        configured = int(BrokerConfig.parse(self._spec.configs)["partition.actors.per.node"])
        return configured if configured > 0 else min(16, max(1, (os.cpu_count() or 2) // 2))

    def _add_spares(self) -> None:
        """Start actors until enough of them are without a replica, or the node is full."""
        assert self._pool is not None
        config = BrokerConfig.parse(self._spec.configs)
        used = {name for topic in self._image.topics.values() for p in topic.partitions for name in p.actors}
        room = self._limit() - len(self._pool.actors)
        spare = sum(name not in used for name in self._pool.actors)
        wanted = min(room, max(1 - len(self._pool.actors), int(config["warm.partition.actors"]) - spare))
        if wanted > 0:
            self._pool.ensure(self._pool.next_indexes(wanted))

    async def ready(self) -> None:
        """Returns when every partition actor serves."""
        await self._serving()
        assert self._pool is not None
        await self._pool.ready()

    async def lives(self) -> None:
        """Never return: the call fails when this process dies."""
        await asyncio.Event().wait()

    async def partition_actors(self) -> dict[str, Any]:
        """The handles of the node's partition actors by name, also while the controller refuses to serve."""
        if self._pool is None:
            await self._serving()
        return dict(self._pool.actors) if self._pool is not None else {}

    async def spec(self) -> NodeSpec:
        """The spec of the controller's node, for processes that come to the cluster through it."""
        await self._serving()
        return self._spec

    async def watch(self, watcher: str, position: Position) -> Changes:
        """What came after `position`, which the watcher has taken in; waits for something up to a minute.

        If a partition actor has seen changes that the log does not have, nothing is served any more: its replicas
        depend on them. A client or gateway that has is refused alone: it may be a stray one.
        """
        await self._serving()
        try:
            self._core.check_follower(position)
        except HistoryLost as error:
            if is_partition_actor(watcher):
                self._refuse(error)
            raise
        if watcher in self._image.actors:  # clients come and go under names of their own
            await self._watchers.has(watcher, position.version)
        await self._watchers.wait(lambda: self._image.version > position.version, _WATCH_TIMEOUT_S)
        return self._core.changes_since(position, has_replicas=is_partition_actor(watcher))

    def _refuse(self, error: RaykaError) -> None:
        """Serve nothing from now on; a restart would not help."""
        logger.critical("the controller stops: %s", error)
        self._refusal = error
        self._release()
        self._background.cancel()

    async def execute(self, request: ControllerRequest[Any]) -> tuple[int, Any]:
        """Carry out a request; returns the image's version after it and its response, or a RaykaError as a value."""
        try:
            await self._serving()
            return await self._execute(request)
        except RaykaError as error:
            return -1, error

    async def _execute(self, request: ControllerRequest[Any]) -> tuple[int, Any]:
        if isinstance(request, CreateTopics):
            await self._some_actor_online()
        result = _COMMANDS[type(request)](self._core, request)
        self._commit(result.records)
        version = self._image.version
        if result.records:
            await self._watchers.notify()
        if result.records and isinstance(request, _SETTLED_REQUESTS):
            await self._settle(result.records, version)
        return version, result.response

    def _commit(self, records: Sequence[MetadataRecord]) -> None:
        """Append first, then replay. Raises the refusal once the log has failed, also for a command that waited.

        The log may have the records of the command that failed, and the image does not: one more append would give
        followers another history than the log's.
        """
        if not records:
            return
        if self._refusal is not None:
            raise self._refusal
        assert self._log is not None
        self._core.check_records(records)
        try:
            self._log.append(records, self._image)
            self._core.replay(records)
            self._log.snapshot_if_due(self._image)
        except ChangeTooLarge:
            raise
        except (RaykaError, OSError) as error:
            self._log_failed(error)
            raise

    def _log_failed(self, error: Exception) -> None:
        """What the disk has is not known any more: start again from it, once the failed command is answered."""
        if self._started.done():
            logger.critical("the metadata log failed; the controller restarts: %s", error)
            self._refusal = RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log failed: {error}")
            asyncio.get_running_loop().call_later(_EXIT_DELAY_S, exit_process)

    async def _settle(self, records: Sequence[MetadataRecord], version: int) -> None:
        """Wait until the new replicas are served, then start spare actors in place of those that were used."""
        names = {name for record in records if isinstance(record, PartitionRecord) for name in record.image.actors}
        if not await self._watchers.settled(sorted(names), version, _SETTLE_TIMEOUT_S):
            logger.warning("not every new replica was served within %.0f s", _SETTLE_TIMEOUT_S)
        if self._pool is not None and names:
            try:
                self._add_spares()
            except ray.exceptions.RayError as error:  # the GCS is away; the topic is there all the same
                logger.warning("no spare partition actor could be started: %s", error)

    async def _some_actor_online(self) -> None:
        """After a start, wait for the first partition actor to register."""
        await self._watchers.wait(lambda: any(actor.online for actor in self._image.actors.values()), _SPARE_TIMEOUT_S)

    def _actor_epoch(self, name: str) -> int:
        """The epoch in which a partition actor registered last, 0 if it never did."""
        actor = self._image.actors.get(name)
        return 0 if actor is None else actor.epoch

    def _actor_lost(self, name: str, epoch: int) -> None:
        """A partition actor did not come back in time: elect other leaders, unless it has registered since `epoch`."""
        if self._refusal is not None:  # the log takes nothing more
            return
        records = self._core.actor_died(name, epoch).records
        if records:
            logger.error("%s is offline", name)
            self._commit(records)
            self._background.start("notify", self._watchers.notify())

    async def stop(self) -> None:
        """Close the metadata log cleanly. Nothing may follow the marker of a clean shutdown: the lock is given up."""
        if self._pool is not None:
            self._pool.stop()
        await self._background.stop()
        if self._log is not None and self._refusal is None:
            self._refusal = RaykaError(ErrorCode.BROKER_NOT_AVAILABLE, "the controller has stopped")
            self._log.close()


def _may_pass(error: RaykaError | OSError) -> bool:
    """Whether the same call may succeed later: the disk was full, for example."""
    return isinstance(error, OSError) or error.code is ErrorCode.KAFKA_STORAGE_ERROR


def _create_topics(core: Controller, request: CreateTopics) -> ControllerResult[list[TopicResult]]:
    return core.create_topics(request.topics, request.validate_only, [uuid.uuid4() for _ in request.topics])


_COMMANDS: Mapping[type[ControllerRequest[Any]], Callable[[Controller, Any], ControllerResult[Any]]] = {
    CreateTopics: _create_topics,
    DeleteTopics: lambda core, request: core.delete_topics(request.topics),
    CreatePartitions: lambda core, request: core.create_partitions(request.topics, request.validate_only),
    IncrementalAlterConfigs: lambda core, request: core.incremental_alter_configs(
        request.alterations, request.validate_only
    ),
    AlterConfigs: lambda core, request: core.alter_configs(request.replacements, request.validate_only),
    AllocateProducerIds: lambda core, request: core.allocate_producer_ids(request.broker_id),
    UpdateFeatures: Controller.update_features,
    ActorRegistration: Controller.register_actor,
    ActorDied: lambda core, request: core.actor_died(request.name, request.epoch),
    AssignReplicasToDirs: Controller.assign_replicas_to_dirs,
    ReadVersion: lambda core, request: ControllerResult((), core.image.version),
}
