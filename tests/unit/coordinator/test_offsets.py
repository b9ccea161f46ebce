"""Committed offsets: who may commit, what is refused, what is found, what expires."""

from __future__ import annotations

import uuid

import pytest

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups import offset_commands
from rayka.coordinator.groups.requests import (
    CommittedOffset,
    DeleteGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetPartition,
)
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode
from tests.unit.coordinator.clients import topic_id, topics
from tests.unit.coordinator.shell import Shell, protocols

E = ErrorCode
DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS


def test_committed_offsets_survive_a_crash() -> None:
    shell = Shell()
    assert shell.commit(42, leader_epoch=3, metadata="m") is E.NONE
    for _ in range(2):
        response = shell.query(OffsetFetchRequest("g", (OffsetPartition("t", 0), OffsetPartition("t", 1))))
        assert [(o.offset, o.leader_epoch, o.metadata, o.error) for o in response.offsets] == [
            (42, 3, "m", E.NONE),
            (-1, -1, "", E.NONE),
        ]
        shell.restart()


def test_all_offsets_of_a_group_at_once() -> None:
    shell = Shell()
    for topic, partition in [("b", 1), ("a", 0), ("b", 0)]:
        shell.commit(topic=topic, partition=partition)
    found = shell.query(OffsetFetchRequest("g")).offsets
    assert [(o.topic, o.partition) for o in found] == [("a", 0), ("b", 0), ("b", 1)]
    assert shell.query(OffsetFetchRequest("other")).offsets == ()


def test_offsets_of_a_deleted_topic_do_not_count_for_a_new_one_of_that_name() -> None:
    shell = Shell()
    old, new = uuid.UUID(int=1), uuid.UUID(int=2)
    shell.commit(5, topic_id=old)
    wanted = (OffsetPartition("t", 0, old), OffsetPartition("t", 0, new), OffsetPartition("t", 0))
    found = shell.query(OffsetFetchRequest("g", wanted)).offsets
    assert [o.offset for o in found] == [5, -1, 5]


def test_offsets_of_a_topic_that_was_created_again_unseen_do_not_count_for_it() -> None:
    """The coordinator was away meanwhile, and the client names the topic without its id, as before version 10."""
    shell = Shell()
    for topic in ("t", "u"):
        shell.commit(topic=topic, topic_id=topic_id(topic))
    shell.commit(topic="old", topic_id=ZERO_UUID)
    again = [TopicMetadata(uuid.UUID(int=2), "t", 1), *topics("u", "old").by_name.values()]
    shell.topics = Topics(again, version=5)
    shell.restart()
    assert (shell.committed(), shell.committed(topic="u"), shell.committed(topic="old")) == (-1, 7, 7)
    assert [o.topic for o in shell.query(OffsetFetchRequest("g")).offsets] == ["old", "u"]
    assert shell.commit(1, topic_id=uuid.UUID(int=2)) is E.NONE
    assert shell.committed() == 1


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_commit_of_a_topic_that_was_created_again_outlives_the_old_one(is_transactional: bool) -> None:
    """Members may know the new topic before the coordinator has heard that the old one is gone."""
    shell = Shell()
    old, new = topic_id("t"), uuid.UUID(int=2)
    shell.set_topics(topics("t"))
    for partition in (0, 1):
        shell.commit(5, partition=partition, topic_id=old)
    request = OffsetCommitRequest("g", (CommittedOffset("t", 0, 7, topic_id=new),))
    result = offset_commands.commit(shell.core, request, shell.now, is_transactional)
    for record in result.records:
        shell.core.replay(record, 100, producer_id=5 if is_transactional else -1)
    shell.set_topics(Topics([TopicMetadata(new, "t", 4)], version=2))
    assert [shell.committed(partition=partition) for partition in (0, 1)] == [-1 if is_transactional else 7, -1]
    shell.core.end_transaction(5, is_committed=True)
    assert shell.committed() == 7
    assert list(shell.core.state.offsets.committed["g"]) == [("t", 0)]


