"""What an actor tells the controller about its directory: real replicas and metadata, on a disk that fails at times."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from pathlib import Path

import pytest

from rayka.actors import background
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.actors.replica.assignments import DirectoryAssignments
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.roles import ReplicaRoles
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig, LogConfig
from rayka.coordinator.groups.spec import GROUPS, OFFSETS_TOPIC
from rayka.metadata.commands import ActorRegistration, AssignReplicasToDirs, NewTopic
from rayka.metadata.image import MetadataImage
from rayka.metadata.values import LOST, UNASSIGNED
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.types import TopicPartition
from tests.support.full_disk import FullDisk
from tests.unit.metadata.cluster import DIRECTORY, Cluster

NAME = "a1-0"
ORDERS = TopicPartition("orders", 0)


class Execute:
    """Ray's method handle, on a controller in this process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.reported = asyncio.Event()

    async def remote(self, request: AssignReplicasToDirs) -> tuple[int, None]:
        self._cluster.run(self._cluster.controller.assign_replicas_to_dirs(request))
        self.reported.set()
        return self._cluster.image.version, None


class Actor:
    """The parts of a partition actor that hold the replica of a new topic."""

    def __init__(self, path: Path) -> None:
        self.cluster = Cluster()
        self.cluster.add_broker(actors=1)
        self.cluster.create(NewTopic("orders", 1, 1))
        self.files = FullDisk()
        self.directory = LogDirectory.open(str(path), self.files, now_ms=0)
        self.directory.opened()
        self.disk = DiskThread()
        self.replicas = Replicas()
        server = ReplicaServer(self.replicas, self.directory, self.disk)
        config = BrokerConfig.parse({})
        groups = CoordinatorRuntime(GROUPS, server, config, 1)
        registration = ActorRegistration(NAME, 1, str(path), "life-1", DIRECTORY)
        self.execute = Execute(self.cluster)
        self.assignments = DirectoryAssignments(registration, self.directory, self.disk, self)
        self.roles = ReplicaRoles(
            NAME, self.replicas, self.directory, self.disk, server, {OFFSETS_TOPIC: groups}, self.assignments, config
        )

    async def follow(self) -> None:
        """Take in the present image as the first."""
        await self.roles.image_changed(MetadataImage(), self.cluster.image, frozenset())

    @property
    def assigned(self) -> uuid.UUID:
        """The directory of the replica, as the image has it."""
        return self.cluster.partition("orders").directory_of(1)

    async def stop(self) -> None:
        await self.assignments.stop()
        await self.roles.stop()
        self.disk.stop()


def test_a_report_of_directories_that_failed_is_sent_again(tmp_path: Path) -> None:
    async def test() -> None:
        actor = Actor(tmp_path)
        await actor.follow()
        failures = background.failures["report of directories"]
        actor.files.lacks_descriptors = True
        actor.assignments.start()
        while background.failures["report of directories"] == failures:
            await asyncio.sleep(0.001)
        actor.files.lacks_descriptors = False
        actor.directory.probe()
        await asyncio.wait_for(actor.execute.reported.wait(), 60)
        assert actor.assigned == DIRECTORY
        await actor.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_new_replica_that_could_not_be_created_is_created_when_the_disk_has_room(tmp_path: Path) -> None:
    async def test() -> None:
        actor = Actor(tmp_path)
        actor.assignments.start()
        actor.files.is_full = True
        await actor.follow()
        assert ORDERS not in actor.replicas
        for _ in range(20):  # time for a report that would say too much
            await actor.disk.run(lambda: None)
        assert actor.assigned == UNASSIGNED
        actor.files.is_full = False
        actor.directory.probe()
        await actor.roles.open_again()
        await asyncio.wait_for(actor.execute.reported.wait(), 60)
        assert ORDERS in actor.replicas
        assert actor.assigned == DIRECTORY
        await actor.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.parametrize(
    ("assigned", "is_here", "may_open", "reported"),
    [
        (UNASSIGNED, False, True, []),
        (UNASSIGNED, True, True, []),
        (DIRECTORY, True, True, []),
        (DIRECTORY, False, False, [LOST]),
        (LOST, True, True, []),
        (LOST, False, False, []),
        (uuid.UUID(int=77), True, False, []),
        (uuid.UUID(int=77), False, False, []),
    ],
)
def test_a_replica_that_should_be_somewhere_else_or_is_gone_is_not_created(
    tmp_path: Path, assigned: uuid.UUID, is_here: bool, may_open: bool, reported: list[uuid.UUID]
) -> None:
    """An empty log in its place would acknowledge records from offset 0 again."""

    async def run() -> None:
        actor = Actor(tmp_path)
        topic = actor.cluster.image.topics["orders"]
        if is_here:
            actor.directory.open_log(ORDERS, topic.topic_id, LogConfig(), now_ms=0)
        partition = dataclasses.replace(topic.partitions[0], directories=(assigned,))
        assert actor.assignments.may_open(topic, partition) is may_open
        assert list(actor.assignments._pending.values()) == reported
        await actor.stop()

    asyncio.run(run())
