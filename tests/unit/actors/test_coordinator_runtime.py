"""The coordinators of a process follow configs that change while groups run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rayka.actors import background
from rayka.actors.coordinator.context import CoordinatorContext
from rayka.actors.coordinator.log import CoordinatorLog
from rayka.actors.coordinator.runtime import CoordinatorRuntime, group_configs
from rayka.config import BrokerConfig
from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from rayka.coordinator.groups.record_formats import encode as encode_record
from rayka.coordinator.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
from rayka.coordinator.groups.requests import ListGroupsRequest
from rayka.coordinator.groups.spec import GROUPS
from rayka.coordinator.spec import CoordinatorConfigs
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import ConfigResource, ResourceType
from tests.unit.actors.test_coordinator_log import open_partition

BROKER_ID = 7
GROUP = ConfigResource(ResourceType.GROUP, "g")
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")
OWN = ConfigResource(ResourceType.BROKER, str(BROKER_ID))


class Groups:
    """One coordinator whose broker's image changes."""

    def __init__(self, path: Path, configs: dict[ConfigResource, dict[str, str]]) -> None:
        partition, server = open_partition(path)
        self.replicas = CoordinatorRuntime(
            GROUPS, server, BrokerConfig.parse({"group.consumer.max.size": "100"}), BROKER_ID
        )
        self.image = MetadataImage()
        self.configure(configs)
        self.partition = partition
        self.replicas.leads(partition)

    def configure(self, configs: dict[ConfigResource, dict[str, str]]) -> None:
        before, self.image = self.image, MetadataImage(version=self.image.version + 1, configs=configs)
        self.replicas.image_changed(before, self.image)

    async def join(self, member_id: str) -> ConsumerGroupHeartbeatResponse:
        """A member's first heartbeat."""
        fields: dict[str, Any] = {"subscribed_topic_names": ("t",), "topic_partitions": (), "rebalance_timeout_ms": 1}
        request = ConsumerGroupHeartbeatRequest("g", member_id, 0, client_id="c", client_host="h", **fields)
        future: asyncio.Future[ConsumerGroupHeartbeatResponse] = asyncio.get_running_loop().create_future()
        self.replicas.execute(0, request, future.set_result)
        return await asyncio.wait_for(future, 60)

    async def epochs(self, *member_ids: str) -> list[int]:
        return [(await self.join(member_id)).member_epoch for member_id in member_ids]


