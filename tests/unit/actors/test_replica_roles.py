"""Which replicas an actor serves after its disk could not open them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import threading
import time
import uuid
from pathlib import Path

import pytest

from rayka.actors.controller.watch import ImageWatch
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.actors.replica.assignments import DirectoryAssignments
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.roles import ReplicaRoles
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig, LogConfig
from rayka.coordinator.groups.spec import GROUPS, OFFSETS_TOPIC
from rayka.metadata.commands import ActorRegistration
from rayka.metadata.controller import Changes, Position, RemovedTopic
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.metadata.values import UNASSIGNED, PartitionImage, TopicImage
from rayka.replica.replicas import Replicas
from rayka.storage.directory.disk_state import State
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.segments.spare import FILE_NAME
from rayka.types import TopicPartition
from tests.support.logs import append

ACTOR = "a1-0"
PARTITION = PartitionImage(0, 1, 0, (1,), (1,), 0, (ACTOR,), (UNASSIGNED,))
TOPICS = [TopicImage(name, uuid.uuid4(), (PARTITION,)) for name in ("a", "b", "c")]
IMAGE = MetadataImage(
    version=1,
    topics={topic.name: topic for topic in TOPICS},
    topic_names_by_id={topic.topic_id: topic.name for topic in TOPICS},
)


class NoNewDirectories(RealFiles):
    """Raises `error`, if there is one, for every new directory of a partition, and `removal_error` for removing one."""

    error: BaseException | None = None
    removal_error: OSError | None = None

    def __init__(self) -> None:
        self.made = threading.Event()
        self.going_on = threading.Event()
        self.going_on.set()

    def make_directory(self, path: str) -> None:
        self.made.set()
        assert self.going_on.wait(60)
        if self.error is not None:
            raise self.error
        super().make_directory(path)

    def remove_directory(self, path: str) -> None:
        if self.removal_error is not None:
            raise self.removal_error
        super().remove_directory(path)


class Actor:
    """The replicas of one actor, which has no controller to report to."""

    def __init__(self, path: Path) -> None:
        self.files = NoNewDirectories()
        self.directory = LogDirectory.open(str(path), self.files, now_ms=0)
        self.replicas = Replicas()
        config, self.disk = BrokerConfig.parse({}), (disk := DiskThread())
        self.server = server = ReplicaServer(self.replicas, self.directory, disk)
        assignments = DirectoryAssignments(ActorRegistration(ACTOR, 1, str(path), "1"), self.directory, disk, None)
        self.groups = groups = CoordinatorRuntime(GROUPS, server, config, 1)
        self.roles = ReplicaRoles(
            ACTOR, self.replicas, self.directory, disk, server, {OFFSETS_TOPIC: groups}, assignments, config
        )

    async def take(self, before: MetadataImage, after: MetadataImage) -> None:
        await self.roles.image_changed(before, after, frozenset())

    @property
    def served(self) -> list[str]:
        return [topic.name for topic in TOPICS if TopicPartition(topic.name, 0) in self.replicas]


def test_a_coordinator_that_loads_while_other_logs_are_opened_knows_the_topics(tmp_path: Path) -> None:
    async def run() -> None:
        actor = Actor(tmp_path)
        actor.files.going_on.clear()
        taking = asyncio.create_task(actor.take(MetadataImage(), IMAGE))
        await asyncio.to_thread(actor.files.made.wait, 60)
        assert actor.groups._topics.by_id.keys() == IMAGE.topic_names_by_id.keys()
        actor.files.going_on.set()
        await taking
        await actor.roles.stop()

    asyncio.run(run())


def full_disk() -> OSError:
    """The error of a disk that may take writes again later."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_a_failed_attempt_did_not_reach_is_opened_by_the_next(tmp_path: Path) -> None:
    async def run() -> None:
        actor = Actor(tmp_path)
        actor.files.error = full_disk()
        await actor.take(MetadataImage(), IMAGE)
        assert actor.served == []
        actor.files.error = MemoryError()
        with pytest.raises(MemoryError):
            await actor.roles.open_again()
        actor.files.error = None
        await actor.roles.open_again()
        assert actor.served == ["a", "b", "c"]
        await actor.roles.stop()

    asyncio.run(run())


