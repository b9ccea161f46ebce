"""Members of groups and groups seen from outside, in every version of each API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rayka.coordinator.groups.classic.requests import SyncGroupResponse
from rayka.coordinator.groups.requests import ListGroupsRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.api import APIS
from rayka.gateway.wire.schema import ApiKey, schema
from rayka.metadata.commands import NewTopic
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import create, make, run
from tests.unit.gateway.asking_groups import (
    ALL_OPERATIONS,
    AT_ONCE,
    SESSION,
    SUBSCRIPTION,
    ask,
    committing,
    heartbeat,
    join,
    join_values,
    leave,
    sync,
)
from tests.unit.gateway.test_codec import sample
from tests.unit.gateway.wire_client import WireClient, connected, versions


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.FIND_COORDINATOR))
def test_find_coordinator(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def find(client: WireClient, kind: int = 0, keys: tuple[str, ...] = ("g", "h")) -> list[Any]:
        response = await ask(client, key, version, key=keys[0], key_type=kind, coordinator_keys=keys)
        return list(response.coordinators) if version >= 4 else [response]

    async def check(client: WireClient, broker: LocalBroker) -> None:
        found = await find(client)
        assert [(one.error_code, one.node_id, one.host) for one in found] == [(0, 1, "127.0.0.1")] * len(found)
        if version >= 4:
            assert [one.key for one in found] == ["g", "h"]
        if version >= 1:
            found = await find(client, kind=1)
            assert {(one.error_code, one.node_id, one.host) for one in found} == {(0, 1, "127.0.0.1")}
            missing, error = await find(client, kind=2), ErrorCode.INVALID_REQUEST
            assert {(one.error_code, one.node_id, one.host, one.port) for one in missing} == {(error, -1, "", -1)}
            found = await find(client, 2, ("g:Q6EoSfSITFmqHHeQqdcOrg:0",))
            assert [one.error_code for one in found] == [0 if version >= 6 else ErrorCode.INVALID_REQUEST]

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.JOIN_GROUP))
def test_a_classic_member_joins_stays_and_leaves(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        joined = await join(client, version)
        assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
        assert [(member.member_id, member.metadata) for member in joined.members] == [(joined.member_id, SUBSCRIPTION)]
        assert joined.member_id.startswith("test-")
        assert getattr(joined, "protocol_type", "consumer") == "consumer"
        synced = await sync(client, version, joined)
        assert (synced.error_code, synced.assignment) == (0, b"yours")
        beat = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id, "group_instance_id": None}
        assert (await ask(client, ApiKey.HEARTBEAT, version, **beat)).error_code == 0
        stale = await ask(client, ApiKey.HEARTBEAT, version, **(beat | {"generation_id": 9}))
        assert stale.error_code == ErrorCode.ILLEGAL_GENERATION
        assert (await leave(client, version, joined.member_id)).error_code == 0
        gone = await leave(client, version, joined.member_id)
        if hasattr(gone, "members"):
            assert [member.error_code for member in gone.members] == [ErrorCode.UNKNOWN_MEMBER_ID]
        else:
            assert gone.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(tmp_path, check, **AT_ONCE)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.JOIN_GROUP))
def test_a_refused_join(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        refused = await ask(client, key, version, **join_values(version, session_timeout=SESSION / 100))
        assert (refused.error_code, refused.generation_id) == (ErrorCode.INVALID_SESSION_TIMEOUT, -1)
        assert refused.protocol_name == (None if version >= 7 else "")
        unnamed = await ask(client, key, version, **join_values(version, group_id=""))
        assert unnamed.error_code == ErrorCode.INVALID_GROUP_ID

    run(tmp_path, check)


def test_sync_must_name_its_protocol(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        joined = await join(client, 9)
        refused = await sync(client, 5, joined, protocol_name=None)
        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    run(tmp_path, check, **AT_ONCE)


def test_a_waiting_join_does_not_delay_other_clients(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path, {"group.initial.rebalance.delay.ms": "1000"}) as (client, broker):
            waiting = asyncio.ensure_future(ask(client, ApiKey.JOIN_GROUP, 0, **join_values(0)))
            while not broker.groups.core.list_groups(ListGroupsRequest()).groups:
                await asyncio.sleep(0)
            port = broker.image.brokers[1].port
            neighbour = await WireClient.connect(port)
            assert [group.group_id for group in (await ask(neighbour, ApiKey.LIST_GROUPS, 0)).groups] == ["g"]
            assert not waiting.done()
            await neighbour.close()
            assert (await waiting).error_code == 0

    asyncio.run(main())


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DESCRIBE_GROUPS))
def test_describe_groups(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        joined = await join(client, 9, group_instance_id="one")
        await sync(client, 9, joined, group_instance_id="one")
        asked = {"groups": ("gone", "g"), "include_authorized_operations": True}
        gone, found = (await ask(client, key, version, **asked)).groups
        assert (found.group_id, found.group_state, found.protocol_type, found.protocol_data, found.error_code) == (
            "g", "Stable", "consumer", "range", 0,
        )  # fmt: skip
        (member,) = found.members
        assert (member.client_id, member.client_host, member.member_assignment) == ("test", "/127.0.0.1", b"yours")
        assert member.member_metadata == SUBSCRIPTION
        assert getattr(member, "group_instance_id", "one") == "one"
        assert getattr(found, "authorized_operations", ALL_OPERATIONS) == ALL_OPERATIONS
        assert (gone.group_id, gone.group_state) == ("gone", "Dead")
        assert gone.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
        if version >= 6:
            assert "gone" in gone.error_message

    run(tmp_path, check, **AT_ONCE)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.LIST_GROUPS))
def test_list_groups(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def listed(client: WireClient, states: tuple[str, ...] = (), kinds: tuple[str, ...] = ()) -> set[Any]:
        response = await ask(client, key, version, states_filter=states, types_filter=kinds)
        assert response.error_code == 0
        return {
            (one.group_id, one.protocol_type, getattr(one, "group_state", None), getattr(one, "group_type", None))
            for one in response.groups
        }

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a"))
        await ask(client, ApiKey.OFFSET_COMMIT, 8, **committing(8, "a", 1, group_id="old"))
        await heartbeat(client, 1, group_id="new")
        old = ("old", "", "Empty" if version >= 4 else None, "classic" if version >= 5 else None)
        new = ("new", "consumer", "Stable" if version >= 4 else None, "consumer" if version >= 5 else None)
        assert {one[0] for one in await listed(client)} == {"old", "new"}
        assert old in await listed(client)
        if version >= 4:
            assert await listed(client, ("empty",)) == {old}
        if version >= 5:
            assert {one[0] for one in await listed(client, (), ("consumer",))} == {new[0]}

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DELETE_GROUPS))
def test_delete_groups(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a"))
        joined = await join(client, 9)
        await ask(client, ApiKey.OFFSET_COMMIT, 8, **committing(8, "a", 1, group_id="old"))
        results = (await ask(client, key, version, groups_names=("old", "g", "gone"))).results
        assert [(one.group_id, int(one.error_code)) for one in results] == [
            ("old", 0), ("g", ErrorCode.NON_EMPTY_GROUP), ("gone", ErrorCode.GROUP_ID_NOT_FOUND),
        ]  # fmt: skip
        await leave(client, 5, joined.member_id)
        assert [one.error_code for one in (await ask(client, key, version, groups_names=("g",))).results] == [0]
        assert (await ask(client, ApiKey.LIST_GROUPS, 0)).groups == ()

    run(tmp_path, check, **AT_ONCE)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
def test_consumer_group_heartbeat(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        joined = await heartbeat(client, version)
        assert (joined.error_code, joined.error_message, joined.member_epoch) == (0, None, 1)
        assert joined.member_id if version == 0 else joined.member_id == "me"
        (topic,) = joined.assignment.topic_partitions
        assert (topic.topic_id, set(topic.partitions)) == (broker.image.topics["a"].topic_id, {0, 1})
        owned = (make(key, version, "TopicPartitions", topic_id=topic.topic_id, partitions=topic.partitions),)
        same = {"member_id": joined.member_id, "subscribed_topic_names": None}
        again = await heartbeat(client, version, member_epoch=1, topic_partitions=owned, **same)
        assert (again.error_code, again.member_epoch, again.assignment) == (0, 1, None)
        wrong = await heartbeat(client, version, member_epoch=9, **same)
        assert wrong.error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert wrong.error_message
        unnamed = await heartbeat(client, version, member_id="", member_epoch=1)
        assert unnamed.error_code == ErrorCode.INVALID_REQUEST
        left = await heartbeat(client, version, member_epoch=-1, topic_partitions=None, **same)
        assert (left.error_code, left.member_epoch) == (0, -1)

    run(tmp_path, check)


def test_the_consumer_protocol_can_be_switched_off(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        assert (await heartbeat(client, 1)).error_code == ErrorCode.UNSUPPORTED_VERSION

    run(tmp_path, check, group_coordinator_rebalance_protocols="classic")


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.CONSUMER_GROUP_DESCRIBE))
def test_consumer_group_describe(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        await heartbeat(client, 1, instance_id="one")
        asked = {"group_ids": ("g", "gone", ""), "include_authorized_operations": True}
        found, gone, unnamed = (await ask(client, key, version, **asked)).groups
        assert (found.group_id, found.error_code, found.assignor_name) == ("g", 0, "uniform")
        assert (found.group_epoch, found.assignment_epoch, found.authorized_operations) == (1, 1, ALL_OPERATIONS)
        (member,) = found.members
        assert (member.member_id, member.instance_id, member.client_host) == ("me", "one", "/127.0.0.1")
        assert member.subscribed_topic_names == ("a",)
        for assignment in (member.assignment, member.target_assignment):
            (topic,) = assignment.topic_partitions
            assert (topic.topic_id, topic.topic_name, topic.partitions) == (
                broker.image.topics["a"].topic_id, "a", (0, 1),
            )  # fmt: skip
        assert getattr(member, "member_type", 1) == 1
        assert (gone.error_code, unnamed.error_code) == (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID)

    run(tmp_path, check)


def test_a_repeated_group_is_answered_once(tmp_path: Path) -> None:
    """A small request would become a response that is as much larger as the group has members or offsets."""
    none_asked = {"topics": None, "member_id": None, "member_epoch": -1}

    async def check(client: WireClient, broker: LocalBroker) -> None:
        for key, names in (
            (ApiKey.DESCRIBE_GROUPS, "groups"),
            (ApiKey.CONSUMER_GROUP_DESCRIBE, "group_ids"),
            (ApiKey.SHARE_GROUP_DESCRIBE, "group_ids"),
        ):
            asked: dict[str, Any] = {names: ("h", "g") * 100, "include_authorized_operations": False}
            assert [group.group_id for group in (await ask(client, key, 9, **asked)).groups] == ["h", "g"]
        for key in (ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS):
            version = APIS[key].max_version
            name = f"{key.title}RequestGroup"
            groups = tuple(make(key, version, name, group_id=group_id, **none_asked) for group_id in ("h", "g"))
            found = await ask(client, key, version, groups=groups * 100, require_stable=False)
            assert [group.group_id for group in found.groups] == ["h", "g"]

    run(tmp_path, check)


ASKING_COORDINATORS = versions(
    ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE,
)  # fmt: skip


@pytest.mark.parametrize(("key", "version"), ASKING_COORDINATORS)
def test_a_coordinator_that_loads_is_an_error_of_the_form_of_the_version(
    key: ApiKey, version: int, tmp_path: Path
) -> None:
    """Java's consumer takes it for final in a sync, and a heartbeat needs no answer from the group."""
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    expected = {ApiKey.SYNC_GROUP: {ErrorCode.REBALANCE_IN_PROGRESS}, ApiKey.HEARTBEAT: set()}.get(key, {loading})

    def errors(entity: Any) -> set[int]:
        if isinstance(entity, tuple):
            return set().union(*map(errors, entity))
        if not hasattr(entity, "__dataclass_fields__"):
            return set()
        own = {int(entity.error_code)} if hasattr(entity, "error_code") else set()
        return own.union(*(errors(getattr(entity, name)) for name in entity.__dataclass_fields__))

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("orders", 3))
        request = asking(key, version, broker)
        broker.groups.failure = RaykaError(loading, "loading")
        assert errors(await client.call(key, version, request)) - {0} == expected

    run(tmp_path, check)


