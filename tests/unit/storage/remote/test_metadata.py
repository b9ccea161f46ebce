"""What is known of segments in the remote store: Kafka's record formats, states, retention."""

from __future__ import annotations

import uuid
from itertools import product

import pytest

from rayka.config import LogConfig
from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.remote.metadata_records import decode, encode
from rayka.storage.remote.partitioner import metadata_partition
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.remote.retention import LocalState, expired
from rayka.storage.remote.segment_metadata import (
    SEGMENT_TRANSITIONS,
    RemoteLogMetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from rayka.types import TopicIdPartition, TopicPartition

PARTITION = TopicIdPartition(uuid.UUID("01020304-0506-0708-1112-131415161718"), TopicPartition("orders", 3))
SEGMENT_ID = uuid.UUID("21222324-2526-2728-3132-333435363738")
EPOCHS = (EpochEntry(0, 0), EpochEntry(2, 80))
STARTED = RemoteLogSegmentMetadata(PARTITION, SEGMENT_ID, 0, 100, 7, 1_700_000_000_000, 1_700_000_001_000, EPOCHS, 1024)
FINISHED = RemoteLogSegmentMetadataUpdate(
    PARTITION, SEGMENT_ID, 7, 1_700_000_002_000, RemoteLogSegmentState.COPY_SEGMENT_FINISHED
)
MARKED = RemotePartitionDeleteMetadata(
    PARTITION, 7, 1_700_000_003_000, RemotePartitionDeleteState.DELETE_PARTITION_MARKED
)

# What the serializer of Apache Kafka 4.4.0 (RemoteLogMetadataSerde) writes for the same events.
BY_KAFKA = {
    "started": (
        STARTED,
        "010000076f726465727301020304050607081112131415161718000000030021222324252627283132333435363738000000000000000000"
        "0000000000000064000000070000018bcfe568000000018bcfe56be80300000000000000000000000000000000020000000000000050"
        "0000000400000000",
    ),
    "custom metadata, no transaction index": (
        STARTED._replace(max_timestamp=-1, custom_metadata=b"\1\2", is_transaction_index_empty=True),
        "010000076f726465727301020304050607081112131415161718000000030021222324252627283132333435363738000000000000000000"
        "000000000000006400000007ffffffffffffffff0000018bcfe56be80300000000000000000000000000000000020000000000000050"
        "00000004000301020001000101",
    ),
    "finished": (
        FINISHED,
        "010100076f72646572730102030405060708111213141516171800000003002122232425262728313233343536373800000000070000"
        "018bcfe56fd0000100",
    ),
    "partition marked": (
        MARKED,
        "010200076f7264657273010203040506070811121314151617180000000300000000070000018bcfe573b80000",
    ),
}


@pytest.mark.parametrize("name", BY_KAFKA)
def test_records_are_those_of_kafka(name: str) -> None:
    event, text = BY_KAFKA[name]

    assert encode(event).hex() == text
    assert decode(bytes.fromhex(text)) == event


@pytest.mark.parametrize("name", BY_KAFKA)
def test_a_record_that_is_cut_is_malformed(name: str) -> None:
    data = bytes.fromhex(BY_KAFKA[name][1])

    for size in range(len(data)):
        with pytest.raises(ValueError, match="ends early"):
            decode(data[:size])


def test_a_number_without_an_end_is_malformed() -> None:
    """Each of its bytes would make a larger number than the one before: a megabyte would take minutes."""
    with pytest.raises(ValueError, match="longer than 5 bytes"):
        decode(b"\xff" * (1 << 10))


def test_tags_of_version_1_and_records_of_other_types_are_passed_over() -> None:
    with_leader_epoch = encode(FINISHED)[:2] + b"\1" + encode(FINISHED)[3:-1] + b"\1\0\4\0\0\0\5"

    assert decode(with_leader_epoch) == FINISHED
    assert decode(bytes.fromhex("0103002122")) is None
    with pytest.raises(ValueError, match="not known"):
        decode(bytes.fromhex("02000021"))


def _segment(start: int, end: int, epoch: int = 0, **fields: object) -> list[RemoteLogMetadataEvent]:
    started = STARTED._replace(
        segment_id=uuid.uuid4(), start_offset=start, end_offset=end, leader_epochs=(EpochEntry(epoch, start),), **fields
    )
    return [started, FINISHED._replace(segment_id=started.segment_id)]


def _partition(*segments: list[RemoteLogMetadataEvent]) -> RemotePartition:
    partition = RemotePartition(PARTITION)
    for event in (event for events in segments for event in events):
        partition.replay(event)
    partition.validate_state()
    return partition


@pytest.mark.parametrize(("before", "after"), list(product(RemoteLogSegmentState, repeat=2)))
def test_a_segment_takes_only_kafkas_transitions(before: RemoteLogSegmentState, after: RemoteLogSegmentState) -> None:
    steps = {
        RemoteLogSegmentState.COPY_SEGMENT_STARTED: [],
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED: [1],
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED: [1, 2],
        RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: [1, 2, 3],
    }[before]
    updates = [FINISHED._replace(state=RemoteLogSegmentState(state)) for state in (*steps, after)]
    partition = _partition([STARTED, *updates])
    expected = after if after in SEGMENT_TRANSITIONS[before] else before

    found = partition.get(SEGMENT_ID)

    if expected is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
        assert found is None
    else:
        assert found is not None
        assert found.state is expected


def test_the_segment_of_an_epoch_and_an_offset_is_found() -> None:
    partition = _partition([STARTED, FINISHED], _segment(101, 200, 2), _segment(201, 300, 3))
    epochs = [EpochEntry(0, 0), EpochEntry(2, 80), EpochEntry(3, 201)]

    found = {
        (epoch, offset): segment.start_offset
        for epoch, offset in product((0, 1, 2, 3), (0, 79, 80, 100, 101, 200, 201, 300, 301))
        if (segment := partition.find(epochs, epoch, offset)) is not None
    }

    assert found == {
        (0, 0): 0, (0, 79): 0, (2, 80): 0, (2, 100): 0, (2, 101): 101, (2, 200): 101, (3, 201): 201, (3, 300): 201,
    }  # fmt: skip
    assert partition.highest_offset(epochs, 0) == 300
    assert partition.highest_offset((), 0) == -1


def test_only_complete_segments_of_the_log_itself_count_as_copied() -> None:
    of_another_leader = _segment(101, 220, 2)
    unfinished = _segment(201, 300, 3)[:1]
    partition = _partition([STARTED, FINISHED], of_another_leader, _segment(101, 200, 2), unfinished)
    epochs = [EpochEntry(0, 0), EpochEntry(2, 80), EpochEntry(3, 201)]

    assert [segment.end_offset for segment in partition.lineage(epochs)] == [100, 200]


def test_the_partition_is_the_one_that_kafka_takes() -> None:
    """As `RemoteLogMetadataTopicPartitioner` of Apache Kafka 4.4.0 answers."""
    other = TopicIdPartition(uuid.UUID("f1020304-0506-0708-9112-1314151617f8"), TopicPartition("x", 0))

    assert (metadata_partition(PARTITION, 50), metadata_partition(other, 50)) == (34, 27)


def test_a_log_that_has_forgotten_the_start_of_an_epoch_still_has_its_segments() -> None:
    partition = _partition([STARTED, FINISHED])

    assert partition.highest_offset([EpochEntry(2, 90), EpochEntry(5, 200)], 90) == 100


NOW_MS = 1_700_000_000_000
EPOCH_0 = [EpochEntry(0, 0)]


def _starts(segments: tuple[RemoteLogSegmentMetadata, ...]) -> list[int]:
    return [segment.start_offset for segment in segments]


@pytest.mark.parametrize(
    ("config", "log_start_offset", "gone"),
    [
        (LogConfig(retention_ms=-1), 0, []),
        (LogConfig(retention_ms=2_500), 0, [0]),
        (LogConfig(retention_ms=0), 0, [0, 100, 200]),
        (LogConfig(retention_ms=-1, retention_bytes=3_000), 0, [0]),
        (LogConfig(retention_ms=-1, retention_bytes=3_500), 0, []),
        (LogConfig(retention_ms=-1), 200, [0, 100]),
        (LogConfig(retention_ms=-1), 150, [0]),
    ],
)
def test_retention_takes_the_oldest_segments(config: LogConfig, log_start_offset: int, gone: list[int]) -> None:
    partition = _partition(
        *(_segment(start, start + 99, size=1_000, max_timestamp=NOW_MS - 2_000 + start * 10) for start in (0, 100, 200))
    )
    local = LocalState(EPOCH_0, log_start_offset, 400, local_bytes=1_000)

    found = expired(partition, config, NOW_MS + 1_000, local)

    assert _starts(found.segments) == gone
    assert found.log_start_offset == max([log_start_offset, *(start + 100 for start in gone)])


def test_what_a_crash_has_left_is_deleted() -> None:
    dangling = _segment(100, 199)[:1]
    half_deleted = _segment(200, 299)
    half_deleted.append(half_deleted[1]._replace(state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
    second_copy = _segment(0, 99)
    partition = _partition(_segment(0, 99), dangling, half_deleted, second_copy)
    local = LocalState(EPOCH_0, 0, 400, 0)

    found = expired(partition, LogConfig(retention_ms=-1), NOW_MS, local)
    without_running = expired(partition, LogConfig(retention_ms=-1), NOW_MS, local, {dangling[0].segment_id})

    assert _starts(found.segments) == [0, 100, 200]
    assert len(partition.lineage(EPOCH_0)) == 1
    assert _starts(without_running.segments) == [0, 200]
    assert found.log_start_offset == 0


def test_segments_of_epochs_before_the_logs_first_one_are_deleted() -> None:
    partition = _partition(_segment(0, 99, epoch=1))
    epochs = [EpochEntry(4, 0)]

    as_usual = expired(partition, LogConfig(retention_ms=-1), NOW_MS, LocalState(epochs, 0, 400, 0))
    after_a_lost_disk = expired(partition, LogConfig(retention_ms=-1), NOW_MS, LocalState(epochs, 0, 50, 0))

    assert _starts(as_usual.segments) == [0]
    assert _starts(after_a_lost_disk.segments) == []


def test_a_segment_that_is_to_be_deleted_is_no_copy_even_if_it_is_completed_later() -> None:
    partition = _partition([STARTED])
    partition.mark_for_deletion(partition.segments)
    partition.replay(FINISHED)

    assert partition.highest_offset(EPOCHS, 0) == -1
    assert partition.lineage(EPOCHS) == ()
    local = LocalState(EPOCHS, 0, 500, 0)
    assert expired(partition, LogConfig(retention_ms=-1), 0, local).segments == partition.segments

    partition.unmark()
    assert partition.highest_offset(EPOCHS, 0) == 100


def test_only_what_is_copied_without_a_gap_counts_as_copied() -> None:
    partition = _partition([STARTED, FINISHED], _segment(201, 300, 2))

    assert partition.highest_offset(EPOCHS, 0) == 100
    assert partition.highest_offset(EPOCHS, 150) == 100
    assert partition.highest_offset(EPOCHS, 201) == 300
