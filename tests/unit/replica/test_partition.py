"""What a leader appends and what it refuses."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Appended, Partition
from rayka.replica.replicas import Replicas
from rayka.storage.format.records import Record, build_batch
from rayka.types import AppendParams, AppendRequest, IsolationLevel, OffsetQuery, OffsetSpec, RecordError
from tests.support.logs import NOW_MS, ORDERS, batch, open_log

ACKS_ALL = AppendParams(-1, 1000)
ACKS_LEADER = AppendParams(1, 1000)
EPOCH = 5


def leader(directory: Path, *, is_internal: bool = False, **configs: object) -> Partition:
    """A partition with one replica, in leader epoch 5."""
    partition = Partition(open_log(directory, **configs), uuid.uuid4(), is_internal=is_internal)
    partition.become_leader(EPOCH)
    return partition


def send(
    partition: Partition, *, leader_epoch: int = EPOCH, params: AppendParams = ACKS_ALL, records: bytes | None = None
) -> Appended:
    """Append through the replicas, so that errors are in the result."""
    replicas = Replicas()
    replicas.add(partition)
    data = memoryview(bytearray(records or batch(b"v")))
    appended = replicas.append(AppendRequest(ORDERS, data, leader_epoch), params, NOW_MS)
    partition.validate_state()
    return appended


@pytest.mark.parametrize("leader_epoch", [EPOCH - 1, EPOCH + 1])
def test_an_append_of_another_leader_epoch_is_refused(tmp_path: Path, leader_epoch: int) -> None:
    partition = leader(tmp_path)
    assert send(partition, leader_epoch=leader_epoch).result.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log.log_end_offset == 0


@pytest.mark.parametrize("leader_epoch", [EPOCH, -1])
def test_an_append_of_the_leaders_epoch_or_of_none_is_visible_at_once(tmp_path: Path, leader_epoch: int) -> None:
    appended = send(leader(tmp_path), leader_epoch=leader_epoch)
    assert (appended.result.error, appended.result.base_offset, appended.is_visible) == (0, 0, True)


def test_a_resigned_leader_refuses_appends(tmp_path: Path) -> None:
    partition = leader(tmp_path)
    partition.resign()
    assert send(partition, leader_epoch=-1).result.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_flush_makes_an_append_visible(tmp_path: Path) -> None:
    partition = leader(tmp_path, flush_messages=1)
    appended = send(partition)
    assert (appended.is_visible, appended.required_offset) == (False, 1)
    job = partition.log.begin_flush()
    job.run()
    partition.log.finish_flush(job)
    assert partition.advance_high_watermark()
    assert partition.log.high_watermark == appended.required_offset
    partition.validate_state()


def test_a_new_leader_reports_no_end_below_one_that_readers_may_have_seen(tmp_path: Path) -> None:
    """KIP-207. What the high watermark has passed is known all the while."""
    partition = leader(tmp_path, flush_messages=1)

    def flush() -> None:
        job = partition.log.begin_flush()
        job.run()
        partition.log.finish_flush(job)
        partition.advance_high_watermark()

    def find(timestamp: int) -> int:
        return partition.find_offset(OffsetQuery(ORDERS, timestamp), IsolationLevel.READ_UNCOMMITTED).offset

    send(partition)
    flush()
    send(partition, records=bytes(batch(b"w", timestamp=NOW_MS + 1000)))
    partition.become_leader(EPOCH + 1)
    assert find(NOW_MS) == 0
    for timestamp in (OffsetSpec.LATEST, NOW_MS + 1000, NOW_MS + 2000):
        with pytest.raises(RaykaError) as refused:
            find(timestamp)
        assert refused.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    flush()
    assert [find(each) for each in (OffsetSpec.LATEST, NOW_MS + 1000, NOW_MS + 2000)] == [2, 1, -1]


def test_a_duplicate_brings_readers_nothing(tmp_path: Path) -> None:
    partition = leader(tmp_path)
    data = bytes(batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0))
    assert send(partition, records=data).size == len(data)
    again = send(partition, records=data)
    assert (again.result.base_offset, again.is_visible, again.size) == (0, True, 0)


def test_acks_all_needs_min_insync_replicas(tmp_path: Path) -> None:
    partition = leader(tmp_path, min_insync_replicas=2)
    partition.become_leader(EPOCH, replica_count=3, in_sync_count=1)
    assert send(partition).result.error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.log.log_end_offset == 0
    assert send(partition, params=ACKS_LEADER).result.error == ErrorCode.NONE
    partition.become_leader(EPOCH, replica_count=3, in_sync_count=2)
    assert send(partition).result.error == ErrorCode.NONE


def test_min_insync_replicas_asks_for_no_more_than_the_partition_has(tmp_path: Path) -> None:
    """As Kafka 4.4: one replica and min.insync.replicas=2 take acks=all."""
    assert send(leader(tmp_path, min_insync_replicas=2)).result.error == ErrorCode.NONE


def test_an_older_epoch_changes_nothing(tmp_path: Path) -> None:
    partition = leader(tmp_path, min_insync_replicas=2)
    partition.become_leader(EPOCH, replica_count=2, in_sync_count=2)
    partition.become_leader(EPOCH - 1, replica_count=2, in_sync_count=1)
    assert partition.leader_epoch == EPOCH
    assert send(partition).result.error == ErrorCode.NONE


def test_clients_cannot_write_to_internal_topics_or_delete_from_them(tmp_path: Path) -> None:
    partition = leader(tmp_path, is_internal=True)
    assert send(partition).result.error == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert partition.append_as_coordinator(memoryview(batch(b"v")), NOW_MS).result.base_offset == 0
    admin = AppendParams(-1, 1000, internal_topics_allowed=True)
    assert send(partition, params=admin).result.error == ErrorCode.NONE
    with pytest.raises(RaykaError) as refused:
        partition.delete_records(-1)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert partition.log.log_start_offset == 0


@pytest.mark.parametrize(
    ("policy", "error"), [(("compact",), ErrorCode.POLICY_VIOLATION), (("compact", "delete"), ErrorCode.NONE)]
)
def test_records_are_deleted_only_where_the_cleanup_policy_allows_it(
    tmp_path: Path, policy: tuple[str, ...], error: ErrorCode
) -> None:
    partition = leader(tmp_path, cleanup_policy=policy)
    send(partition)
    replicas = Replicas()
    replicas.add(partition)
    (result,) = replicas.delete_records([(ORDERS, 1)])
    assert result.error == error
    assert partition.log.log_start_offset == (0 if error else 1)


def test_a_transactional_batch_opens_no_transaction(tmp_path: Path) -> None:
    partition = leader(tmp_path)
    transactional = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert send(partition, records=bytes(transactional)).result.error == ErrorCode.INVALID_TXN_STATE
    send(partition)
    assert partition.log.last_stable_offset == partition.log.high_watermark == 1


def test_a_rejected_batch_names_its_bad_records(tmp_path: Path) -> None:
    partition = leader(tmp_path, cleanup_policy=("compact",))
    keyless = build_batch([Record(0, NOW_MS, None if index in (1, 3) else b"k", b"v") for index in range(5)])
    result = send(partition, records=bytes(keyless)).result
    message = "Compacted topic cannot accept message without key in topic partition orders-0"
    assert (result.error, result.log_start_offset) == (ErrorCode.INVALID_RECORD, 0)
    assert result.record_errors == (RecordError(1, message), RecordError(3, message))
    assert result.error_message == (
        "One or more records have been rejected due to 2 record errors in total, and only showing the first three"
        f" errors at most: [RecordError(batchIndex=1, message='{message}'),"
        f" RecordError(batchIndex=3, message='{message}')]"
    )