@pytest.mark.parametrize("version", [version for _, version in versions(ApiKey.SYNC_GROUP)])
def test_a_sync_that_waits_in_a_coordinator_that_loads_again_is_told_to_join_again(
    version: int, tmp_path: Path
) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        broker.groups.execute = answer  # type: ignore[method-assign]
        synced = await client.call(ApiKey.SYNC_GROUP, version, asking(ApiKey.SYNC_GROUP, version, broker))
        assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS

    async def answer(_: object) -> SyncGroupResponse:
        return SyncGroupResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    run(tmp_path, check)


def asking(key: ApiKey, version: int, broker: LocalBroker) -> Any:
    """A request that reaches the coordinator."""
    if key is ApiKey.OFFSET_COMMIT:
        topic: Any = broker.image.topics["orders"].topic_id if version >= 10 else "orders"
        return make(key, version, "OffsetCommitRequest", **committing(version, topic, 1))
    if key is ApiKey.FIND_COORDINATOR:
        return make(key, version, "FindCoordinatorRequest", key="g", key_type=0, coordinator_keys=("g",))
    if key is ApiKey.SYNC_GROUP:
        fields = {"group_id": "g", "generation_id": 1, "member_id": "m", "assignments": ()}
        named = {"group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range"}
        return make(key, version, "SyncGroupRequest", **fields, **named)
    return sample(schema(key, version).request, 1)
