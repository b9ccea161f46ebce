"""What an actor logs of share-partitions that it can't load."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayka.actors.share import load_faults
from rayka.actors.share.load_faults import LoadFaults
from rayka.actors.share.waiters import GroupPartition
from rayka.coordinator.shares.requests import InitializeShareGroupStateRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import NewTopic
from rayka.share.requests import ShareFetchParams, ShareFetchPartition
from rayka.types import TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import append, create, run
from tests.unit.gateway.wire_client import WireClient

HERE, THERE = (GroupPartition("g", TopicPartition("t", number)) for number in range(2))
DAMAGED, NO_ANSWER = RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, "damaged"), RaykaError(ErrorCode.REQUEST_TIMED_OUT)


def test_each_error_is_logged_once_until_the_share_partition_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    faults = LoadFaults()
    for now_s in range(3):
        for error in (DAMAGED, NO_ANSWER):
            faults.failed(HERE, error, now_s)
    faults.failed(THERE, DAMAGED, 3)
    assert len(caplog.messages) == 3
    faults.passed(HERE)
    faults.failed(HERE, DAMAGED, 4)
    faults.failed(THERE, DAMAGED, 4)
    assert len(caplog.messages) == 4


def test_faults_that_nobody_meets_any_more_are_forgotten_and_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    faults = LoadFaults()
    for key in (HERE, THERE):
        faults.failed(key, DAMAGED, 0)
    faults.failed(HERE, DAMAGED, 10)
    faults.forget_older(5)
    assert len(faults) == 1
    faults.failed(HERE, DAMAGED, 11)
    assert len(caplog.messages) == 2


def test_the_number_of_faults_that_are_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_faults, "_MOST", 2)
    faults = LoadFaults()
    for number in range(4):
        faults.failed(GroupPartition(f"no group {number}", HERE.topic_partition), DAMAGED, 0)
    assert len(faults) == 2


def test_a_fault_that_lasts_is_logged_once_however_often_members_fetch_and_again_after_it_had_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("t", num_partitions=1))
        topic_id = broker.image.topics["t"].topic_id
        await broker.shares.execute(InitializeShareGroupStateRequest("g", topic_id, 0, 1, 0))
        append(broker, "t", 1)
        place = TopicPartition("t", 0)

        async def fetch() -> ErrorCode:
            params = ShareFetchParams("g", "m", 1.0, 1, 1 << 20, 10)
            (result,) = (await broker.share_leaders.fetch(params, [ShareFetchPartition(place, topic_id.bytes)]))[1]
            return ErrorCode(result.error)

        for count in (1, 2):
            broker.shares.failures += [DAMAGED] * 3
            assert {await fetch() for _ in range(3)} == {ErrorCode.UNKNOWN_SERVER_ERROR}
            assert caplog.messages == ["cannot load t-0 of group g: UNKNOWN_SERVER_ERROR: damaged"] * count
            assert await fetch() is ErrorCode.NONE
            broker.share_leaders.partitions.released(place)

    run(tmp_path, body)
