"""OffsetCommit requests of one connection that repeat the one before, and those that only seem to."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from rayka.coordinator.groups.records import OffsetCommitValue
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.groups.commit_template import CommitTemplate
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import create, run
from tests.unit.gateway.asking_groups import ask, commit_errors, committing
from tests.unit.gateway.wire_client import WireClient

VERSIONS = [7, 8, 9, 10]


def committed(broker: LocalBroker) -> list[tuple[int, int, str]]:
    values = [record.value for record in broker.groups.records()]
    return [(one.offset, one.leader_epoch, one.metadata) for one in values if isinstance(one, OffsetCommitValue)]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_commit_stores_its_own_offsets(version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        topic: Any = broker.image.topics["a"].topic_id if version >= 10 else "a"
        sent = [(7, 8), (9, 10), (2**40, 0), (5,), (6,), (11, 12)]
        for offsets in sent:
            answer = await ask(client, ApiKey.OFFSET_COMMIT, version, **committing(version, topic, *offsets))
            assert commit_errors(answer) == [0] * len(offsets)
            assert [one.partition_index for one in answer.topics[0].partitions] == list(range(len(offsets)))
        expected = [(offset, 4, f"m{index}") for offsets in sent for index, offset in enumerate(offsets)]
        assert committed(broker) == expected

    run(tmp_path, check)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeated_commit_is_refused_like_any_other(version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2))
        topic: Any = broker.image.topics["a"].topic_id if version >= 10 else "a"

        async def errors(first: int, **values: Any) -> list[int]:
            request = committing(version, topic, first, first + 1, **values)
            return commit_errors(await ask(client, ApiKey.OFFSET_COMMIT, version, **request))

        assert [await errors(1), await errors(3)] == [[0, 0]] * 2
        broker.groups.failure = RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert await errors(5) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
        broker.groups.failure = None
        stranger = await errors(7, generation_id_or_member_epoch=3, member_id="nobody")
        assert len(stranger) == 2
        assert 0 not in stranger
        assert await errors(9) == [0, 0]
        await broker.controller.delete_topics([broker.image.topics["a"].topic_id], timeout_ms=1000)
        gone = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await errors(11) == [gone] * 2
        assert [offset for offset, _, _ in committed(broker)] == [1, 2, 3, 4, 9, 10]

    run(tmp_path, check)


@pytest.mark.parametrize("version", [9, 10])
def test_a_topic_that_is_deleted_during_a_commit_is_gone_for_the_next_one(version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        topic_id = broker.image.topics["a"].topic_id
        execute = broker.groups.execute

        async def execute_and_delete(request: Any) -> Any:
            broker.groups.execute = execute  # type: ignore[method-assign]
            answer = await execute(request)
            await broker.controller.delete_topics([topic_id], timeout_ms=1000)
            return answer

        async def errors(offset: int) -> list[int]:
            request = committing(version, topic_id if version >= 10 else "a", offset)
            return commit_errors(await ask(client, ApiKey.OFFSET_COMMIT, version, **request))

        broker.groups.execute = execute_and_delete  # type: ignore[method-assign]
        assert await errors(1) == [0]
        gone = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await errors(2) == [gone]

    run(tmp_path, check)


def test_a_connection_keeps_no_large_commit(tmp_path: Path) -> None:
    def templates() -> list[CommitTemplate]:
        return [one for one in gc.get_objects() if type(one) is CommitTemplate]  # isinstance would follow weak proxies

    async def check(client: WireClient, broker: LocalBroker) -> None:
        of_other_tests = templates()
        await create(broker, NewTopic("a", 1000))
        for _ in range(2):
            answer = await ask(client, ApiKey.OFFSET_COMMIT, 9, **committing(9, "a", *range(1000)))
            assert not any(commit_errors(answer))
        assert all(any(one is other for other in of_other_tests) for one in templates())

    run(tmp_path, check)