@pytest.mark.parametrize(("length", "error"), [(4096, E.NONE), (4097, E.OFFSET_METADATA_TOO_LARGE)])
def test_metadata_of_commits_is_limited(length: int, error: ErrorCode) -> None:
    shell = Shell()
    assert shell.commit(metadata="x" * length) is error
    assert shell.committed() == (7 if error is E.NONE else -1)


def test_a_refused_partition_does_not_affect_the_others() -> None:
    shell = Shell()
    offsets = (CommittedOffset("t", 0, 1, metadata="x" * 5000), CommittedOffset("t", 1, 2))
    response = shell.execute(OffsetCommitRequest("g", offsets))
    assert response.errors == (E.OFFSET_METADATA_TOO_LARGE, E.NONE)
    assert (shell.committed(), shell.committed(partition=1)) == (-1, 2)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, E.NONE),
        ({"generation_id_or_member_epoch": 0}, E.GROUP_ID_NOT_FOUND),
        ({"generation_id_or_member_epoch": 0, "knows_member_epochs": False}, E.ILLEGAL_GENERATION),
    ],
)
def test_commits_without_a_group(changes: dict[str, object], error: ErrorCode) -> None:
    assert Shell().commit(**changes) is error


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, E.UNKNOWN_MEMBER_ID),
        ({"generation_id_or_member_epoch": 1, "member_id": "m"}, E.NONE),
        ({"generation_id_or_member_epoch": 1, "member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"generation_id_or_member_epoch": 0, "member_id": "m"}, E.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": 2, "member_id": "m"}, E.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": 1, "member_id": "m", "group_instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_to_a_stable_group(changes: dict[str, object], error: ErrorCode) -> None:
    shell = Shell()
    (member,) = shell.settled()
    if changes.get("member_id") == "m":
        changes = changes | {"member_id": member.member_id}
    assert shell.commit(**changes) is error


def test_commits_in_a_rebalance() -> None:
    shell = Shell()
    a, b = shell.settled(2)
    mine = {"generation_id_or_member_epoch": 1, "member_id": a.member_id}
    waiting = shell.join(member_id=b.member_id, protocols=protocols("range", topics=("u",)))
    assert shell.commit(**mine) is E.NONE, "until the others have joined the old generation goes on"
    shell.join(member_id=a.member_id)
    assert shell.answer(waiting).generation_id == 2
    assert shell.commit(**mine) is E.ILLEGAL_GENERATION
    assert shell.commit(**mine | {"generation_id_or_member_epoch": 2}) is E.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_its_member_alive() -> None:
    shell = Shell()
    (member,) = shell.settled()
    for _ in range(5):
        shell.advance(9_000)
        assert shell.commit(generation_id_or_member_epoch=1, member_id=member.member_id) is E.NONE


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_failed_append_leaves_no_trace(failure: ErrorCode, error: ErrorCode) -> None:
    shell = Shell()
    shell.commit(1)
    shell.fail_next = failure
    assert shell.commit(2) is error
    assert shell.committed() == 1
    shell.fail_next = failure
    assert shell.commit(2, group_id="h") is error
    assert shell.state("h") == ""


def delete(shell: Shell, *topics: str, group_id: str = "g") -> list[ErrorCode]:
    request = OffsetDeleteRequest(group_id, tuple((topic, 0) for topic in topics))
    response = shell.execute(request)
    return list(response.errors) or [response.error]


def test_offsets_of_topics_without_subscribers_can_be_deleted() -> None:
    shell = Shell()
    (member,) = shell.settled()
    for topic in ("t", "old"):
        shell.commit(topic=topic, generation_id_or_member_epoch=1, member_id=member.member_id)
    assert delete(shell, "t", "old", "never") == [E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE, E.NONE]
    assert (shell.committed(), shell.committed(topic="old")) == (7, -1)
    shell.restart()
    assert (shell.committed(), shell.committed(topic="old")) == (7, -1)


def test_offsets_that_cannot_be_deleted() -> None:
    shell = Shell()
    assert delete(shell, "t") == [E.GROUP_ID_NOT_FOUND]
    assert delete(shell, "t", group_id="") == [E.INVALID_GROUP_ID]
    handle = shell.join(protocol_type="connect", require_known_member_id=False)
    shell.settle()
    shell.finish([shell.answer(handle)])
    assert delete(shell, "t") == [E.NON_EMPTY_GROUP]


def test_groups_are_deleted_with_their_offsets() -> None:
    shell = Shell()
    shell.settled(group_id="busy")
    shell.commit(group_id="idle")
    response = shell.run(shell.core.delete_groups(DeleteGroupsRequest(("busy", "idle", "none")), shell.now))
    assert response.errors == (E.NON_EMPTY_GROUP, E.NONE, E.GROUP_ID_NOT_FOUND)
    assert (shell.state("idle"), shell.committed("idle")) == ("", -1)
    shell.restart()
    assert (shell.state("idle"), shell.state("busy")) == ("", "Stable")


def test_offsets_without_members_expire_a_while_after_the_commit() -> None:
    shell = Shell()
    shell.commit()
    shell.advance(WEEK_MS - DAY_MS)
    shell.commit(topic="u")
    shell.advance(DAY_MS + 600_000)
    assert (shell.committed(), shell.committed(topic="u")) == (-1, 7)
    shell.advance(WEEK_MS)
    assert shell.state() == "", "the last offset takes the empty group with it"


def test_offsets_of_a_group_expire_a_while_after_it_became_empty() -> None:
    shell = Shell()
    (member,) = shell.settled(session_timeout_ms=1_800_000)
    mine = {"generation_id_or_member_epoch": 1, "member_id": member.member_id}
    shell.commit(**mine)
    for _ in range(10 * 50):
        shell.advance(DAY_MS // 50)
        shell.heartbeat(member.member_id, 1)
    assert shell.committed() == 7
    shell.leave(member.member_id)
    shell.advance(WEEK_MS - 700_000)
    assert shell.committed() == 7
    shell.advance(1_400_000)
    assert (shell.committed(), shell.state()) == (-1, "")


def test_offsets_of_topics_that_a_running_group_no_longer_reads_expire() -> None:
    shell = Shell()
    (member,) = shell.settled(session_timeout_ms=1_800_000)
    for topic in ("t", "old"):
        shell.commit(topic=topic, generation_id_or_member_epoch=1, member_id=member.member_id)
    for _ in range(8 * 50):
        shell.advance(DAY_MS // 50)
        shell.heartbeat(member.member_id, 1)
    assert (shell.committed(), shell.committed(topic="old"), shell.state()) == (7, -1, "Stable")


def test_a_commit_may_have_its_own_retention() -> None:
    shell = Shell(GroupSettings(offsets_retention_check_interval_ms=1000))
    shell.commit(retention_time_ms=5_000)
    shell.advance(4_500)
    assert shell.committed() == 7
    shell.restart()
    shell.advance(1_500)
    assert shell.committed() == -1


def test_offsets_of_a_deleted_topic_are_deleted() -> None:
    shell = Shell()
    for topic in ("t", "u"):
        shell.commit(topic=topic)
    shell.run(shell.core.on_new_metadata_image(topics("t", "u")))
    shell.run(shell.core.on_new_metadata_image(topics("u")))
    assert (shell.committed(), shell.committed(topic="u")) == (-1, 7)


def test_offsets_in_a_transaction_count_when_it_has_committed() -> None:
    shell = Shell()
    shell.commit(1)
    for is_committed, offset in [(False, 1), (True, 9)]:
        request = OffsetCommitRequest("g", (CommittedOffset("t", 0, 9),))
        result = offset_commands.commit(shell.core, request, shell.now, is_transactional=True)
        for index, record in enumerate(result.records):
            shell.core.replay(record, 100 + index, producer_id=5)
        assert shell.committed() == 1
        stable = OffsetFetchRequest("g", (OffsetPartition("t", 0),), require_stable=True)
        assert shell.query(stable).offsets[0].error is E.UNSTABLE_OFFSET_COMMIT
        shell.core.end_transaction(5, is_committed)
        assert shell.committed() == offset
        assert shell.query(stable).offsets[0].error is E.NONE
