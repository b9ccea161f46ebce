"""The controller's start, and when it stops: on a plain object, without Ray."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rayka.actors.controller import actor as controller_actor
from rayka.actors.controller.actor import ControllerActor
from rayka.actors.controller.watch import ImageWatch, NamedController
from rayka.actors.controller.watchers import Watchers
from rayka.actors.node.pool import PartitionPool
from rayka.actors.node.spec import NodeSpec
from rayka.config import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import (
    ActorRegistration,
    AllocateProducerIds,
    AlterOperation,
    BrokerRegistration,
    ConfigAlteration,
    ConfigOperation,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    NewTopic,
)
from rayka.metadata.controller import Changes, Position
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from tests.support.faulty_files import FaultyFiles
from tests.unit.actors.test_coordinator_log import FewDescriptors
from tests.unit.metadata.cluster import Cluster


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_actor, "_OPEN_RETRY_S", 0.001)


def spec(path: Path, cluster_id: str = "") -> NodeSpec:
    logs = (str(path / "logs"),)
    return NodeSpec("test", "node", -1, str(path), logs, "127.0.0.1", 0, "localhost", 0, cluster_id=cluster_id)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def alter(controller: ControllerActor, value: str = "2") -> Any:
    """One durable change."""
    operation = ConfigOperation("log.retention.ms", AlterOperation.SET, value)
    alteration = ConfigAlteration(ConfigResource(ResourceType.BROKER, ""), (operation,))
    return (await controller.execute(IncrementalAlterConfigs((alteration,))))[1]


def test_a_controller_waits_for_a_lock_that_is_still_held(tmp_path: Path) -> None:
    async def test() -> None:
        before = LogDirectory.open(spec(tmp_path).controller_dir, RealFiles(), now_ms=0)
        controller = ControllerActor(spec(tmp_path))
        starting = asyncio.ensure_future(controller.started())
        await asyncio.sleep(0.05)
        assert not starting.done()
        before.release()
        await starting
        await controller.stop()

    run(test)


def test_a_controller_waits_until_the_disk_has_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        files = FaultyFiles(fail_at=6, error=errno.ENOSPC, repeat=200)
        controller = ControllerActor(spec(tmp_path), files)
        await controller.started()
        assert files.calls > 206
        assert "No space left" in caplog.text
        await controller.stop()

    run(test)


def test_a_waiting_controller_logs_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_actor, "_START_PATIENCE_S", 0.1)

    async def test() -> None:
        controller = ControllerActor(spec(tmp_path), FaultyFiles(fail_at=6, error=errno.ENOSPC, repeat=1 << 30))
        with pytest.raises(RaykaError, match="No space left"):
            await controller.started()

    run(test)


def test_a_damaged_log_stops_the_controller_and_every_call_says_so(tmp_path: Path) -> None:
    async def first_run() -> None:
        controller = ControllerActor(spec(tmp_path))
        await controller.started()
        await controller.stop()

    run(first_run)
    (segment,) = tmp_path.glob("controller/__cluster_metadata-0/*.log")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)

    async def second_run() -> None:
        controller = ControllerActor(spec(tmp_path))
        for call in (controller.started, controller.ready, controller.partition_actors):
            with pytest.raises(RaykaError, match="damaged"):
                await call()
        assert "damaged" in str((await controller.execute(DeleteTopics(())))[1])

    run(second_run)


def test_an_empty_metadata_log_beside_log_directories_of_a_cluster_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(RaykaError, match="belong to cluster abc"):
            await ControllerActor(spec(tmp_path, "abc")).started()

    run(test)


def test_a_replica_that_is_ahead_stops_the_controller(tmp_path: Path) -> None:
    async def test() -> None:
        controller = ControllerActor(spec(tmp_path))
        replica = spec(tmp_path).partition_actor_name(0)
        changes = await controller.watch(replica, Position())
        ahead = changes.position._replace(version=changes.position.version + 10)
        with pytest.raises(RaykaError, match="went back"):
            await controller.watch(replica, ahead)
        assert "went back" in str(await alter(controller))

    run(test)


def test_a_client_or_gateway_that_is_ahead_is_refused_alone(tmp_path: Path) -> None:
    async def test() -> None:
        controller = ControllerActor(spec(tmp_path))
        changes = await controller.watch("client-7-abc", Position())
        ahead = changes.position._replace(version=changes.position.version + 10)
        for name in ("client-7-abc", f"{spec(tmp_path).gateway_name(0)}-abc"):
            with pytest.raises(RaykaError, match="went back"):
                await controller.watch(name, ahead)
        version, _ = await controller.execute(AllocateProducerIds(1))
        assert version > changes.position.version
        assert (await controller.watch("client-8-abc", changes.position)).position.version == version
        await controller.stop()

    run(test)


def test_a_controller_whose_log_failed_answers_and_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        exited = asyncio.Event()
        monkeypatch.setattr(controller_actor, "exit_process", exited.set)
        files = FaultyFiles()
        controller = ControllerActor(spec(tmp_path), files)
        await controller.started()
        files.fail_at = files.calls + 1
        assert "KAFKA_STORAGE_ERROR" in str(await alter(controller))
        assert files.calls >= files.fail_at
        assert "KAFKA_STORAGE_ERROR" in str(await alter(controller)), "what the disk has is not known"
        await exited.wait()

    run(test)


def test_a_controller_that_has_stopped_changes_nothing(tmp_path: Path) -> None:
    """Another controller may have the directory by then."""

    async def test() -> None:
        controller = ControllerActor(spec(tmp_path))
        await controller.started()
        await alter(controller, "2")
        await controller.stop()
        assert "has stopped" in str(await alter(controller, "3"))
        following = ControllerActor(spec(tmp_path))
        await following.started()
        assert following._image.default_broker_configs["log.retention.ms"] == "2"
        await following.stop()

    run(test)


def test_a_controller_that_stops_takes_no_news_of_a_lost_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        exited = asyncio.Event()
        monkeypatch.setattr(controller_actor, "exit_process", exited.set)
        files = FaultyFiles()
        controller = ControllerActor(spec(tmp_path), files)
        await controller.started()
        _register_actor(controller)
        files.fail_at = files.calls + 1
        await alter(controller)
        calls = files.calls
        controller._actor_lost("actor", 1)
        assert files.calls == calls
        await exited.wait()

    run(test)


def test_a_command_that_waited_while_the_log_failed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the records of the failed command, which was not synced, and no follower has heard of them."""

    async def test() -> None:
        exited = asyncio.Event()
        monkeypatch.setattr(controller_actor, "exit_process", exited.set)
        files = FewDescriptors()
        controller = ControllerActor(spec(tmp_path), files)
        await controller.started()
        waiting = asyncio.ensure_future(controller.execute(CreateTopics((NewTopic("t", 1, 1),), False)))
        await asyncio.sleep(0)
        _register_actor(controller)
        version = controller._image.version
        files.lacks = True
        assert "KAFKA_STORAGE_ERROR" in str(await alter(controller))
        files.lacks = False
        await controller._watchers.notify()
        assert "KAFKA_STORAGE_ERROR" in str((await waiting)[1])
        assert controller._image.version == version
        await exited.wait()

    run(test)