async def ready(groups: Groups) -> None:
    """Loading takes a turn of the loop or two."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_no_coordinator_starts_in_a_process_that_stops(tmp_path: Path) -> None:
    """The metadata may change meanwhile, and nothing may be written after the logs were closed."""

    async def check() -> None:
        groups = Groups(tmp_path, {})
        await ready(groups)
        groups.replicas.resign()
        groups.partition.become_leader(groups.partition.leader_epoch + 1)
        groups.replicas.leads(groups.partition)
        await ready(groups)
        answer: Any = await groups.join("a")
        assert isinstance(answer, RaykaError)
        assert answer.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(check())


def test_the_assignment_interval_of_all_brokers_of_this_one_and_of_the_group(tmp_path: Path) -> None:
    """While the interval lasts a newcomer waits for the next target, in the epoch of the last one."""
    interval = "group.consumer.assignment.interval.ms"

    async def check() -> None:
        groups = Groups(tmp_path, {ALL_BROKERS: {interval: "15000"}})
        await ready(groups)
        assert await groups.epochs("a", "b") == [1, 1]
        groups.configure({ALL_BROKERS: {interval: "15000"}, OWN: {interval: "0"}})
        assert await groups.epochs("c") == [3]
        groups.configure({OWN: {interval: "0"}, GROUP: {"consumer.assignment.interval.ms": "15000"}})
        assert await groups.epochs("d") == [3]
        groups.configure({GROUP: {"consumer.heartbeat.interval.ms": "400"}})
        assert (await groups.join("d")).heartbeat_interval_ms == 400
        groups.replicas.resign()

    asyncio.run(check())


def test_groups_have_the_configs_that_this_release_knows_and_no_others() -> None:
    """A newer release may have written more, and topics may have the names of groups."""
    topic = ConfigResource(ResourceType.TOPIC, "g")
    image = MetadataImage(configs={GROUP: {"consumer.heartbeat.interval.ms": "400", "later": "1"}, topic: {"a": "b"}})
    assert group_configs(image) == {"g": {"consumer.heartbeat.interval.ms": 400}}


def test_a_resigned_coordinator_stops_loading(tmp_path: Path) -> None:
    async def check() -> None:
        log = CoordinatorLog(*open_partition(tmp_path))
        coordinator = CoordinatorContext(GROUPS, log, Topics, lambda: CoordinatorConfigs({}))
        load = coordinator.start()
        coordinator.resign()
        await asyncio.wait([load], timeout=30)
        assert load.cancelled()

    asyncio.run(check())


def test_a_coordinator_whose_partition_leaves_stops_loading_and_refuses_requests(tmp_path: Path) -> None:
    async def check() -> None:
        partition, server = open_partition(tmp_path)
        runtime = CoordinatorRuntime(GROUPS, server, BrokerConfig.parse({}), 1)
        runtime.leads(partition)
        coordinator = runtime._coordinators[0]
        runtime.leaves(0)
        assert not coordinator._background._tasks or all(task.cancelling() for task in coordinator._background._tasks)
        for execute in (lambda *asked: runtime.execute(0, *asked), coordinator.execute):
            answers: list[Any] = []
            execute(ListGroupsRequest(), answers.append)
            assert [answer.code for answer in answers] == [ErrorCode.NOT_COORDINATOR]

    asyncio.run(check())


def test_requests_are_served_while_a_long_log_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop never stands still for long: what takes long is bounded by time, not by the size of a slice."""
    replay, replayed = CoordinatorContext._replay, [0]

    def count(context: CoordinatorContext[Any], entry: Any) -> None:
        replayed[0] += 1
        replay(context, entry)

    monkeypatch.setattr(CoordinatorContext, "_replay", count)

    async def check() -> None:
        log = CoordinatorLog(*open_partition(tmp_path))
        value = OffsetCommitValue(7, commit_timestamp=2**62)
        for start in range(0, 20_000, 4_000):
            numbers = range(start, start + 4_000)
            log.append([encode_record(CoordinatorRecord(OffsetCommitKey("g", "t", n), value)) for n in numbers])
        coordinator = CoordinatorContext(GROUPS, log, Topics, lambda: CoordinatorConfigs({}))
        load = coordinator.start()
        steps = set()
        while not load.done():
            await asyncio.sleep(0)
            steps.add(replayed[0])
        assert max(steps) == 20_000
        assert len(steps) > 10
        coordinator.resign()

    asyncio.run(check())


def test_a_load_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FIRST_PAUSE_S", 0.0001)
    read = CoordinatorLog.read

    def fail_once(log: CoordinatorLog) -> Any:
        monkeypatch.setattr(CoordinatorLog, "read", read)
        raise KeyError("unexpected")

    async def check() -> None:
        monkeypatch.setattr(CoordinatorLog, "read", fail_once)
        before = background.failures["load of __consumer_offsets-0"]
        log = CoordinatorLog(*open_partition(tmp_path))
        coordinator = CoordinatorContext(GROUPS, log, Topics, lambda: CoordinatorConfigs({}))
        await asyncio.wait_for(coordinator.start(), 60)
        assert background.failures["load of __consumer_offsets-0"] == before + 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        coordinator.execute(ListGroupsRequest(), future.set_result)
        assert (await asyncio.wait_for(future, 60)).groups == ()
        coordinator.resign()

    asyncio.run(check())
