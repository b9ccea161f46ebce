"""The share coordinator: initialization, writes, reads, epochs, snapshots, pruning, and topics that are deleted."""

from __future__ import annotations

import uuid

import pytest

from rayka.coordinator.shares.batches import join_terminal
from rayka.coordinator.shares.keys import coordinator_key, parse_coordinator_key
from rayka.coordinator.shares.records import ShareSnapshotKey, ShareUpdateKey
from rayka.coordinator.shares.requests import (
    DeleteShareGroupStateRequest,
    StateBatch,
    WriteShareGroupStateRequest,
)
from rayka.coordinator.shares.settings import ShareCoordinatorSettings
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode, RaykaError
from rayka.types import SharePartitionKey
from tests.unit.coordinator.shares.shell import TOPIC_ID, ShareShell

NONE = ErrorCode.NONE
ACKNOWLEDGED, ARCHIVED, AVAILABLE = 2, 4, 0


def test_a_leader_reads_what_was_written() -> None:
    shell = ShareShell()
    assert shell.initialize(start_offset=10) is NONE
    assert shell.write(StateBatch(10, 14, ACKNOWLEDGED, 1), StateBatch(15, 19, AVAILABLE, 1), count=5) is NONE
    assert shell.write(StateBatch(15, 16, ARCHIVED, 2), start_offset=12, count=5) is NONE
    state = shell.read()
    assert (state.error, state.state_epoch, state.start_offset) == (NONE, 1, 12)
    assert state.state_batches == (
        StateBatch(12, 14, ACKNOWLEDGED, 1),
        StateBatch(15, 16, ARCHIVED, 2),
        StateBatch(17, 19, AVAILABLE, 1),
    )
    assert shell.loaded().durable() == shell.core.durable()


def test_reads_and_writes_before_initialization_are_refused() -> None:
    shell = ShareShell()
    assert shell.read().error is ErrorCode.INVALID_REQUEST
    assert shell.write(StateBatch(0, 1, ACKNOWLEDGED, 1)) is ErrorCode.INVALID_REQUEST
    assert (shell.summary().error, shell.summary().start_offset) == (NONE, -1)