def _register_actor(controller: ControllerActor) -> None:
    broker = BrokerRegistration("node", "localhost", 0, -1, None, (), ())
    registered = controller._core.register_broker(broker)
    controller._commit(registered.records)
    actor = ActorRegistration("actor", registered.response.broker_id, "/data", "first", uuid.UUID(int=1))
    controller._commit(controller._core.register_actor(actor).records)


def test_a_follower_refuses_an_older_image_and_keeps_its_own() -> None:
    async def test() -> None:
        taken = []
        watch = ImageWatch(None, "follower", lambda before, after, removed: taken.append(after.version))
        position = Position("c", "first", 7)
        await watch.take(Changes(position, MetadataImage(version=7, cluster_id="c"), ()))
        for older in (MetadataImage(version=6, cluster_id="c"), MetadataImage(version=9, cluster_id="other")):
            with pytest.raises(RaykaError):
                await watch.take(Changes(Position("c", "second", older.version), older, ()))
        assert (watch.image.version, taken) == (7, [7])

    run(test)


class Handle:
    """A Ray handle of a controller whose `watch` does this."""

    def __init__(self, watch: Callable[[], Changes]) -> None:
        self._watch = watch

    @property
    def watch(self) -> Handle:
        return self

    async def remote(self, watcher: str, position: Position) -> Changes:
        return self._watch()


def in_ray(monkeypatch: pytest.MonkeyPatch, get_actor: Callable[..., object], get_node_id: Callable[[], str]) -> None:
    """As if this process had joined a Ray cluster at a node."""
    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=get_node_id))


