"""The offset of a batch keeps its ranges in Spark's checkpoint."""

from __future__ import annotations

import json
import uuid

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.spark.source.stream_offsets import from_offset, keep_seen, next_ranges, raise_or_log, to_offset

ID = uuid.UUID(int=7)


def test_ranges_come_back_from_json():
    ranges = [OffsetRange("a", 0, 5, 9, ID), OffsetRange("a", 1, 3, 3, ID), OffsetRange("b", 0, 0, 1, uuid.UUID(int=8))]
    assert from_offset(json.loads(json.dumps(to_offset(ranges)))) == ranges


@pytest.mark.parametrize(
    "foreign", [{"clicks": {"0": 23}}, {"clicks": 5}, {"a": {"id": "x", "start": {}, "end": {"0": 1}}}]
)
def test_the_checkpoint_of_another_source_is_refused(foreign):
    with pytest.raises(RaykaError, match="not one of the source rayka") as refused:
        from_offset(foreign)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_topic_that_is_gone_stays_known_if_the_query_names_it():
    """It is none that never existed, and the query may go on without it."""
    last = to_offset([OffsetRange(name, 0, 5, 9, ID) for name in "abc"])
    following = to_offset([OffsetRange("a", 0, 9, 9, ID)])
    kept = keep_seen(following, last, {"a", "b", "d"})
    assert from_offset(kept) == from_offset(following)
    assert set(kept) == {"a", "b"}
    assert keep_seen(following, kept, {"a", "b", "d"}) == kept


def topic(*bounds, topic_id=ID):
    ranges = [OffsetRange("a", number, start, end, topic_id) for number, (start, end) in enumerate(bounds)]
    return {each.topic_partition: each for each in ranges}


def read_to(*offsets):
    return [OffsetRange("a", number, offset, offset, ID) for number, offset in enumerate(offsets)]


def bounds_of(ranges):
    return [(each.partition, each.start_offset, each.end_offset) for each in ranges]


def ends_there(partitions):
    """No transaction is open."""
    return dict.fromkeys(partitions, 0)


def test_a_position_behind_an_open_transaction_stays_where_it_is():
    """The query read uncommitted records before, and reads only committed ones from now on."""
    found, losses = next_ranges(read_to(9, 3), topic((0, 5), (0, 4)), None, lambda each: dict.fromkeys(each, 9))
    assert bounds_of(found) == [(0, 9, 9), (1, 3, 4)]
    assert losses == []


def test_a_batch_starts_where_the_last_one_ended_and_new_partitions_at_their_beginning():
    found, losses = next_ranges(read_to(5, 8), topic((0, 9), (2, 8), (0, 4)), None, ends_there)
    assert bounds_of(found) == [(0, 5, 9), (1, 8, 8), (2, 0, 4)]
    assert losses == []


def test_a_limit_is_divided_by_what_each_partition_has():
    found, _ = next_ranges(read_to(0, 0), topic((0, 300), (0, 100)), 40, ends_there)
    assert bounds_of(found) == [(0, 0, 30), (1, 0, 10)]


@pytest.mark.parametrize(
    ("bounds", "code", "left", "is_certain"),
    [
        (topic((7, 9)), ErrorCode.OFFSET_OUT_OF_RANGE, [(0, 7, 9)], True),
        (topic((0, 3), topic_id=uuid.UUID(int=8)), ErrorCode.UNKNOWN_TOPIC_ID, [(0, 0, 3)], False),
        ({}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [], False),
        (topic((0, 3)), ErrorCode.OFFSET_OUT_OF_RANGE, [(0, 3, 3)], False),
        (topic((0, 9), (2, 4)), ErrorCode.OFFSET_OUT_OF_RANGE, [(0, 5, 9), (1, 2, 4)], True),
    ],
    ids=["retention", "recreated", "deleted", "truncated", "start of a new partition"],
)
def test_lost_records_fail_the_query_unless_that_is_allowed(bounds, code, left, is_certain):
    found, losses = next_ranges(read_to(5), bounds, None, ends_there)
    assert bounds_of(found) == left
    assert [loss.is_certain for loss in losses] == [is_certain]
    with pytest.raises(RaykaError, match="Set failOnDataLoss=false") as failed:
        raise_or_log(losses, True)
    assert failed.value.code is code
    raise_or_log(losses, False)
