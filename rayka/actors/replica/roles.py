"""Applies the metadata image to one partition actor: which replicas it hosts, in which role, with which configs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from rayka.actors.background import BackgroundTasks
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.actors.remote.remote_log import RemoteLog
from rayka.actors.replica.assignments import DirectoryAssignments
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.journal_files import FoundJournal
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig, LogConfig
from rayka.errors import RaykaError
from rayka.metadata.image import MetadataImage, PartitionImage, TopicImage
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.log.log import Log
from rayka.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

_CONFIGURED_A_TURN = 50
"""How many logs take up new configs before other requests are served."""


class ReplicaRoles:
    """Carries out the differences between one image and the next, for the replicas of actor `name`.

    `coordinators` are those of this process, by the topic of their state.
    """

    def __init__(
        self,
        name: str,
        replicas: Replicas,
        directory: LogDirectory,
        disk: DiskThread,
        server: ReplicaServer,
        coordinators: Mapping[str, CoordinatorRuntime[Any]],
        assignments: DirectoryAssignments,
        config: BrokerConfig,
    ) -> None:
        self._name = name
        self._replicas = replicas
        self._directory = directory
        self._disk = disk
        self._lock = asyncio.Lock()
        self._image = MetadataImage()
        self._not_opened: set[str] = set()
        self._began_to_lead: list[Partition] = []
        self._background = BackgroundTasks(name)
        self._server = server
        self._coordinators = coordinators
        self._assignments = assignments
        self._configs = config.texts
        self.remote_log: RemoteLog | None = None
        self._producer_id_expiration_ms = int(config["producer.id.expiration.ms"])

    async def image_changed(self, before: MetadataImage, after: MetadataImage, removed: frozenset[uuid.UUID]) -> None:
        """Take in a new image; only topics that changed are examined. `removed` are the ids of deleted topics.

        Returns when the replicas of the image serve.
        """
        async with self._lock:
            self._image = after
            for coordinator in self._coordinators.values():
                coordinator.take_image(after)
            for name, topic in before.topics.items():
                present = after.topics.get(name)
                if present is not topic and (present is None or present.topic_id != topic.topic_id):
                    await self._remove(topic, is_deleted=topic.topic_id in removed)
            if removed:
                await self._disk.run(lambda: self._delete_left(removed, after.version))
            for name, topic in after.topics.items():
                if before.topics.get(name) is not topic:
                    await self._follow(topic, after)
            if before.configs is not after.configs:
                await self._reconfigure(before, after)
            for coordinator in self._coordinators.values():
                coordinator.image_changed(before, after)
            self._assign_epochs()

    async def stop(self) -> None:
        """Leave epochs that are not written yet to the first append."""
        await self._background.stop()

    async def open_again(self) -> None:
        """Try the replicas again that could not be opened: the disk is in order again.

        They get the roles of the image that was taken in last, also if that happens while this waits.
        """
        async with self._lock:
            image = self._image
            for name in sorted(self._not_opened & image.topics.keys()):
                await self._follow(image.topics[name], image)
            self._assign_epochs()

    def set_strays_aside(self, image: MetadataImage) -> None:
        """Rename the directories of topics that the image does not know: they are kept (`LogDirectory.set_aside`)."""
        for topic_partition, topic_id in list(self._directory.partitions.items()):
            if topic_id is not None and image.topic_by_id(topic_id) is None:
                self._directory.set_aside(topic_partition)
        for path in self._directory.stray_partitions:
            logger.warning("%s belongs to a topic that the cluster does not know; remove it if you don't need it", path)

    def _own_partitions(self, topic: TopicImage) -> Iterable[PartitionImage]:
        return (partition for partition in topic.partitions if self._name in partition.actors)

    async def _follow(self, topic: TopicImage, image: MetadataImage) -> None:
        """Take the roles of all replicas of a topic. Until that has succeeded, the topic counts as not opened."""
        self._not_opened.add(topic.name)
        are_open = True
        for partition in self._own_partitions(topic):
            topic_partition = TopicPartition(topic.name, partition.partition)
            try:
                await self._take_role(topic_partition, topic, partition, image)
            except RaykaError as error:
                logger.error("%s can't be served: %s", topic_partition, error)
                are_open = False
        if are_open:
            self._not_opened.discard(topic.name)

    async def _take_role(
        self, topic_partition: TopicPartition, topic: TopicImage, partition: PartitionImage, image: MetadataImage
    ) -> None:
        if topic_partition not in self._replicas:
            if not self._assignments.may_open(topic, partition):
                return
            config = self._config(topic.name, image)
            log, journals = await self._disk.run(lambda: self._open_log(topic_partition, topic.topic_id, config))
            self._assignments.opened(topic, partition)
            opened = Partition(log, topic.topic_id, is_internal=topic.is_internal)
            log.when_rolled(functools.partial(self._rolled, opened))
            self._replicas.add(opened)
            self._server.put_journals.take_over(opened, journals)
        replica = self._replicas.get(topic_partition)
        if partition.leader_actor == self._name:
            replica.become_leader(
                partition.leader_epoch,
                replica_count=len(partition.replicas),
                in_sync_count=len(partition.isr),
            )
            self._began_to_lead.append(replica)
            if topic.name in self._coordinators:
                self._coordinators[topic.name].leads(replica)
        else:
            self._resign(replica)

    def _rolled(self, partition: Partition) -> None:
        """Flush the closed segment, and make the file for the next roll.

        Where segments are removed at once, the closed one may be gone soon: it is flushed later, if it is still there.
        """
        if partition.log.config.file_delete_delay_ms:
            self._server.flush((partition,))
        else:
            self._disk.start(partition.log.make_spare)

    def _open_log(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, config: LogConfig
    ) -> tuple[Log, list[FoundJournal]]:
        log = self._directory.open_log(
            topic_partition,
            topic_id,
            config,
            now_ms=time.time_ns() // 1_000_000,
            jitter=random.random(),
            producer_id_expiration_ms=self._producer_id_expiration_ms,
        )
        try:
            return log, self._server.put_journals.find(os.path.join(self._directory.path, str(topic_partition)))
        except BaseException:
            log.release()  # the next attempt opens it again
            raise

    def _assign_epochs(self) -> None:
        """Write new leader epochs down in the background. An append that comes earlier writes its own."""
        led, self._began_to_lead = self._began_to_lead, []
        if led:
            self._background.start("leader epochs", self._write_epochs(led))

    async def _write_epochs(self, led: list[Partition]) -> None:
        for replica in led:
            try:
                await self._disk.run(functools.partial(replica.log.assign_epoch, replica.leader_epoch))
            except RaykaError as error:
                logger.warning(
                    "%s: leader epoch %d is not written yet: %s", replica.topic_partition, replica.leader_epoch, error
                )

    def _resign(self, replica: Partition) -> None:
        replica.resign()
        self._server.release(replica.topic_partition)
        topic, number = replica.topic_partition
        if topic in self._coordinators:
            self._coordinators[topic].leaves(number)

    async def _remove(self, topic: TopicImage, *, is_deleted: bool) -> None:
        self._not_opened.discard(topic.name)
        for partition in self._own_partitions(topic):
            topic_partition = TopicPartition(topic.name, partition.partition)
            if topic_partition not in self._replicas:
                if is_deleted:
                    await self._delete_unopened(topic_partition, topic.topic_id)
                continue
            self._server.put_journals.removed(topic_partition)
            replica = self._replicas.remove(topic_partition)
            self._resign(replica)
            replica.log.release()
            await self._remove_files(replica, is_deleted)
            if is_deleted and self.remote_log is not None:
                self.remote_log.partitions_removed([TopicIdPartition(topic.topic_id, topic_partition)])

    def _delete_left(self, removed: frozenset[uuid.UUID], version: int) -> None:
        """Delete the files of topics that were deleted while this actor was away; `version` is that of the image."""
        try:
            for topic_partition, topic_id in list(self._directory.partitions.items()):
                if topic_id in removed and topic_partition not in self._replicas:
                    self._directory.delete_unopened(topic_partition, topic_id, uuid.uuid4().hex)
            self._directory.note_deletions(version)
        except RaykaError as error:
            logger.error("not every file of deleted topics could be deleted: %s", error)

    async def _delete_unopened(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Delete the files of a log that could not be opened: nobody would know of them any more."""
        try:
            unique = uuid.uuid4().hex
            await self._disk.run(lambda: self._directory.delete_unopened(topic_partition, topic_id, unique))
        except RaykaError as error:
            logger.error("%s could not be deleted: %s", topic_partition, error)

    async def _remove_files(self, replica: Partition, is_deleted: bool) -> None:
        """Keep the files of a topic unless its deletion was seen: the metadata may be what is wrong."""
        topic_partition = replica.topic_partition
        try:
            if is_deleted:
                await self._disk.run(lambda: self._delete_log(replica))
            else:
                path = await self._disk.run(lambda: self._directory.set_aside(topic_partition))
                logger.warning(
                    "%s is missing from the metadata, but was not deleted: its files were moved to %s",
                    topic_partition,
                    path,
                )
        except RaykaError as error:
            logger.error("%s could not be deleted: %s", topic_partition, error)

    def _delete_log(self, replica: Partition) -> None:
        """Delete the files, after the delay that the topic has, if it has one: it counts from now on.

        What can't be removed now, as without a free descriptor, is tried again with the next retention.
        """
        now_ms = time.time_ns() // 1_000_000
        with contextlib.suppress(RaykaError):
            self._directory.remove_deleted(now_ms)
        self._directory.delete_log(replica.log, uuid.uuid4().hex)
        self._directory.remove_deleted(now_ms)

    async def _reconfigure(self, before: MetadataImage, after: MetadataImage) -> None:
        """Take up the configs of topics that changed, or of all if the broker's did. Requests are served in between."""
        are_all_changed = self._broker_configs(before) != self._broker_configs(after)
        config_of = functools.cache(lambda topic: self._config(topic, after))
        for number, partition in enumerate(self._replicas):
            topic = partition.topic_partition.topic
            if are_all_changed or before.topic_configs(topic) != after.topic_configs(topic):
                partition.log.configure(config_of(topic))
                self._server.put_journals.configured(partition)
            if number % _CONFIGURED_A_TURN == _CONFIGURED_A_TURN - 1:
                await asyncio.sleep(0)

    def _config(self, topic: str, image: MetadataImage) -> LogConfig:
        return LogConfig.resolve({**self._configs, **self._broker_configs(image)}, image.topic_configs(topic))

    def _broker_configs(self, image: MetadataImage) -> Mapping[str, str]:
        actor = image.actors.get(self._name)
        return image.broker_configs(-1 if actor is None else actor.broker_id)