def test_a_log_whose_journals_can_not_be_opened_leaves_no_descriptor(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "a-0").mkdir()
        (tmp_path / "a-0" / "1.journal").touch()
        actor = Actor(tmp_path)
        before, opened = open_descriptors(tmp_path), actor.files.open

        def open_no_journal(path: str, **options: bool) -> int:
            if path.endswith(".journal"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return opened(path, **options)

        actor.files.open = open_no_journal  # type: ignore[method-assign]
        only_a = dataclasses.replace(IMAGE, topics={"a": TOPICS[0]})
        await actor.take(MetadataImage(), only_a)
        assert actor.served == []
        assert open_descriptors(tmp_path) == before
        del actor.files.open
        await actor.roles.open_again()
        assert actor.served == ["a"]
        await actor.roles.stop()

    asyncio.run(run())


def open_descriptors(path: Path) -> list[str]:
    """The files below `path` that this process has open."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(each))
    return sorted(one for one in found if one.startswith(str(path)))


def test_a_disk_that_recovers_while_a_new_image_is_taken_in_brings_no_older_one_back(tmp_path: Path) -> None:
    async def run() -> None:
        actor = Actor(tmp_path)
        actor.files.error = full_disk()
        await actor.take(MetadataImage(), IMAGE)
        again = TopicImage("a", uuid.uuid4(), (PARTITION,))
        newer = MetadataImage(
            version=2,
            topics={"a": again, "c": TOPICS[2]},
            topic_names_by_id={again.topic_id: "a", TOPICS[2].topic_id: "c"},
        )
        async with actor.roles._lock:  # as while the image before is still taken in
            recreation = asyncio.create_task(actor.take(IMAGE, newer))
            await asyncio.sleep(0)
            recovery = asyncio.create_task(actor.roles.open_again())
            await asyncio.sleep(0)
        await recreation
        actor.files.error = None
        await recovery
        assert actor.served == ["a", "c"]
        assert actor.replicas.get(TopicPartition("a", 0)).topic_id == again.topic_id
        await actor.roles.stop()

    asyncio.run(run())


@pytest.mark.parametrize("is_deleted", [True, False])
def test_only_a_deletion_that_was_seen_deletes_files(tmp_path: Path, is_deleted: bool) -> None:
    """A topic that an image lacks may be one that damaged metadata has forgotten: its files are set aside."""

    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        topic = TOPICS[0]
        later = MetadataImage(
            version=2,
            topics={other.name: other for other in TOPICS[1:]},
            topic_names_by_id={other.topic_id: other.name for other in TOPICS[1:]},
        )
        await actor.roles.image_changed(IMAGE, later, frozenset({topic.topic_id} if is_deleted else ()))
        assert actor.served == ["b", "c"]
        names = [name for name in os.listdir(tmp_path) if name.startswith("a-0")]
        assert [name.rpartition("-")[2] for name in names] == ["delete" if is_deleted else "stray"]
        assert len(actor.directory.stray_partitions) == (0 if is_deleted else 1)
        await actor.roles.stop()

    asyncio.run(run())


def test_a_deleted_topic_without_a_delay_leaves_no_files(tmp_path: Path) -> None:
    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        actor.replicas.get(TopicPartition("a", 0)).log.configure(LogConfig(file_delete_delay_ms=0))
        await actor.roles.image_changed(IMAGE, MetadataImage(version=2), frozenset(IMAGE.topic_names_by_id))
        names = [name for name in os.listdir(tmp_path) if name[1:3] == "-0"]
        assert sorted(name[0] for name in names) == ["b", "c"]
        assert all(name.endswith("-delete") for name in names)
        await actor.roles.stop()

    asyncio.run(run())


@pytest.mark.parametrize("delay_ms", [0, 1000])
def test_a_segment_that_may_be_removed_at_once_is_not_flushed_at_the_roll(tmp_path: Path, delay_ms: int) -> None:
    """The file for the next roll is made in either case."""

    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        log = actor.replicas.get(TopicPartition("a", 0)).log
        log.configure(LogConfig(segment_bytes=200, file_delete_delay_ms=delay_ms))
        while len(log.segments) < 3:
            append(log, b"x" * 50)
        await actor.server.stop()
        await actor.disk.run(lambda: None)
        assert log.recovery_point == (log.log_end_offset if delay_ms else 0)
        assert (tmp_path / "a-0" / FILE_NAME).exists()
        await actor.roles.stop()

    asyncio.run(run())


def test_files_that_cannot_be_removed_now_keep_no_other_topic_from_its_deletion(tmp_path: Path) -> None:
    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        actor.replicas.get(TopicPartition("a", 0)).log.configure(LogConfig(file_delete_delay_ms=0))
        actor.files.removal_error = OSError(errno.EMFILE, "too many open files")
        await actor.roles.image_changed(IMAGE, MetadataImage(version=2), frozenset(IMAGE.topic_names_by_id))
        names = sorted(name for name in os.listdir(tmp_path) if name[1:3] == "-0")
        assert [name[0] for name in names] == ["a", "b", "c"]
        assert all(name.endswith("-delete") for name in names)
        await actor.roles.stop()

    asyncio.run(run())


def test_a_topic_that_could_not_be_opened_leaves_no_files_when_it_is_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        actor.replicas.get(TopicPartition("a", 0)).log.release()
        actor.directory.release()
        again = Actor(tmp_path)
        again.files.error = full_disk()
        await again.take(MetadataImage(), IMAGE)
        assert again.served == []
        await again.roles.image_changed(IMAGE, MetadataImage(version=2), frozenset({TOPICS[0].topic_id}))
        again.directory.remove_deleted(time.time_ns())
        assert [name[0] for name in sorted(os.listdir(tmp_path)) if name[1:3] == "-0"] == ["b", "c"]
        await again.roles.stop()

    asyncio.run(run())


def test_files_of_topics_that_were_deleted_while_the_actor_was_away_go_at_its_start(tmp_path: Path) -> None:
    """Also where a topic of the same name came in their place; those of others that the image lacks are kept."""

    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        for topic in TOPICS:
            append(actor.replicas.get(TopicPartition(topic.name, 0)).log, b"old")
        await actor.roles.stop()
        for partition in actor.replicas:
            partition.log.release()
        actor.directory.release()
        successor = dataclasses.replace(TOPICS[0], topic_id=uuid.uuid4())
        image = MetadataImage(2, topics={"a": successor}, topic_names_by_id={successor.topic_id: "a"})
        again = Actor(tmp_path)
        removed = frozenset(topic.topic_id for topic in TOPICS[:2])
        await again.roles.image_changed(MetadataImage(), image, removed)
        again.roles.set_strays_aside(image)
        again.directory.remove_deleted(time.time_ns())
        assert [os.path.basename(path)[:4] for path in again.directory.stray_partitions] == ["c-0."]
        assert sorted(name[:4] for name in os.listdir(tmp_path) if name[1:3] == "-0") == ["a-0", "c-0."]
        assert again.replicas.get(TopicPartition("a", 0)).log.log_end_offset == 0
        await again.roles.stop()

    asyncio.run(run())


def test_files_of_a_deleted_topic_that_belong_to_another_user_leave_the_disk_online(tmp_path: Path) -> None:
    """Their directory can be renamed, but nothing in it removed. Each start tries it again."""

    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        await actor.roles.stop()
        for partition in actor.replicas:
            partition.log.release()
        actor.directory.release()
        for _ in range(2):
            again = Actor(tmp_path)
            again.files.removal_error = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            await again.roles.image_changed(MetadataImage(), MetadataImage(2), frozenset({TOPICS[0].topic_id}))
            again.directory.remove_deleted(time.time_ns())
            assert again.directory.disk.state is State.ONLINE
            assert len(list(tmp_path.glob("a-0.*-delete"))) == 1
            await again.roles.stop()
            again.directory.release()

    asyncio.run(run())


@pytest.mark.parametrize("is_new_name", [True, False])
def test_files_of_a_deleted_topic_that_somebody_put_back_are_kept(tmp_path: Path, is_new_name: bool) -> None:
    """Each start of the actor hears of the deletion again. It was carried out, so these come from elsewhere."""

    async def stopped(actor: Actor) -> None:
        await actor.roles.stop()
        for partition in actor.replicas:
            partition.log.release()
        actor.directory.release()

    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        append(actor.replicas.get(TopicPartition("a", 0)).log, b"old")
        removed = (RemovedTopic(2, TOPICS[0].topic_id),)
        await actor.roles.image_changed(IMAGE, MetadataImage(version=2), frozenset({removed[0].topic_id}))
        await stopped(actor)
        (deleted,) = tmp_path.glob("a-0.*-delete")
        deleted.rename(tmp_path / "a-0")
        image = MetadataImage(3)
        if is_new_name:
            successor = dataclasses.replace(TOPICS[0], topic_id=uuid.uuid4())
            image = MetadataImage(3, topics={"a": successor}, topic_names_by_id={successor.topic_id: "a"})
        again = Actor(tmp_path)
        watch = ImageWatch(None, ACTOR, again.roles.image_changed, deletions_version=again.directory.deletions_version)
        await watch.take(Changes(Position("", "again", 3), image, (), removed))
        again.roles.set_strays_aside(image)
        again.directory.remove_deleted(time.time_ns())
        (stray,) = tmp_path.glob("a-0.*-stray")
        assert b"old" in (stray / f"{0:020d}.log").read_bytes()
        later = (*removed, RemovedTopic(4, uuid.uuid4()))
        await watch.take(Changes(Position("", "again", 4), MetadataImage(4), (), later))
        await stopped(again)
        assert LogDirectory.open(str(tmp_path), RealFiles(), now_ms=0).deletions_version == 4

    asyncio.run(run())


def test_directories_that_the_metadata_does_not_know_are_kept_at_a_start(tmp_path: Path) -> None:
    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        log = actor.replicas.get(TopicPartition("a", 0)).log
        await actor.roles.stop()
        actor.directory.release()
        again = Actor(tmp_path)
        again.roles.set_strays_aside(MetadataImage(version=1))
        kept = again.directory.stray_partitions
        assert len(kept) == len(TOPICS)
        assert not os.path.exists(log.directory)
        assert all(os.listdir(path) for path in kept)

    asyncio.run(run())


def test_changed_configs_reach_the_logs_of_their_topic_or_of_all(tmp_path: Path) -> None:
    def configured(image: MetadataImage, kind: ResourceType, name: str, configs: dict[str, str]) -> MetadataImage:
        return dataclasses.replace(image, configs={**image.configs, ConfigResource(kind, name): configs})

    async def run() -> None:
        actor = Actor(tmp_path)
        await actor.take(MetadataImage(), IMAGE)
        logs = {topic.name: actor.replicas.get(TopicPartition(topic.name, 0)).log for topic in TOPICS}
        one = configured(IMAGE, ResourceType.TOPIC, "b", {"retention.ms": "7"})
        before = {name: log.config for name, log in logs.items()}
        await actor.take(IMAGE, one)
        assert logs["b"].config.retention_ms == 7
        assert all(logs[name].config is before[name] for name in "ac")
        every = configured(one, ResourceType.BROKER, "", {"log.retention.bytes": "9"})
        await actor.take(one, every)
        assert [logs[name].config.retention_bytes for name in "abc"] == [9, 9, 9]
        assert logs["b"].config.retention_ms == 7
        await actor.roles.stop()

    asyncio.run(run())
