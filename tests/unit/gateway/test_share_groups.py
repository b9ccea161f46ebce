"""Share groups in every version of each API: members, what they are assigned, offsets, deletion, and the state RPCs."""

from __future__ import annotations

import uuid
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rayka.actors.share.partitions import LastFetch
from rayka.coordinator.groups.share.requests import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from rayka.coordinator.shares.requests import StateBatch, WriteShareGroupStateRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.share.requests import ShareFetchParams, ShareFetchPartition
from rayka.types import TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import append, create, make, run
from tests.unit.gateway.asking_groups import ALL_OPERATIONS, ask
from tests.unit.gateway.wire_client import WireClient, versions

HEARTBEAT, DESCRIBE = ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE
OFFSETS, ALTER = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ApiKey.ALTER_SHARE_GROUP_OFFSETS
DELETE_OFFSETS = ApiKey.DELETE_SHARE_GROUP_OFFSETS


async def beat(client: WireClient, epoch: int = 0, topics: tuple[str, ...] | None = None, member: str = "m") -> Any:
    """A heartbeat in group g."""
    fields = {"group_id": "g", "member_id": member, "member_epoch": epoch, "rack_id": None}
    return await ask(client, HEARTBEAT, 1, **fields, subscribed_topic_names=topics)


async def describe(client: WireClient, *group_ids: str) -> list[Any]:
    """Described groups."""
    response = await ask(client, DESCRIBE, 1, group_ids=group_ids, include_authorized_operations=True)
    return list(response.groups)


async def offsets(client: WireClient, version: int = 1, topics: Any = None, group_id: str = "g") -> Any:
    """The offsets of a group."""
    group = make(OFFSETS, version, "DescribeShareGroupOffsetsRequestGroup", group_id=group_id, topics=topics)
    return (await ask(client, OFFSETS, version, groups=(group,))).groups[0]


def shown(group: Any) -> dict[str, list[tuple[int, int, int, int]]]:
    """Partition, start offset, lag and error by topic."""
    return {
        topic.topic_name: [
            (one.partition_index, one.start_offset, getattr(one, "lag", -1), one.error_code) for one in topic.partitions
        ]
        for topic in group.topics
    }


async def alter(client: WireClient, topic: str, partition: int, offset: int) -> Any:
    """The response to altering one offset."""
    one = make(ALTER, 0, "AlterShareGroupOffsetsRequestPartition", partition_index=partition, start_offset=offset)
    changed = make(ALTER, 0, "AlterShareGroupOffsetsRequestTopic", topic_name=topic, partitions=(one,))
    return await ask(client, ALTER, 0, group_id="g", topics=(changed,))


async def consumed(broker: LocalBroker, partition: int, start_offset: int, count: int) -> None:
    """A partition leader writes what was acknowledged."""
    topic_id = broker.image.topics["a"].topic_id
    batches = (StateBatch(start_offset, start_offset + count - 1, 2, 1),) if count else ()
    (epoch,) = {state.state_epoch for state in broker.shares.core.states.values()}
    request = WriteShareGroupStateRequest("g", topic_id, partition, epoch, 0, start_offset, count, batches)
    assert (await broker.shares.execute(request)).error is ErrorCode.NONE


