"""A coordinator takes over what Apache Kafka wrote, and says of its groups what Kafka's own group command said."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayka.actors.coordinator.context import CoordinatorContext
from rayka.actors.coordinator.log import CoordinatorLog
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.server import ReplicaServer
from rayka.config import LogConfig
from rayka.coordinator.groups.classic.requests import DescribedGroup, DescribeGroupsRequest
from rayka.coordinator.groups.consumer.protocol import read_assignment
from rayka.coordinator.groups.consumer.requests import ConsumerGroupDescribeRequest
from rayka.coordinator.groups.requests import (
    DescribedModernGroup,
    ListGroupsRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetPartition,
)
from rayka.coordinator.groups.spec import GROUPS
from rayka.coordinator.request import Request
from rayka.coordinator.spec import CoordinatorConfigs
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.types import TopicPartition

DATA = Path(__file__).parents[2] / "data" / "kafka-offsets"
OFFSETS = TopicPartition("__consumer_offsets", 0)
Row = dict[str, str]


def described(what: str) -> list[Row]:
    """What Kafka's group command printed, by the heads of its columns, which begin where their cells begin."""
    rows: list[Row] = []
    heads: list[re.Match[str]] = []
    for line in (DATA / f"{what}.txt").read_text().splitlines():
        if line.startswith("GROUP "):
            heads = list(re.finditer(r"COORDINATOR \(ID\)|\S+", line))
            continue
        ends = [head.start() for head in heads[1:]] + [len(line)]
        cells = [line[head.start() : end].strip() for head, end in zip(heads, ends, strict=True)]
        rows.append(dict(zip((head.group() for head in heads), cells, strict=True)))
    return rows


def kafka_topics() -> Topics:
    found = json.loads((DATA / "topics.json").read_text())
    return Topics(
        TopicMetadata(uuid.UUID(bytes=base64.b64decode(topic["id"] + "==")), name, topic["partitions"])
        for name, topic in found.items()
    )


class Loaded:
    """A coordinator over a copy of Kafka's directory."""

    def __init__(self, path: Path) -> None:
        directory = LogDirectory.open(str(path), RealFiles(), now_ms=0)
        self.partition = Partition(directory.open_log(OFFSETS, None, LogConfig(), now_ms=0), uuid.uuid4())
        self.partition.become_leader(1)
        replicas = Replicas()
        replicas.add(self.partition)
        self.server = ReplicaServer(replicas, directory, DiskThread())
        self.replica = CoordinatorContext(
            GROUPS, CoordinatorLog(self.partition, self.server), kafka_topics, lambda: CoordinatorConfigs({})
        )

    async def ask(self, request: Request[Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.replica.execute(request, future.set_result)
        return await asyncio.wait_for(future, 60)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.AbstractEventLoop, Loaded]]:
    path = tmp_path_factory.mktemp("kafka")
    shutil.copytree(DATA / str(OFFSETS.topic + "-0"), path / "__consumer_offsets-0")
    loop = asyncio.new_event_loop()

    async def load() -> Loaded:
        coordinator = Loaded(path)
        await coordinator.replica.load()
        return coordinator

    coordinator = loop.run_until_complete(load())
    yield loop, coordinator
    coordinator.replica.resign()
    loop.close()


@pytest.fixture
def ask(loaded: tuple[asyncio.AbstractEventLoop, Loaded]) -> Any:
    loop, coordinator = loaded
    return lambda request: loop.run_until_complete(coordinator.ask(request))


def describe(ask: Any, *group_ids: str) -> tuple[DescribedGroup, ...]:
    groups: tuple[DescribedGroup, ...] = ask(DescribeGroupsRequest(group_ids)).groups
    return groups


def describe_consumers(ask: Any, *group_ids: str) -> tuple[DescribedModernGroup, ...]:
    groups: tuple[DescribedModernGroup, ...] = ask(ConsumerGroupDescribeRequest(group_ids)).groups
    return groups


def text(value: object) -> str:
    return "-" if value in (None, "") else str(value)


def test_the_groups_and_their_states(ask: Any) -> None:
    listed = {group.group_id: group.group_state for group in ask(ListGroupsRequest()).groups}
    assert listed == {row["GROUP"]: row["STATE"] for row in described("state")}
    consumer_groups = [row for row in described("state") if row["GROUP-EPOCH"] != "-"]
    for row, group in zip(
        consumer_groups, describe_consumers(ask, *(row["GROUP"] for row in consumer_groups)), strict=True
    ):
        assert (group.assignor_name, group.group_epoch, group.assignment_epoch) == (
            row["ASSIGNMENT-STRATEGY"],
            int(row["GROUP-EPOCH"]),
            int(row["TARGET-ASSIGNMENT-EPOCH"]),
        )


def shown(assignment: Any) -> str:
    """As the group command writes it."""
    return ";".join(sorted(f"{name}:{','.join(map(str, sorted(numbers)))}" for name, numbers in assignment))


def test_members_and_their_assignments(ask: Any) -> None:
    (classic,) = describe(ask, "classic-stable")
    (consumer,) = describe_consumers(ask, "consumer-stable")
    found = {}
    for member in classic.members:
        assigned = shown(read_assignment(member.assignment).assigned_partitions)
        found[member.member_id] = [member.group_instance_id, member.client_host, member.client_id, assigned, "", ""]
    for member in consumer.members:
        assigned = shown((part.topic_name, part.partitions) for part in member.assignment)
        target = shown((part.topic_name, part.partitions) for part in member.target_assignment)
        found[member.member_id] = [member.instance_id, member.client_host, member.client_id, assigned]
        found[member.member_id] += [member.member_epoch, target]
    columns = ("GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "CURRENT-ASSIGNMENT", "CURRENT-EPOCH", "TARGET-ASSIGNMENT")
    expected = {row["CONSUMER-ID"]: [text(row[column]) for column in columns] for row in described("members")}
    assert {member_id: [text(value) for value in values] for member_id, values in found.items()} == expected
    assert len(expected) == 4


def test_the_generation_of_a_classic_group_is_kept(ask: Any) -> None:
    group: DescribedGroup = describe(ask, "classic-stable")[0]
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")


def test_committed_offsets_with_their_metadata(ask: Any) -> None:
    metadata = json.loads((DATA / "metadata.json").read_text())
    found = []
    for group_id in metadata:
        fetched: OffsetFetchResponse = ask(OffsetFetchRequest(group_id, None))
        for at in fetched.offsets:
            epoch = text(at.leader_epoch if at.leader_epoch >= 0 else None)
            found.append((group_id, at.topic, str(at.partition), epoch, str(at.offset)))
            # librdkafka ends what it commits with a NUL, and shows what it fetches up to there
            assert at.metadata.rstrip("\0") == metadata[group_id][f"{at.topic}-{at.partition}"]
    columns = ("GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET")
    assert sorted(found) == sorted(tuple(row[column] for column in columns) for row in described("offsets"))


def test_an_offset_in_an_open_transaction_is_unstable(ask: Any) -> None:
    wanted = (OffsetPartition("events", 0),)
    fetched = ask(OffsetFetchRequest("open-transaction", wanted, require_stable=True))
    assert fetched.offsets[0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_groups_that_were_deleted_are_gone(ask: Any) -> None:
    gone = describe(ask, "classic-deleted", "consumer-deleted")
    assert [group.error for group in gone] == [ErrorCode.GROUP_ID_NOT_FOUND] * 2
