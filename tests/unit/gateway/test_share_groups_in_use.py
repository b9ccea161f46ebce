"""Who counts as a reader of a share group, which is then neither deleted nor reset: what queues do that do not join."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from rayka.actors.channel.requests import DescribeShareRecords
from rayka.actors.share.partitions import LastFetch
from rayka.client.admin.admin import AsyncAdmin
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.groups import describe
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.share.acknowledge import AcknowledgementBatch
from rayka.share.config import ShareGroupConfig
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import append, create, run
from tests.unit.gateway.asking_groups import ask
from tests.unit.gateway.test_share_groups import HEARTBEAT, alter, beat
from tests.unit.gateway.wire_client import WireClient

PLACE = TopicPartition("a", 0)
LOCK_S = 30


class Scene:
    """Group `g` with state for a topic of one partition, and without members."""

    def __init__(self, client: WireClient, broker: LocalBroker) -> None:
        self.client = client
        self.broker = broker
        self.leaders = broker.share_leaders

    async def fetch(
        self, member: str, wait_s: float = 0.0, acknowledged: Sequence[AcknowledgementBatch] = ()
    ) -> ShareFetchResult:
        """One fetch, as a queue sends it."""
        params = ShareFetchParams("g", member, max_wait_s=wait_s, min_bytes=1, max_bytes=1 << 20, max_records=10)
        topic_id = self.broker.image.topics["a"].topic_id.bytes
        _, (result,) = await self.leaders.fetch(params, [ShareFetchPartition(PLACE, topic_id, True, acknowledged)])
        assert (result.error, result.acknowledge_error) == (0, 0)
        return result

    async def read(self, member: str) -> None:
        """The share-partition is loaded."""
        while not self.leaders.partitions._members:
            await self.fetch(member, 0.1)

    def let_a_lock_pass(self) -> None:
        """As if everybody had fetched earlier, by more than a lock lasts."""
        members = self.leaders.partitions._members["g"]
        for member, last_fetch in members.items():
            members[member] = LastFetch(last_fetch.time_s - LOCK_S - 1, "")

    async def is_read(self) -> bool:
        """What the leader says."""
        return await self.leaders.is_read("g", [PLACE])


def check(path: Path, body: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Run `body` with a scene."""

    async def begin(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        await beat(client, topics=("a",))
        await beat(client, -1)
        await body(Scene(client, broker))

    run(path, begin)


def test_offsets_are_reset_after_the_only_reader_was_killed(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        append(scene.broker, "a", 1, 2, 3)
        await scene.read("killed")
        taken = (AcknowledgementBatch(0, 2, (1,)),)
        assert (await scene.fetch("killed", acknowledged=taken)).acquired_offsets == []
        scene.let_a_lock_pass()
        assert (await alter(scene.client, "a", 0, 0)).error_code == 0
        assert (await scene.fetch("new", 5.0)).acquired_count == 3

    check(tmp_path, body)


def test_a_fetch_that_waits_longer_than_a_lock_lasts_reads(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.read("waiting")
        waiting = asyncio.ensure_future(scene.fetch("waiting", 60.0))
        while not scene.leaders.partitions._waiters.keys(PLACE):
            await asyncio.sleep(0)
        scene.let_a_lock_pass()
        assert (await alter(scene.client, "a", 0, 0)).error_code == ErrorCode.NON_EMPTY_GROUP
        append(scene.broker, "a", 1)
        assert [*(await waiting).acquired_offsets] == [(0, 0)]
        assert await scene.is_read()  # It holds the record since now, not since it has begun to wait.

    check(tmp_path, body)


def test_a_group_is_read_also_where_its_records_can_not_be_described(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.read("queue")
        (leader,) = scene.leaders.partitions._leaders.values()
        leader.leader_epoch += 1  # as while the partition gets another leader
        described = await scene.leaders._ask(DescribeShareRecords("g", PLACE))
        assert (described.is_loaded, described.is_read) == (False, True)

    check(tmp_path, body)


def test_a_group_is_read_while_a_lock_lasts_that_is_longer_than_those_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(scene: Scene) -> None:
        await scene.read("holds it")
        append(scene.broker, "a", 1)
        assert (await scene.fetch("holds it")).acquired_offsets == [(0, 0)]
        monkeypatch.setattr(
            scene.leaders.partitions, "_group_config", lambda _: ShareGroupConfig(record_lock_duration_ms=1)
        )
        await asyncio.sleep(0.01)
        assert (await alter(scene.client, "a", 0, 0)).error_code == ErrorCode.NON_EMPTY_GROUP
        taken = (AcknowledgementBatch(0, 0, (1,)),)
        assert (await scene.fetch("holds it", acknowledged=taken)).acquired_offsets == []

    check(tmp_path, body)


def test_who_describes_a_group_that_nobody_reads_changes_nothing(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.read("killed")
        append(scene.broker, "a", 1)
        assert (await scene.fetch("killed")).acquired_offsets == [(0, 0)]
        await scene.fetch("killed", acknowledged=(AcknowledgementBatch(0, 0, (1,)),))
        scene.let_a_lock_pass()
        assert await scene.leaders.records("g", PLACE) == ()
        assert await scene.leaders.records("g", PLACE) is not None
        assert not await scene.is_read()
        assert await scene.leaders.records("g", PLACE) is None

    check(tmp_path, body)


def test_groups_whose_leader_does_not_answer_are_not_called_in_use_and_all_asked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(scene: Scene) -> None:
        for epoch in (0, -1):
            fields = {"member_id": "m", "member_epoch": epoch, "rack_id": None}
            await ask(scene.client, HEARTBEAT, 1, group_id="h", **fields, subscribed_topic_names=("a",))
        asked, all_are_asked = [], asyncio.Event()

        async def is_read(group_id: str, topic_partitions: Sequence[TopicPartition]) -> bool:
            assert [*topic_partitions] == [PLACE]
            asked.append(group_id)
            if len(asked) == 2:
                all_are_asked.set()
            await asyncio.wait_for(all_are_asked.wait(), 10)
            if group_id == "g":
                raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a leader does not answer")
            return False

        monkeypatch.setattr(scene.leaders, "is_read", is_read)
        deleted = await ask(scene.client, ApiKey.DELETE_GROUPS, 2, groups_names=("g", "h"))
        errors = {one.group_id: one.error_code for one in deleted.results}
        assert errors == {"g": ErrorCode.COORDINATOR_NOT_AVAILABLE, "h": 0}
        assert [*scene.broker.groups.core.state.groups] == ["g"]

    check(tmp_path, body)


def test_the_state_of_only_so_many_groups_is_deleted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "_GROUPS_AT_ONCE", 2)

    async def body(scene: Scene) -> None:
        names = tuple(f"h{number}" for number in range(5))
        for name, epoch in itertools.product(names, (0, -1)):
            fields = {"member_id": "m", "member_epoch": epoch, "rack_id": None}
            await ask(scene.client, HEARTBEAT, 1, group_id=name, **fields, subscribed_topic_names=("a",))
        asking, most = 0, 0

        async def is_read(*_: Any) -> bool:
            nonlocal asking, most
            asking += 1
            most = max(most, asking)
            await asyncio.sleep(0.01)
            asking -= 1
            return False

        monkeypatch.setattr(scene.leaders, "is_read", is_read)
        deleted = await ask(scene.client, ApiKey.DELETE_GROUPS, 2, groups_names=names)
        assert [one.error_code for one in deleted.results] == [0] * 5
        assert most == 2

    check(tmp_path, body)


def test_who_deletes_a_group_is_told_why_its_state_could_not_be_deleted(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        scene.broker.shares.failures += [RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR)]
        deleted = await ask(scene.client, ApiKey.DELETE_GROUPS, 2, groups_names=("g",))
        assert [one.error_code for one in deleted.results] == [ErrorCode.UNKNOWN_SERVER_ERROR]
        scene.broker.shares.failures += [RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR)]
        with pytest.raises(RaykaError) as refused:
            await AsyncAdmin(scene.broker).delete_groups(["g"])
        assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        deleted = await ask(scene.client, ApiKey.DELETE_GROUPS, 2, groups_names=("g",))
        assert [one.error_code for one in deleted.results] == [0]

    check(tmp_path, body)