def test_a_member_joins_with_its_partitions_stays_and_leaves(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        joined = await beat(client, topics=("a",))
        assert (joined.error_code, joined.member_id) == (0, "m")
        (topic,) = joined.assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (broker.image.topics["a"].topic_id, (0, 1))
        assert len(broker.shares.core.states) == 2
        stayed = await beat(client, joined.member_epoch)
        assert (stayed.error_code, stayed.member_epoch, stayed.assignment) == (0, joined.member_epoch, None)
        left = await beat(client, -1)
        assert (left.error_code, left.member_epoch) == (0, -1)
        gone = await beat(client, joined.member_epoch)
        assert (gone.error_code, bool(gone.error_message)) == (ErrorCode.UNKNOWN_MEMBER_ID, True)

    run(tmp_path, check)


def test_an_initialization_waits_for_a_coordinator_that_loads(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        broker.shares.failures = [RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 3
        joined = await beat(client, topics=("a",))
        assert [topic.partitions for topic in joined.assignment.topic_partitions] == [(0,)]
        assert broker.shares.failures == []

    run(tmp_path, check)


def test_a_member_joins_even_if_nothing_can_be_initialized_and_gets_partitions_later(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        broker.shares.failures = [RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR)]
        joined = await beat(client, topics=("a",))
        assert (joined.error_code, joined.assignment.topic_partitions) == (0, ())
        later = await beat(client, joined.member_epoch)
        assert [topic.partitions for topic in later.assignment.topic_partitions] == [(0,)]

    run(tmp_path, check)


def test_a_member_gets_its_partitions_if_it_is_not_known_whether_their_assignment_was_appended(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        execute, heartbeats = broker.groups.execute, count()

        async def fail_the_second_heartbeat(request: Any) -> Any:
            answer = await execute(request)
            if isinstance(request, ShareGroupHeartbeatRequest) and next(heartbeats) == 1:
                return ShareGroupHeartbeatResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it may be in the log")
            return answer

        broker.groups.execute = fail_the_second_heartbeat  # type: ignore[method-assign]
        joined = await beat(client, topics=("a",))
        again = joined if joined.error_code == 0 else await beat(client, topics=("a",))
        later = await beat(client, again.member_epoch)
        found = [one.assignment for one in (joined, again, later) if one.assignment is not None]
        assert [topic.partitions for topic in found[-1].topic_partitions] == [(0,)]

    run(tmp_path, check)


def test_groups_are_described_and_listed(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        await beat(client, topics=("a",))
        found, missing, unnamed = await describe(client, "g", "x", "")
        assert (found.error_code, found.group_state, found.assignor_name) == (0, "Stable", "simple")
        assert found.authorized_operations == ALL_OPERATIONS
        (member,) = found.members
        assert (member.member_id, member.client_id, member.client_host) == ("m", "test", "/127.0.0.1")
        assert [(t.topic_name, t.partitions) for t in member.assignment.topic_partitions] == [("a", (0, 1))]
        assert (missing.error_code, unnamed.error_code) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.INVALID_GROUP_ID,
        )
        listed = await ask(client, ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=("share",))
        assert [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in listed.groups] == [
            ("g", "share", "Stable", "share")
        ]

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(OFFSETS))
def test_offsets_are_described_with_their_lag(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        await beat(client, topics=("a",))
        append(broker, "a", *range(10))
        await consumed(broker, 0, 4, 2)
        lag = 4 if version >= 1 else -1
        group = await offsets(client, version)
        assert shown(group) == {"a": [(0, 4, lag, 0), (1, -1, -1, 0)]}
        topics = tuple(
            make(key, version, "DescribeShareGroupOffsetsRequestTopic", topic_name=name, partitions=(0,))
            for name in ("a", "x")
        )
        group = await offsets(client, version, topics)
        assert shown(group) == {"a": [(0, 4, lag, 0)], "x": [(0, -1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]}
        assert (await offsets(client, version, group_id="x")).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(tmp_path, check)


def test_offsets_are_altered_and_deleted_while_nobody_is_in_the_group(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1), NewTopic("b", 1))
        append(broker, "a", *range(10))
        await beat(client, topics=("a", "b"))
        topic = make(DELETE_OFFSETS, 0, "DeleteShareGroupOffsetsRequestTopic", topic_name="b")
        missing = make(DELETE_OFFSETS, 0, "DeleteShareGroupOffsetsRequestTopic", topic_name="x")
        assert (await alter(client, "a", 0, 3)).error_code == ErrorCode.NON_EMPTY_GROUP
        deleted = await ask(client, DELETE_OFFSETS, 0, group_id="g", topics=(topic,))
        assert deleted.error_code == ErrorCode.NON_EMPTY_GROUP
        await beat(client, -1)
        altered = await alter(client, "a", 0, 3)
        assert [one.error_code for topic in altered.responses for one in topic.partitions] == [0]
        assert shown(await offsets(client))["a"] == [(0, 3, 7, 0)]
        unknown = await alter(client, "a", 5, 3)
        assert [one.error_code for topic in unknown.responses for one in topic.partitions] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        deleted = await ask(client, DELETE_OFFSETS, 0, group_id="g", topics=(topic, missing))
        assert [(one.topic_name, one.error_code) for one in deleted.responses] == [
            ("b", 0),
            ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert shown(await offsets(client)) == {"a": [(0, 3, 7, 0)]}
        assert [key.topic_id for key in broker.shares.core.states] == [broker.image.topics["a"].topic_id]

    run(tmp_path, check)


def test_a_deleted_group_leaves_no_state(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 3))
        await beat(client, topics=("a",))
        refused = await ask(client, ApiKey.DELETE_GROUPS, 2, groups_names=("g", "x"))
        assert [(one.group_id, one.error_code) for one in refused.results] == [
            ("g", ErrorCode.NON_EMPTY_GROUP),
            ("x", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
        assert len(broker.shares.core.states) == 3
        await beat(client, -1)
        broker.shares.failures = [RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR)]
        stays = await ask(client, ApiKey.DELETE_GROUPS, 2, groups_names=("g",))
        assert [one.error_code for one in stays.results] == [ErrorCode.UNKNOWN_SERVER_ERROR]
        deleted = await ask(client, ApiKey.DELETE_GROUPS, 2, groups_names=("g",))
        assert [one.error_code for one in deleted.results] == [0]
        assert broker.shares.core.states == {}
        assert broker.groups.core.state.groups == {}

    run(tmp_path, check)


def test_a_group_that_is_read_without_members_is_in_use(tmp_path: Path) -> None:
    """As a queue reads its group: it neither joins nor has a session at a gateway."""

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        joined = await beat(client, topics=("a",))
        assert joined.error_code == 0
        await beat(client, -1)
        wanted = ShareFetchPartition(TopicPartition("a", 0), broker.image.topics["a"].topic_id.bytes)
        leaders = broker.share_leaders

        async def read() -> None:
            params = ShareFetchParams("g", "queue", max_bytes=1 << 20, max_records=1, min_records=1)
            _, (result,) = await leaders.fetch(params, [wanted])
            assert result.error == 0

        async def delete() -> list[int]:
            deleted = await ask(client, ApiKey.DELETE_GROUPS, 2, groups_names=("g",))
            return [one.error_code for one in deleted.results]

        await read()
        topic = make(DELETE_OFFSETS, 0, "DeleteShareGroupOffsetsRequestTopic", topic_name="a")
        for refused in (
            await alter(client, "a", 0, 3),
            await ask(client, DELETE_OFFSETS, 0, group_id="g", topics=(topic,)),
        ):
            assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
            assert "programs read share group g, as members or with a rayka.Queue" in refused.error_message
            assert "--in-flight" in refused.error_message
        assert await delete() == [ErrorCode.NON_EMPTY_GROUP]
        assert len(broker.shares.core.states) == 1
        await leaders.end_session("g", "queue", [wanted.topic_partition], is_lost=False)
        assert (await alter(client, "a", 0, 3)).error_code == 0
        await read()
        last_fetches = leaders.partitions._members["g"]
        last_fetches["queue"] = LastFetch(last_fetches["queue"].time_s - 31, "")  # It was killed: its locks have ended.
        assert await delete() == [0]

    run(tmp_path, check)


@pytest.mark.parametrize("version", [0, 1])
def test_state_is_initialized_written_read_and_deleted(version: int, tmp_path: Path) -> None:
    async def state(client: WireClient, key: ApiKey, struct: str, topic_id: uuid.UUID, **fields: Any) -> Any:
        number = min(version, 0 if key in (ApiKey.READ_SHARE_GROUP_STATE,) else 1)
        if key in (ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_STATE):
            number = 0
        if "state_batches" in fields:
            fields["state_batches"] = tuple(
                make(key, number, "StateBatch", **b._asdict()) for b in fields["state_batches"]
            )
        partition = make(key, number, "PartitionData", partition=0, **fields)
        data = make(key, number, struct, topic_id=topic_id, partitions=(partition,))
        response = await ask(client, key, number, group_id="g", topics=(data,))
        (result,) = response.results
        assert result.topic_id == topic_id
        return result.partitions[0]

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        topic_id = broker.image.topics["a"].topic_id
        read = (ApiKey.READ_SHARE_GROUP_STATE, "ReadStateData", topic_id)
        missing = await state(client, *read, leader_epoch=0)
        assert (missing.error_code, bool(missing.error_message)) == (ErrorCode.INVALID_REQUEST, True)
        initialize = (ApiKey.INITIALIZE_SHARE_GROUP_STATE, "InitializeStateData", topic_id)
        assert (await state(client, *initialize, state_epoch=2, start_offset=5)).error_code == 0
        batch = StateBatch(5, 9, 2, 1)
        write = (ApiKey.WRITE_SHARE_GROUP_STATE, "WriteStateData", topic_id)
        values = {"state_epoch": 2, "leader_epoch": 1, "start_offset": 5, "delivery_complete_count": 5}
        assert (await state(client, *write, **values, state_batches=(batch,))).error_code == 0
        found = await state(client, *read, leader_epoch=1)
        assert (found.error_code, found.state_epoch, found.start_offset) == (0, 2, 5)
        (read_back,) = found.state_batches
        assert (read_back.first_offset, read_back.last_offset) == (batch.first_offset, batch.last_offset)
        assert (read_back.delivery_state, read_back.delivery_count) == (batch.delivery_state, batch.delivery_count)
        summary_key = (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "ReadStateSummaryData", topic_id)
        summary = await state(client, *summary_key, leader_epoch=-1)
        assert (summary.error_code, summary.state_epoch, summary.start_offset) == (0, 2, 5)
        if version >= 1:
            assert (summary.leader_epoch, summary.delivery_complete_count) == (1, 5)
        delete = (ApiKey.DELETE_SHARE_GROUP_STATE, "DeleteStateData", topic_id)
        assert (await state(client, *delete)).error_code == 0
        assert broker.shares.core.states == {}

    run(tmp_path, check)
