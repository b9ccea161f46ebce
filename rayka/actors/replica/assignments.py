"""The log directory of each replica (KIP-858), in the metadata image and on disk.

A replica is created once. From then on the image has the id of its directory, and a replica that is not there is
offline: an empty log in its place would acknowledge records from offset 0 again.

| the image says | its files are here | then |
|----------------|--------------------|------|
| UNASSIGNED     | yes or no          | open or create the log, report this directory |
| this directory | yes                | open the log |
| this directory | no                 | report LOST |
| LOST           | yes                | somebody brought them back: open the log, report this directory |
| LOST           | no                 | nothing |
| another one    | yes or no          | nothing: its disk is not mounted, or `log.dirs` does not name it |
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from rayka.actors.background import BackgroundTasks
from rayka.actors.controller.client import execute_until_heard
from rayka.actors.replica.disk import DiskThread
from rayka.metadata.commands import ActorRegistration, AssignReplicasToDirs
from rayka.metadata.image import PartitionImage, TopicImage
from rayka.metadata.values import LOST, UNASSIGNED
from rayka.storage.directory.log_directory import LogDirectory
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)


class DirectoryAssignments:
    """The replicas of one actor in its log directory; what the image lacks is reported until the controller has it."""

    def __init__(
        self, registration: ActorRegistration, directory: LogDirectory, disk: DiskThread, controller: Any
    ) -> None:
        self._registration = registration
        self._directory = directory
        self._disk = disk
        self._controller = controller
        self._pending: dict[tuple[uuid.UUID, int], uuid.UUID] = {}
        self._news = asyncio.Event()
        self._background = BackgroundTasks(registration.name)

    def start(self) -> None:
        """Begin to report."""
        self._background.repeat("report of directories", self._report)

    async def stop(self) -> None:
        """Report no longer."""
        await self._background.stop()

    def may_open(self, topic: TopicImage, partition: PartitionImage) -> bool:
        """Whether the log of a replica of ours may be opened or created here."""
        name = TopicPartition(topic.name, partition.partition)
        directory_id = self._registration.directory_id
        assigned = partition.directory_of(self._registration.broker_id)
        if assigned == UNASSIGNED or (assigned in (directory_id, LOST) and self._directory.has(name, topic.topic_id)):
            return True
        if assigned == directory_id:
            logger.error("%s is offline: its files are gone from %s", name, self._directory.path)
            self._add(topic, partition, LOST)
        elif assigned != LOST:
            logger.error("%s is offline: it is in log directory %s, but %s is %s",
                         name, assigned, self._directory.path, directory_id)  # fmt: skip
        return False

    def opened(self, topic: TopicImage, partition: PartitionImage) -> None:
        """The log of a replica of ours is open: report this directory if the image does not have it."""
        directory_id = self._registration.directory_id
        if partition.directory_of(self._registration.broker_id) != directory_id:
            self._add(topic, partition, directory_id)

    def _add(self, topic: TopicImage, partition: PartitionImage, directory_id: uuid.UUID) -> None:
        self._pending[topic.topic_id, partition.partition] = directory_id
        self._news.set()

    async def _report(self) -> None:
        """The new directories are on the disk before the image says that they must be there."""
        await self._news.wait()
        reported = dict(self._pending)
        await self._disk.run(self._directory.sync)
        request = AssignReplicasToDirs(self._registration.name, self._registration.incarnation, reported)
        await execute_until_heard(self._controller, request)
        for replica, directory_id in reported.items():
            if self._pending.get(replica) == directory_id:
                del self._pending[replica]
        if not self._pending:  # a report that failed is sent again
            self._news.clear()