def test_a_client_does_not_take_the_controller_of_another_ray_cluster_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its program may have left the first cluster and joined another one, where the controller has the same name."""
    node = "first"
    in_ray(monkeypatch, lambda name, namespace: SimpleNamespace(seen_from=node), lambda: node)
    controller = NamedController("test")
    node = "second"
    controller.find_again()
    assert controller.seen_from == "first"


def test_a_client_finds_the_controller_again_after_rayka_was_stopped_and_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changes = [Changes(Position("c", "first", 7), MetadataImage(version=7, cluster_id="c"), ())]

    def killed() -> Changes:
        if changes:
            return changes.pop()
        raise ray.exceptions.ActorDiedError

    later = Changes(Position("c", "second", 9), MetadataImage(version=9, cluster_id="c"), ())
    starts: list[Handle | None] = [Handle(killed), None, Handle(lambda: later)]

    def find(name: str, namespace: str) -> Handle:
        if (handle := starts.pop(0)) is None:
            raise ValueError("it is stopped")
        return handle

    in_ray(monkeypatch, find, lambda: "node")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)

    async def test() -> None:
        watch = ImageWatch(NamedController("test"), "client")
        await watch.start()
        assert watch.image.version == 7
        assert await watch.wait_for(9, 30)
        await watch.stop()

    run(test)
    assert caplog.messages == [
        "the controller is unavailable (ActorDiedError); the last metadata image stays in use. If the broker was"
        " started again, start this program again: its Ray has ended",
        "the controller is available again",
    ]


def test_each_reason_why_the_controller_does_not_answer_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller that is back and refuses everything is not the one that had died. This one dies of it each time."""
    refused = RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata log ends too early")
    failures = [ray.exceptions.ActorUnavailableError("", None)] * 2
    failures += [ray.exceptions.RayTaskError("watch", "", refused)] * 2
    failures *= 2
    answers = [Changes(Position("c", "first", 7), MetadataImage(version=7, cluster_id="c"), ())]

    def watch() -> Changes:
        if len(answers) == 1:
            return answers.pop()
        if failures:
            raise failures.pop(0)
        return Changes(Position("c", "second", 9), MetadataImage(version=9, cluster_id="c"), ())

    in_ray(monkeypatch, lambda name, namespace: Handle(watch), lambda: "node")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)

    async def test() -> None:
        watching = ImageWatch(NamedController("test"), "client")
        await watching.start()
        assert await watching.wait_for(9, 30)
        await watching.stop()

    run(test)
    assert [message.split("; ")[0] for message in caplog.messages] == [
        "the controller is unavailable (ActorUnavailableError)",
        f"the controller is unavailable ({refused})",
        "the controller is available again",
    ]


def test_an_image_that_could_not_be_taken_in_is_tried_again() -> None:
    async def test() -> None:
        failures = [ValueError("first")]

        def changed(before: MetadataImage, after: MetadataImage, removed: frozenset[uuid.UUID]) -> None:
            if failures:
                raise failures.pop()

        watch = ImageWatch(None, "follower", changed)
        changes = Changes(Position("c", "first", 7), MetadataImage(version=7, cluster_id="c"), ())
        with pytest.raises(ValueError, match="first"):
            await watch.take(changes)
        assert watch.image.version == 0
        await watch.take(changes)
        assert watch.image.version == 7

    run(test)


def test_an_image_counts_once_though_one_that_is_told_of_it_fails() -> None:
    async def test() -> None:
        cluster = Cluster()
        cluster.add_broker(actors=1)
        watch = ImageWatch(None, "follower")
        await watch.take(cluster.controller.changes_since(Position()))
        told: list[int] = []

        def fail() -> None:
            raise ValueError("first")

        watch.shown += [fail, lambda: told.append(watch.image.version)]
        cluster.create(NewTopic("orders", 1, 1))
        await watch.take(cluster.controller.changes_since(watch._position))
        await watch.take(cluster.controller.changes_since(watch._position))
        assert watch.image == cluster.image
        assert told == [cluster.image.version]

    run(test)


def test_news_of_one_follower_wakes_none_of_those_that_wait_for_an_image() -> None:
    """Or else every change would wake each of a thousand clients a thousand times."""

    async def test() -> None:
        watchers = Watchers()
        looks = 0

        def is_newer() -> bool:
            nonlocal looks
            looks += 1
            return False

        waiting = [asyncio.ensure_future(watchers.wait(is_newer, 60)) for _ in range(10)]
        settled = asyncio.ensure_future(watchers.settled(["actor"], 2, 60))
        while looks < len(waiting):
            await asyncio.sleep(0)
        await watchers.has("actor", 1)
        await watchers.has("actor", 2)
        assert await settled
        assert looks == len(waiting)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(test)


