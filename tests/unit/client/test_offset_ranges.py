"""Cutting ranges of offsets into splits and batches, and remembering how far a reader has come."""

from __future__ import annotations

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import EndlessRead, MicroBatches, behind
from rayka.ranges.checkpoint import Checkpoint, PlannedBatch
from rayka.ranges.plan import OffsetRange, split
from rayka.types import TopicPartition


def ranges(*bounds):
    return [OffsetRange("t", partition, *each) for partition, each in enumerate(bounds)]


def bounds(parts):
    return [(part.partition, part.start_offset, part.end_offset) for part in parts]


def test_a_range_is_a_split_unless_more_are_wanted():
    assert bounds(split(ranges((0, 10), (5, 5), (3, 4)))) == [(0, 0, 10), (2, 3, 4)]


@pytest.mark.parametrize(("min_splits", "max_records"), [(1, 3), (7, None), (100, None), (3, 1000), (1, 1)])
def test_splits_hold_every_offset_once_in_order(min_splits, max_records):
    whole = ranges((0, 10), (100, 140), (7, 8))
    parts = split(whole, min_splits, max_records)
    assert len(parts) >= min(min_splits, 51)
    assert max_records is None or max(map(len, parts)) <= max_records
    assert all(len(part) for part in parts)
    offsets = [(part.partition, offset) for part in parts for offset in range(part.start_offset, part.end_offset)]
    assert offsets == [
        (each.partition, offset) for each in whole for offset in range(each.start_offset, each.end_offset)
    ]


def ends(*bounds):
    return {TopicPartition("t", each.partition): each for each in ranges(*bounds)}


def read(max_offsets=None):
    return EndlessRead.of("t", None, "earliest", True, max_offsets)


def test_batches_are_bounded_and_shared_by_what_each_partition_has(tmp_path):
    with MicroBatches(None, read(10), tmp_path) as batches:
        first = batches.next(ends((0, 30), (0, 10)))
        assert bounds(first.ranges) == [(0, 0, 8), (1, 0, 2)]
        assert behind(first, ends((0, 30), (0, 10))) == 30
        assert batches.next(ends((0, 30), (0, 10))) is first
        batches.commit(first)
        assert bounds(batches.next(ends((0, 30), (0, 10))).ranges) == [(0, 8, 16), (1, 2, 4)]


def test_a_planned_batch_survives_and_a_new_partition_begins_at_its_start(tmp_path):
    with MicroBatches(None, read(), tmp_path) as batches:
        planned = batches.next(ends((0, 3)))
    with MicroBatches(None, read(), tmp_path) as batches:
        assert batches.next(ends((0, 9))) == planned
        batches.commit(planned)
        assert bounds(batches.next(ends((0, 9), (4, 6))).ranges) == [(0, 3, 9), (1, 4, 6)]


def test_nothing_new_is_no_batch(tmp_path):
    with MicroBatches(None, read(), tmp_path) as batches:
        assert batches.next(ends((5, 5))) is None
        batches.commit(batches.next(ends((5, 6))))
        assert batches.next(ends((5, 6))) is None


def test_a_checkpoint_keeps_the_last_batches_and_has_one_owner(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    for batch_id in range(150):
        batch = PlannedBatch(batch_id, tuple(ranges((batch_id, batch_id + 1))))
        checkpoint.plan(batch)
        assert not checkpoint.is_done(batch)
        checkpoint.commit(batch)
    assert len(list((tmp_path / "offsets").iterdir())) == 100
    with pytest.raises(RaykaError) as refused:
        Checkpoint(tmp_path)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    checkpoint.close()
    assert Checkpoint(tmp_path).last() == batch


@pytest.mark.parametrize("text", ["", "garbage", '{"version": 2}\n', '{"version": 1}\n[1, 2]\n'])
def test_a_broken_checkpoint_is_named(tmp_path, text):
    Checkpoint(tmp_path).close()
    (tmp_path / "offsets" / "3").write_text(text)
    with pytest.raises(RaykaError, match="offsets/3") as refused:
        Checkpoint(tmp_path).last()
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
