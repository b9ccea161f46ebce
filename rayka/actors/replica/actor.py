"""The partition actor: holds a set of replicas in a log directory of its own, and serves clients.

Each start is the same, the first and those after a crash: lock the directory (the process before us is
then surely gone), register with the controller, which gives every partition that we lead a new leader
epoch, recover the logs that the image says are ours, and serve. From then on the image tells what comes
and goes. Nothing here asks the controller on the way of a produce or a fetch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import ray.exceptions

from rayka.actors.background import FAILURES_BEFORE_EXIT, BackgroundTasks, exit_if_failed
from rayka.actors.channel.requests import PublishRange, encode_failure
from rayka.actors.channel.router import handover_path, socket_path
from rayka.actors.channel.server import ChannelServer
from rayka.actors.channel.service import CallRequest, FrameService
from rayka.actors.cleaner.log_cleaner import LogCleaner
from rayka.actors.controller.client import execute_until_heard
from rayka.actors.controller.watch import ImageWatch, find_controller
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.actors.coordinator.specs import COORDINATORS
from rayka.actors.coordinator.transactions import TransactionLinks
from rayka.actors.node.interpreter import tune_interpreter
from rayka.actors.node.spec import NodeSpec
from rayka.actors.node.view import ClusterView
from rayka.actors.remote.reads import REMOTE_CACHE, RemoteReads
from rayka.actors.remote.remote_log import RemoteLog, Tiered
from rayka.actors.remote.stores import open_store
from rayka.actors.replica.assignments import DirectoryAssignments
from rayka.actors.replica.disk import PROBE_INTERVAL_S, DiskMonitor, DiskThread
from rayka.actors.replica.maintenance import LogUpkeep
from rayka.actors.replica.published_ranges import Published, PublishedRange, PublishedRanges, share_of_store
from rayka.actors.replica.roles import ReplicaRoles
from rayka.actors.replica.server import ReplicaServer
from rayka.actors.share.configs import ShareGroupConfigs
from rayka.actors.share.dead_letters import DeadLetterQueue
from rayka.actors.share.partitions import SharePartitions
from rayka.actors.share.persister import CoordinatorPersister
from rayka.config import BrokerConfig
from rayka.config.remote import SYSTEM_ENABLE
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.listener import Listener
from rayka.metadata.commands import ActorDied, ActorRegistration
from rayka.metadata.image import MetadataImage
from rayka.replica.replicas import Replicas
from rayka.storage.directory.disk_state import State
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.directory.meta_properties import MetaProperties
from rayka.storage.files import RealFiles
from rayka.storage.remote.remote_range import RemoteRange

logger = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 30.0
_LOCK_RETRY_S = 0.05
_CLIENT_GRACE_S = 1.0
_REGISTER_RETRY_S = 0.1


class PartitionActor:
    """Shell of `Replicas`; `index` counts the partition actors of the node."""

    def __init__(self, spec: NodeSpec, index: int) -> None:
        self._spec = spec
        self._name = spec.partition_actor_name(index)
        self._path = spec.log_dir_of(index)
        self._published: PublishedRanges | None = None
        self._is_stopped = False
        self._started = asyncio.ensure_future(self._start())
        self._started.add_done_callback(exit_if_failed)

    async def _start(self) -> None:
        config = BrokerConfig.parse(self._spec.configs)
        await self._join_node()
        self._hold_replicas(config)
        await self._follow_metadata()
        await self._open_channel()
        self._maintain_logs(config)
        await self._listen()
        tune_interpreter()
        logger.info("%s holds %d replicas", self._name, len(self._replicas))

    async def _join_node(self) -> None:
        """Lock the log directory, and get an epoch from the controller."""
        self._controller = find_controller(self._spec.namespace)
        self._disk = DiskThread()
        self._background = BackgroundTasks(self._name)
        self._directory = await self._lock()
        assert self._directory.properties is not None
        self._registration = ActorRegistration(
            self._name,
            self._spec.broker_id,
            self._path,
            uuid.uuid4().hex,
            self._directory.properties.directory_id,
        )
        self._epoch = (await execute_until_heard(self._controller, self._registration)).epoch

    def _hold_replicas(self, config: BrokerConfig) -> None:
        """The server of the replicas, and the coordinators on top of it; it has no replicas yet."""
        self._replicas = Replicas()
        self._server = ReplicaServer(self._replicas, self._directory, self._disk)
        self._service = FrameService(self._server)
        self._coordinators = {
            topic: CoordinatorRuntime(kind, self._server, config, self._spec.broker_id)
            for topic, kind in COORDINATORS.items()
        }
        for topic, coordinator in self._coordinators.items():
            self._server.offer(COORDINATORS[topic].name, coordinator.execute)
            self._server.offer_markers(topic, coordinator.write_marker)
        self._assignments = DirectoryAssignments(self._registration, self._directory, self._disk, self._controller)
        self._roles = ReplicaRoles(
            self._name,
            self._replicas,
            self._directory,
            self._disk,
            self._server,
            self._coordinators,
            self._assignments,
            config,
        )

    async def _follow_metadata(self) -> None:
        """Open the replicas that the image gives to this actor, in their roles, and follow it from here on."""
        self._watch = ImageWatch(
            self._controller,
            self._name,
            self._image_changed,
            die_after=FAILURES_BEFORE_EXIT,
            deletions_version=self._directory.deletions_version,
        )
        self._view = ClusterView(self._controller, self._spec, self._watch, own={self._name: self._server})
        self._link_transactions()
        self._monitor = DiskMonitor(self._directory, self._disk, self._roles.open_again, self._went_offline)
        await _until_answered(self._watch.start)
        await self._disk.run(lambda: self._begin_writing(self._roles))
        self._assignments.start()
        self._monitor.check()

    async def _open_channel(self) -> None:
        """Serve the other processes of the node."""
        self._channel = ChannelServer(socket_path(self._spec.socket_dir, self._name, self._epoch), self._service.serve)
        await self._channel.start()

    def _maintain_logs(self, config: BrokerConfig) -> None:
        """Start retention, compaction and the copying to a remote store."""
        self._upkeep = LogUpkeep(self._replicas, self._directory, self._disk, self._server, config)
        self._upkeep.start()
        self._cleaner = LogCleaner(
            self._replicas, self._directory, self._disk, lambda: self._view.config, self._spec.cleaner_dir
        )
        self._cleaner.start()
        self._remote_log = self._start_remote_log(config)

    async def _listen(self) -> None:
        """Lend records to share groups, and serve Kafka clients."""
        self._share_partitions = SharePartitions(
            self._replicas,
            CoordinatorPersister(self._view.shares),
            ShareGroupConfigs(self._view).of,
            DeadLetterQueue(self._view),
            self._server.reads.remote,
        )
        self._server.share_partitions = self._share_partitions
        self._listener = Listener(
            self._view,
            self._spec.host,
            self._spec.port,
            usage_dir=self._spec.usage_dir,
            handover_path=handover_path(self._spec.socket_dir, self._name, self._epoch),
        )
        await self._listener.start()

    def _start_remote_log(self, config: BrokerConfig) -> RemoteLog | None:
        """Serve what is in the remote store, and keep it in step with the logs, if there is one."""
        if not config[SYSTEM_ENABLE]:
            return None
        store = open_store(config)
        reads = RemoteReads(self._replicas, self._view, store, os.path.join(self._path, REMOTE_CACHE))
        remote_log = RemoteLog(
            self._name,
            self._view,
            self._view.controller.catch_up,
            self._replicas,
            self._directory,
            self._disk,
            store,
            reads.forget,
        )
        reads.known = remote_log.known
        self._server.reads.remote, self._roles.remote_log = reads, remote_log
        self._remote_reads = reads
        remote_log.start()
        return remote_log

    def _begin_writing(self, roles: ReplicaRoles) -> None:
        """Begin to append. If the disk refuses that, its monitor tries again later, and reads are served meanwhile."""
        try:
            roles.set_strays_aside(self._watch.image)
            self._directory.opened()
        except RaykaError as error:
            logger.error("%s", error)

    def _link_transactions(self) -> None:
        """Give the partitions a way to the coordinators of their transactions, and those a way to the partitions."""
        view = self._view
        links = TransactionLinks(view.transactions, view.partitions, lambda: view.config, view.controller.catch_up)
        self._server.verify_with(links.verify)
        for coordinator in self._coordinators.values():
            coordinator.outside = links

    def _resign_coordinators(self) -> None:
        for coordinator in self._coordinators.values():
            coordinator.resign()

    def _went_offline(self) -> None:
        """The log directory is offline: lead nothing of it any longer, and say so."""
        self._resign_coordinators()
        for partition in self._replicas:
            partition.resign()
            self._server.release(partition.topic_partition, ErrorCode.KAFKA_STORAGE_ERROR)
        self._background.start(
            "report of an offline log directory",
            execute_until_heard(self._controller, ActorDied(self._name, self._epoch)),
        )

    async def _image_changed(self, before: MetadataImage, after: MetadataImage, removed: frozenset[uuid.UUID]) -> None:
        await self._roles.image_changed(before, after, removed)
        if is_taken_for_dead(self._registration, after) and self._directory.disk.state is not State.OFFLINE:
            logger.warning("the controller had declared %s dead; registering again", self._name)
            self._background.start("registration", self._register())

    async def _register(self) -> None:
        await execute_until_heard(self._controller, self._registration)

    async def _lock(self) -> LogDirectory:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        identity = MetaProperties(self._spec.cluster_id, self._spec.broker_id, uuid.uuid4())
        while True:
            now_ms = time.time_ns() // 1_000_000
            try:
                return LogDirectory.open(self._path, RealFiles(), now_ms=now_ms, properties=identity)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_LOCK_RETRY_S)
            except RaykaError as error:
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                logger.error("trying again in %.0f s: %s", PROBE_INTERVAL_S, error)
                await asyncio.sleep(PROBE_INTERVAL_S)

    async def ready(self) -> str:
        """Returns when it serves."""
        await self._started
        return self._name

    async def lives(self) -> None:
        """Never returns: the call fails when this process dies."""
        await asyncio.Event().wait()

    async def process_id(self) -> int:
        """The operating system's id of this process."""
        return os.getpid()

    async def serve(self, number: int, control: bytes, payload: bytes) -> tuple[bool, bytes]:
        """One request by actor call, for callers on other nodes: whether it failed, and the answer or the error."""
        await self._started
        try:
            self._check_serves()
            request = CallRequest(number, control, payload)
            self._service.serve(request)
            return await request.answered
        except RaykaError as error:
            return True, encode_failure(error)

    def _check_serves(self) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER once the actor stops: nothing may follow the marker of a clean shutdown."""
        if self._is_stopped:
            raise RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._name} is stopping")

    async def stop(self) -> None:
        """Close the logs cleanly: the next start recovers nothing."""
        await self._started
        await self._listener.stop(_CLIENT_GRACE_S)
        self._share_partitions.close()
        self._resign_coordinators()
        await self._channel.stop()
        self._is_stopped = True
        await self._assignments.stop()
        await self._view.stop()
        await self._cleaner.stop()
        if self._remote_log is not None:
            await self._remote_log.stop()
            await self._remote_reads.stop()
        await self._upkeep.stop()
        await self._roles.stop()
        await self._monitor.stop()
        await self._server.stop()
        self._disk.stop()
        self._directory.close([partition.log for partition in self._replicas], now_ms=time.time_ns() // 1_000_000)

    async def publish(self, request: PublishRange) -> list[PublishedRange] | RemoteRange:
        """As `PublishedRanges.publish`."""
        await self._started
        self._check_serves()
        if self._published is None:
            self._published = PublishedRanges(
                self._replicas,
                lambda: share_of_store(self._watch.image, self._spec.broker_id),
                remote=self._server.reads.remote,
            )
        return await self._published.publish(request)

    async def tiered(self) -> Tiered:
        """What tiered storage did so far."""
        return Tiered() if self._remote_log is None else self._remote_log.done

    async def published(self) -> Published:
        """What `publish` did so far."""
        return Published() if self._published is None else self._published.published


def is_taken_for_dead(registration: ActorRegistration, image: MetadataImage) -> bool:
    """Whether the image says that this running process is offline."""
    actor = image.actors.get(registration.name)
    return actor is not None and not actor.online and actor.incarnation == registration.incarnation


async def _until_answered(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call to the controller while it is away; Ray brings it back in about a second.

    Raises RaykaError if it refuses permanently.
    """
    while True:
        try:
            return await call()
        except ray.exceptions.RayError as error:
            if isinstance(error, RaykaError) and not error.code.retriable:
                raise
            logger.warning("waiting for the controller: %s", error)
            await asyncio.sleep(_REGISTER_RETRY_S)