def test_a_controller_remembers_no_clients(tmp_path: Path) -> None:
    """Each has another name, and nobody waits for what they have."""

    async def test() -> None:
        controller = ControllerActor(spec(tmp_path))
        await controller.started()
        _register_actor(controller)
        for name in ("client-1", "actor", "client-2"):
            await controller.watch(name, Position())
        assert list(controller._watchers._versions) == ["actor"]
        await controller.stop()

    run(test)


def test_a_controller_that_starts_again_tells_partition_actors_which_topics_were_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may not have heard of it from the one before: killed just after it had answered, for example."""
    monkeypatch.setattr(controller_actor, "_SETTLE_TIMEOUT_S", 0.01)
    seen: list[Any] = []

    async def first_run() -> None:
        controller = ControllerActor(spec(tmp_path))
        await controller.started()
        _register_actor(controller)
        _, (result,) = await controller.execute(CreateTopics((NewTopic("t", 1, 1),), False))
        changes = await controller.watch("partitions-1-00", Position())
        seen.extend((result.topic_id, changes))
        await controller.execute(DeleteTopics(("t",)))
        controller._release()

    async def second_run() -> None:
        controller = ControllerActor(replace(spec(tmp_path), node_id="another life of the node"))
        topic_id, changes = seen
        taken: list[frozenset[uuid.UUID]] = []
        for position in (Position(), changes.position):
            watch = ImageWatch(None, "partitions-1-00", lambda before, after, removed: taken.append(removed))
            await watch.take(await controller.watch("partitions-1-00", position))
            assert taken.pop() == {topic_id}
        assert (await controller.watch("client", Position())).removed == ()
        await controller.stop()

    run(first_run)
    run(second_run)


def test_a_topic_is_created_though_no_spare_actor_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's GCS is away, for example."""
    monkeypatch.setattr(controller_actor, "_SETTLE_TIMEOUT_S", 0.01)

    async def test() -> None:
        controller = ControllerActor(spec(tmp_path))
        await controller.started()
        _register_actor(controller)
        tries: list[int] = []

        def start(spec: NodeSpec, index: int) -> None:
            tries.append(index)
            raise ray.exceptions.RaySystemError("the GCS is away")

        pool = PartitionPool(controller._spec, lambda spec, name: {}, lambda name: 1, lambda name, epoch: None, 1.0)
        pool._actor_class = SimpleNamespace(options=lambda: SimpleNamespace(remote=start))  # type: ignore[assignment]
        controller._pool = pool
        _, (result,) = await controller.execute(CreateTopics((NewTopic("t", 1, 1),), False))
        assert result.error is ErrorCode.NONE
        assert tries == [0]
        await controller.stop()

    run(test)


def test_a_change_too_large_for_the_metadata_log_is_refused_and_the_controller_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.actors.controller.log._CONFIG", LogConfig(retention_ms=-1, internal_segment_bytes=2000))

    async def test() -> None:
        exits: list[None] = []
        monkeypatch.setattr(controller_actor, "exit_process", lambda: exits.append(None))
        monkeypatch.setattr(controller_actor, "_EXIT_DELAY_S", 0)
        controller = ControllerActor(spec(tmp_path))
        await controller.started()
        _register_actor(controller)
        version = controller._image.version
        topics = tuple(NewTopic(f"topic-{number}", 1, 1) for number in range(50))
        _, error = await controller.execute(CreateTopics(topics, False))
        assert error.code is ErrorCode.POLICY_VIOLATION
        assert "2,000 bytes" in error.message
        await alter(controller)
        await asyncio.sleep(0.01)
        assert (controller._image.version, exits) == (version + 1, [])
        await controller.stop()

    run(test)


def test_the_actors_of_a_controller_that_refuses_to_serve_can_still_be_found_and_stopped(tmp_path: Path) -> None:
    """They are detached: nobody else ends them, and they hold the node's port and its log directories."""

    async def test() -> None:
        controller = ControllerActor(spec(tmp_path))
        changes = await controller.watch("follower", Position())
        pool = PartitionPool(controller._spec, lambda spec, name: {}, lambda name: 1, lambda name, epoch: None, 1.0)
        pool.actors["partitions-1-00"] = "its handle"
        controller._pool = pool
        with pytest.raises(RaykaError, match="went back"):
            await controller.watch("partitions-1-00", changes.position._replace(version=changes.position.version + 10))
        assert await controller.partition_actors() == {"partitions-1-00": "its handle"}

    run(test)