def test_a_new_leader_fences_the_leader_before_it() -> None:
    shell = ShareShell()
    shell.initialize()
    assert shell.read(leader_epoch=4).error is NONE
    assert shell.read(leader_epoch=5).error is NONE
    assert shell.write(StateBatch(0, 1, ACKNOWLEDGED, 1), leader_epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert shell.read(leader_epoch=4).error is ErrorCode.FENCED_LEADER_EPOCH
    shell.core = shell.loaded()
    assert shell.write(StateBatch(0, 1, ACKNOWLEDGED, 1), leader_epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert shell.summary().leader_epoch == 5


def test_an_initialization_begins_anew_and_fences_older_state_epochs() -> None:
    shell = ShareShell()
    shell.initialize(state_epoch=1)
    shell.read(leader_epoch=3)
    shell.write(StateBatch(0, 9, ACKNOWLEDGED, 1), leader_epoch=3)
    assert shell.initialize(state_epoch=2, start_offset=50) is NONE
    assert shell.initialize(state_epoch=1) is ErrorCode.FENCED_STATE_EPOCH
    assert shell.write(StateBatch(60, 61, ACKNOWLEDGED, 1), leader_epoch=3) is ErrorCode.FENCED_STATE_EPOCH
    state = shell.read(leader_epoch=3)
    assert (state.state_epoch, state.start_offset, state.state_batches) == (2, 50, ())
    assert shell.read(leader_epoch=2).error is ErrorCode.FENCED_LEADER_EPOCH


def test_an_initialization_that_comes_twice_does_not_take_acknowledgements_back() -> None:
    shell = ShareShell()
    shell.initialize(state_epoch=1, start_offset=-1)
    shell.read(leader_epoch=3)
    shell.write(StateBatch(5, 9, ACKNOWLEDGED, 1), leader_epoch=3, start_offset=3)
    assert shell.initialize(state_epoch=1, start_offset=-1) is NONE
    state = shell.read(leader_epoch=3)
    assert (state.start_offset, state.state_batches) == (3, (StateBatch(5, 9, ACKNOWLEDGED, 1),))


def test_a_leader_that_knows_a_deleted_group_can_not_write_into_the_group_that_has_its_name_now() -> None:
    shell = ShareShell()
    shell.initialize(state_epoch=7)
    shell.ask(DeleteShareGroupStateRequest("g", TOPIC_ID, 0))
    shell.initialize(state_epoch=1)
    assert shell.write(state_epoch=7, start_offset=900) is ErrorCode.FENCED_STATE_EPOCH
    assert shell.read().start_offset == 0


@pytest.mark.parametrize("offset", [-2, -(2**63)])
def test_start_offsets_that_are_none_are_refused(offset: int) -> None:
    shell = ShareShell()
    assert shell.initialize(start_offset=offset) is ErrorCode.INVALID_REQUEST
    assert shell.initialize(start_offset=4) is NONE
    assert shell.write(start_offset=offset) is NONE
    assert shell.read().start_offset == 4


@pytest.mark.parametrize("batch", [StateBatch(0, 1, 1, 1), StateBatch(0, 1, 9, 1), StateBatch(0, 1, 0, -1)])
def test_batches_that_no_leader_could_load_are_refused(batch: StateBatch) -> None:
    shell = ShareShell()
    shell.initialize()
    assert shell.write(batch) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", ["state_epoch", "leader_epoch", "partition"])
def test_negative_numbers_are_refused(name: str) -> None:
    shell = ShareShell()
    shell.initialize()
    fields = {"partition": 0, "state_epoch": 1, "leader_epoch": 0, name: -1}
    response = shell.ask(WriteShareGroupStateRequest("g", TOPIC_ID, **fields))
    assert response.error is ErrorCode.INVALID_REQUEST
    assert "cannot be a negative number" in response.error_message


@pytest.mark.parametrize("batch", [StateBatch(5, 4, 0, 1), StateBatch(-2, 4, 0, 1)])
def test_batches_that_are_no_ranges_are_refused(batch: StateBatch) -> None:
    shell = ShareShell()
    shell.initialize()
    assert shell.write(batch) is ErrorCode.INVALID_REQUEST


def test_partitions_that_do_not_exist_are_refused() -> None:
    shell = ShareShell()
    assert shell.initialize(partition=4) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shell.summary(partition=4).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_start_offset_never_goes_back() -> None:
    shell = ShareShell()
    shell.initialize(start_offset=5)
    shell.write(StateBatch(20, 29, ACKNOWLEDGED, 1), start_offset=20, count=10)
    shell.write(StateBatch(10, 19, ACKNOWLEDGED, 1), start_offset=10, count=20)
    shell.write(count=3)
    assert (shell.summary().start_offset, shell.summary().delivery_complete_count) == (20, 10)
    assert shell.read().state_batches == (StateBatch(20, 29, ACKNOWLEDGED, 1),)


def test_a_snapshot_comes_after_so_many_updates() -> None:
    shell = ShareShell()
    shell.initialize()
    for offset in range(8):
        shell.write(StateBatch(offset, offset, ACKNOWLEDGED, 1), start_offset=offset)
    kinds = [type(record.key) for record in shell.records()]
    updates = [ShareUpdateKey] * 3
    assert kinds == [ShareSnapshotKey, *updates, ShareSnapshotKey, *updates, ShareSnapshotKey]
    assert shell.loaded().durable() == shell.core.durable()


def test_a_write_that_can_not_be_appended_changes_nothing() -> None:
    shell = ShareShell()
    shell.initialize()
    before = shell.core.durable()
    request = WriteShareGroupStateRequest("g", TOPIC_ID, 0, 1, 0, state_batches=(StateBatch(0, 1, ACKNOWLEDGED, 1),))
    assert shell.ask(request, ErrorCode.NOT_ENOUGH_REPLICAS).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert shell.core.durable() == before


def test_records_before_the_oldest_snapshot_are_deleted() -> None:
    shell = ShareShell()
    shell.initialize(partition=0)
    shell.initialize(partition=1)
    for offset in range(12):
        shell.write(StateBatch(offset, offset, ACKNOWLEDGED, 1), start_offset=offset)
    shell.prune()
    assert shell.log[0][0] == 1, "the quiet share-partition holds back the rest"
    shell.wait(shell.settings.cold_snapshot_interval_ms + 1)
    assert shell.log[0][0] > 12
    assert shell.loaded().durable() == shell.core.durable()
    log = list(shell.log)
    shell.wait(10 * shell.settings.cold_snapshot_interval_ms)
    assert shell.log == log, "a coordinator that has nothing to do writes nothing"


def test_deleted_state_is_gone_and_its_deletion_can_be_repeated() -> None:
    shell = ShareShell()
    shell.initialize()
    request = DeleteShareGroupStateRequest("g", TOPIC_ID, 0)
    assert shell.ask(request).error is NONE
    assert shell.ask(request).error is NONE
    assert shell.read().error is ErrorCode.INVALID_REQUEST
    assert shell.loaded().states == {}
    assert len(shell.log) == 2


def test_the_state_of_a_deleted_topic_is_deleted() -> None:
    shell = ShareShell()
    shell.initialize(partition=0)
    shell.initialize(partition=3)
    shell.set_topics(TopicMetadata(uuid.UUID(int=9), "t", 4))
    assert shell.core.states == {}
    assert shell.loaded().states == {}


def test_coordinator_keys_are_those_of_kafka() -> None:
    topic_id = uuid.UUID("43a12849-f488-4c59-aa1c-7790a9d70eae")
    key = coordinator_key("a:b", topic_id, 3)
    assert key == "a:b:Q6EoSfSITFmqHHeQqdcOrg:3"
    assert parse_coordinator_key(key) == SharePartitionKey("a:b", topic_id, 3)


@pytest.mark.parametrize("key", ["", "g", "g:0", "g:nonsense:0", "g:Q6EoSfSITFmqHHeQqdcOrg:x"])
def test_keys_that_name_no_share_partition_are_refused(key: str) -> None:
    with pytest.raises(RaykaError, match="groupId:topicId:partition"):
        parse_coordinator_key(key)


def test_a_snapshot_of_very_many_batches_joins_those_that_are_done() -> None:
    shell = ShareShell(ShareCoordinatorSettings(updates_per_snapshot=1))
    shell.initialize()
    delayed = StateBatch(0, 0, AVAILABLE, 1, 1_800_000_000_000)
    done = [StateBatch(n, n, (ACKNOWLEDGED, ARCHIVED)[n % 2], 1 + n % 3) for n in range(1, 6001)]
    shell.write(delayed, *done)
    assert len(shell.read().state_batches) > 5000
    shell.write(StateBatch(6001, 6001, ACKNOWLEDGED, 1))
    assert shell.read().state_batches == (delayed, StateBatch(1, 6001, ARCHIVED, 3))
    assert shell.loaded().durable() == shell.core.durable()


def test_only_neighbours_that_are_done_are_joined() -> None:
    delayed = StateBatch(2, 2, AVAILABLE, 3, 1_800_000_000_000)
    done, archiving = StateBatch(3, 3, ACKNOWLEDGED, 1), StateBatch(6, 6, 3, 2)
    after_gap, last = StateBatch(5, 5, ARCHIVED, 2), StateBatch(7, 7, ACKNOWLEDGED, 1)
    batches = (
        StateBatch(0, 0, ACKNOWLEDGED, 1),
        StateBatch(1, 1, ARCHIVED, 5),
        delayed,
        done,
        after_gap,
        archiving,
        last,
    )
    assert join_terminal(batches) == (StateBatch(0, 1, ARCHIVED, 5), delayed, done, after_gap, archiving, last)


def test_the_state_of_a_topic_that_was_deleted_meanwhile_is_deleted_in_the_end() -> None:
    shell = ShareShell()
    shell.initialize()
    shell.topics = Topics([], shell.topics.version + 1)
    shell.core = shell.loaded()
    shell.wait(shell.settings.prune_interval_ms)
    assert len(shell.core.states) == 1, "its creation may not be known here yet"
    shell.wait(shell.settings.prune_interval_ms)
    assert not shell.core.states
    assert not shell.loaded().states
