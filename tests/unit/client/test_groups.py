"""What a program that looks after consumer groups relies on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rayka.client.admin.admin import Admin
from rayka.client.admin.group_offsets import OffsetReset
from rayka.client.cluster import Cluster
from rayka.coordinator.groups.classic.requests import JoinGroupRequest, Protocol
from rayka.coordinator.groups.requests import ListedGroup
from rayka.coordinator.groups.share.requests import ShareGroupHeartbeatRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.share_groups import ShareGroups
from rayka.types import TopicPartition
from tests.support.client_connection import LocalConnection

EVENTS = [TopicPartition("events", 0), TopicPartition("events", 1)]


@pytest.fixture
def broker_config() -> dict[str, str]:
    """A group does not wait for more members."""
    return {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    """The admin of a cluster with ten records in one of two partitions."""
    admin = cluster.admin()
    admin.create_topic("events", partitions=2)
    with cluster.producer() as producer:
        for number in range(10):
            producer.send("events", b"v", partition=0, timestamp_ms=1_000 + number)
    return admin


def join(connection: LocalConnection, group_id: str) -> None:
    """A member that stays, without an assignment yet."""
    request = JoinGroupRequest(
        group_id, "", 60_000, 60_000, "consumer", (Protocol("range", b""),), "new", require_known_member_id=False
    )
    connection.loop.run(connection.broker.groups.execute(request))


def refusal(call: Any) -> RaykaError:
    with pytest.raises(RaykaError) as error:
        call()
    return error.value


def test_a_group_is_created_by_a_reset_and_deleted(admin: Admin) -> None:
    assert admin.reset_offsets("readers", OffsetReset.to_offset(4), {"events": None}) == {EVENTS[0]: 4, EVENTS[1]: 0}
    assert admin.list_groups() == [ListedGroup("readers", "", "Empty", "Classic")]
    described = admin.describe_group("readers")
    assert [(one.topic_partition, one.current_offset, one.lag) for one in described.offsets] == [
        (EVENTS[0], 4, 6),
        (EVENTS[1], 0, 0),
    ]
    assert admin.reset_offsets("readers", OffsetReset.shift_by(2)) == {EVENTS[0]: 6, EVENTS[1]: 0}
    assert admin.delete_groups(["readers"]) == {"readers": ErrorCode.NONE}
    assert admin.list_groups() == []
    assert refusal(lambda: admin.describe_group("readers")).code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_dry_run_of_a_reset_changes_nothing(admin: Admin) -> None:
    admin.reset_offsets("readers", OffsetReset.to_earliest(), {"events": [0]})
    assert admin.reset_offsets("readers", OffsetReset.to_latest(), validate_only=True) == {EVENTS[0]: 10}
    assert admin.describe_group("readers").offsets[0].current_offset == 0


def test_a_group_with_members_keeps_its_offsets(admin: Admin, connection: LocalConnection) -> None:
    admin.reset_offsets("readers", OffsetReset.to_offset(4), {"events": [0]})
    join(connection, "readers")
    error = refusal(lambda: admin.reset_offsets("readers", OffsetReset.to_latest()))
    assert (error.code, "readers" in error.message) == (ErrorCode.NON_EMPTY_GROUP, True)
    assert refusal(lambda: admin.delete_groups(["readers"])).code is ErrorCode.NON_EMPTY_GROUP
    assert admin.describe_group("readers").offsets[0].current_offset == 4


def test_a_share_group_is_listed_by_its_type_and_deleted_with_its_state(
    admin: Admin, connection: LocalConnection
) -> None:
    broker = connection.broker
    heartbeat = ShareGroupHeartbeatRequest("workers", "m", 0, subscribed_topic_names=("events",))
    connection.loop.run(ShareGroups(broker).heartbeat(heartbeat))
    assert len(broker.shares.core.states) == 2
    assert refusal(lambda: admin.delete_groups(["workers"])).code is ErrorCode.NON_EMPTY_GROUP
    connection.loop.run(broker.groups.execute(ShareGroupHeartbeatRequest("workers", "m", -1)))
    assert admin.list_groups() == []
    assert admin.list_groups(types=["share"]) == [ListedGroup("workers", "share", "Empty", "Share")]
    assert admin.delete_groups(["workers"]) == {"workers": ErrorCode.NONE}
    assert broker.shares.core.states == {}


def test_some_groups_are_deleted_where_others_cannot_be(admin: Admin) -> None:
    admin.reset_offsets("readers", OffsetReset.to_latest(), {"events": None})
    results = admin.delete_groups(["nobody", "readers"], raise_errors=False)
    assert results == {"nobody": ErrorCode.GROUP_ID_NOT_FOUND, "readers": ErrorCode.NONE}


def test_a_coordinator_that_loads_is_waited_for(admin: Admin, connection: LocalConnection) -> None:
    groups = connection.broker.groups
    groups.failure = RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "loading")
    connection.loop.call_soon(connection.loop.loop.call_later, 0.15, setattr, groups, "failure", None)
    assert admin.list_groups() == []
    groups.failure = RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "loading")
    error = refusal(lambda: admin.list_groups(timeout_ms=50))
    assert error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_coordinator_that_does_not_answer_is_given_up_in_time(
    admin: Admin, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def execute(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(connection.broker.groups, "execute", execute)
    error = refusal(lambda: admin.describe_group("readers", timeout_ms=50))
    assert error.code is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("topics", "code"),
    [
        ({"nothing": None}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"events": [2]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_reset_that_fails_names_the_partition(admin: Admin, topics: Any, code: ErrorCode) -> None:
    assert refusal(lambda: admin.reset_offsets("readers", OffsetReset.to_latest(), topics)).code is code


def test_each_partition_gets_an_offset_of_its_own(admin: Admin) -> None:
    wanted = {EVENTS[0]: 3, EVENTS[1]: 8}
    assert admin.set_offsets("readers", wanted, validate_only=True) == {EVENTS[0]: 3, EVENTS[1]: 0}
    assert admin.list_groups() == []
    assert admin.set_offsets("readers", wanted) == {EVENTS[0]: 3, EVENTS[1]: 0}
    assert [one.current_offset for one in admin.describe_group("readers").offsets] == [3, 0]
    error = refusal(lambda: admin.set_offsets("readers", {TopicPartition("nothing", 0): 1}))
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_committed_offsets_are_deleted_partition_by_partition(admin: Admin) -> None:
    admin.set_offsets("readers", dict.fromkeys(EVENTS, 0))
    assert admin.delete_offsets("readers", {"events": [0]}) == {EVENTS[0]: ErrorCode.NONE}
    assert [one.topic_partition for one in admin.describe_group("readers").offsets] == EVENTS[1:]
    error = refusal(lambda: admin.delete_offsets("nobody", {"events": None}))
    assert error.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_the_current_offset_is_the_committed_one_or_the_end(admin: Admin) -> None:
    admin.set_offsets("readers", {EVENTS[0]: 4})
    assert admin.reset_offsets("readers", OffsetReset.to_current(), {"events": None}) == {EVENTS[0]: 4, EVENTS[1]: 0}
