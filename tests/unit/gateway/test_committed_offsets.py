"""Committed offsets, in every version of each API."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from rayka.coordinator.groups.records import OffsetCommitValue
from rayka.errors import ErrorCode
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import create, make, run
from tests.unit.gateway.asking_groups import AT_ONCE, ask, commit_errors, committing, join, sync
from tests.unit.gateway.wire_client import WireClient, versions


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.OFFSET_COMMIT))
def test_offset_commit(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        known: Any = broker.image.topics["a"].topic_id if version >= 10 else "a"
        unknown: Any = uuid.uuid4() if version >= 10 else "gone"
        done = await ask(client, key, version, **committing(version, known, 7, 8, 9))
        assert commit_errors(done) == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], "there is no partition 2"
        assert getattr(done.topics[0], "topic_id" if version >= 10 else "name") == known
        missing = await ask(client, key, version, **committing(version, unknown, 7))
        expected = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert commit_errors(missing) == [expected]
        if version >= 1:
            stranger = committing(version, known, 9, generation_id_or_member_epoch=3, member_id="nobody")
            (error,) = commit_errors(await ask(client, key, version, **stranger))
            assert error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
        values = [record.value for record in broker.groups.records()]
        offsets = [value for value in values if isinstance(value, OffsetCommitValue)]
        assert [(value.offset, value.metadata) for value in offsets] == [(7, "m0"), (8, "m1")]
        assert offsets[0].leader_epoch == (4 if version >= 6 else -1)

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.OFFSET_FETCH))
def test_offset_fetch(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def fetch(client: WireClient, topics: dict[Any, tuple[int, ...]] | None, group: str = "g") -> Any:
        many = version >= 8
        asked = None
        if topics is not None:
            asked = tuple(
                make(
                    key, version, "OffsetFetchRequestTopics" if many else "OffsetFetchRequestTopic",
                    partition_indexes=partitions, **({"topic_id": name} if version >= 10 else {"name": name}),
                )
                for name, partitions in topics.items()
            )  # fmt: skip
        if not many:
            return await ask(client, key, version, group_id=group, topics=asked, require_stable=True)
        fields = {"group_id": group, "topics": asked, "member_id": None, "member_epoch": -1}
        groups = (make(key, version, "OffsetFetchRequestGroup", **fields),)
        (found,) = (await ask(client, key, version, groups=groups, require_stable=True)).groups
        assert found.group_id == group
        return found

    def offsets(answer: Any) -> list[tuple[Any, int, int, str, int]]:
        return [
            (name, one.partition_index, one.committed_offset, one.metadata, int(one.error_code))
            for topic in answer.topics
            for name in [topic.topic_id if version >= 10 else topic.name]
            for one in topic.partitions
        ]

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 3), NewTopic("b"))
        await ask(client, ApiKey.OFFSET_COMMIT, 8, **committing(8, "a", 7, 8))
        ids = {name: topic.topic_id if version >= 10 else name for name, topic in broker.image.topics.items()}
        known = await fetch(client, {ids["a"]: (1, 0), ids["b"]: (0,)})
        nothing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version == 0 else 0
        assert offsets(known) == [(ids["a"], 1, 8, "m1", 0), (ids["a"], 0, 7, "m0", 0), (ids["b"], 0, -1, "", nothing)]
        if version >= 5:
            assert known.topics[0].partitions[0].committed_leader_epoch == 4
        if version >= 2:
            assert offsets(await fetch(client, None)) == [(ids["a"], 0, 7, "m0", 0), (ids["a"], 1, 8, "m1", 0)]
            assert offsets(await fetch(client, None, "other")) == []
        if version >= 10:
            gone = uuid.uuid4()
            assert offsets(await fetch(client, {gone: (0,), ids["a"]: (0,)})) == [
                (gone, 0, -1, "", ErrorCode.UNKNOWN_TOPIC_ID), (ids["a"], 0, 7, "m0", 0),
            ]  # fmt: skip

    run(tmp_path, check)


def test_offset_fetch_of_many_groups(tmp_path: Path) -> None:
    key = ApiKey.OFFSET_FETCH

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a"))
        for name, offset in (("g", 1), ("h", 2)):
            await ask(client, ApiKey.OFFSET_COMMIT, 8, **committing(8, "a", offset, group_id=name))
        fields = {"topics": None, "member_id": None, "member_epoch": -1}
        groups = tuple(make(key, 9, "OffsetFetchRequestGroup", group_id=name, **fields) for name in ("h", "x", "g"))
        found = (await ask(client, key, 9, groups=groups, require_stable=False)).groups
        assert [
            (group.group_id, [one.committed_offset for topic in group.topics for one in topic.partitions])
            for group in found
        ] == [("h", [2]), ("x", []), ("g", [1])]

    run(tmp_path, check)


def test_repeated_offsets_are_answered_once(tmp_path: Path) -> None:
    """A few bytes would become all offsets of the group, or the metadata of one, again and again."""
    key, version = ApiKey.OFFSET_FETCH, 9

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a"))
        await ask(client, ApiKey.OFFSET_COMMIT, 8, **committing(8, "a", 7))
        topic = make(key, version, "OffsetFetchRequestTopics", name="a", partition_indexes=(0, 0, 0))
        groups = tuple(
            make(key, version, "OffsetFetchRequestGroup", group_id="g", topics=topics, member_id=name, member_epoch=-1)
            for topics in (None, (topic, topic))
            for name in ("b", "c", "d")
        )
        found = (await ask(client, key, version, groups=groups, require_stable=False)).groups
        assert [[one.committed_offset for topic in group.topics for one in topic.partitions] for group in found] == [
            [7],
            [7],
        ]

    run(tmp_path, check)


def test_offset_delete(tmp_path: Path) -> None:
    key = ApiKey.OFFSET_DELETE

    async def delete(client: WireClient, group: str, *partitions: int) -> tuple[int, list[int]]:
        places = tuple(make(key, 0, "OffsetDeleteRequestPartition", partition_index=index) for index in partitions)
        topics = (make(key, 0, "OffsetDeleteRequestTopic", name="a", partitions=places),)
        response = await ask(client, key, 0, group_id=group, topics=topics)
        return int(response.error_code), commit_errors(response)

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        await ask(client, ApiKey.OFFSET_COMMIT, 8, **committing(8, "a", 5, 6))
        assert await delete(client, "g", 7, 1) == (0, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0])
        assert await delete(client, "gone", 0) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        joined = await join(client, 9)
        await sync(client, 9, joined)
        assert await delete(client, "g", 0) == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])

    run(tmp_path, check, **AT_ONCE)
