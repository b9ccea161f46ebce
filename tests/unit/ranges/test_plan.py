"""Planning ranges of offsets, and cutting them into splits."""

from __future__ import annotations

import datetime
import uuid

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange, Timestamp, plan_ranges, split
from tests.unit.ranges.topic import Topic, bounds, ranges

FLOAT_MS = 1_074_898_927_045


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


def test_places_become_offsets():
    topic = Topic((3, 100), (0, 50))
    topic.times = {1_000: (40, -1)}
    at = datetime.datetime.fromtimestamp(1, datetime.UTC)

    def plan(**positions):
        return bounds(plan_ranges(topic.topic_ids(), topic.list_offsets, **positions))

    assert plan() == [(0, 3, 100), (1, 0, 50)]
    assert plan(starting="latest") == [(0, 100, 100), (1, 50, 50)]
    assert plan(starting=at) == plan(starting=Timestamp(1_000)) == [(0, 40, 100), (1, 50, 50)]
    assert plan(starting={"t": {0: 7, 1: "latest"}}, ending={"t": {0: 9, 1: 10}}) == [(0, 7, 9), (1, 50, 50)]


def test_a_time_before_1970_is_before_every_record():
    """Such a number of milliseconds would stand for the end of the log, its beginning, or nothing at all."""
    topic = Topic((3, 100), (0, 50))
    for time in (Timestamp(-1), Timestamp(-2, required=True), datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC)):
        assert bounds(plan_ranges(topic.topic_ids(), topic.list_offsets, time)) == [(0, 3, 100), (1, 0, 50)]
        assert bounds(plan_ranges(topic.topic_ids(), topic.list_offsets, ending=time)) == [(0, 3, 3), (1, 0, 0)]


def test_a_time_is_exact_to_the_millisecond():
    """As a float, this one is a little later, and the record of that millisecond was left out."""
    topic = Topic((0, 50))
    topic.times = {FLOAT_MS: (40,), FLOAT_MS + 1: (41,)}
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=FLOAT_MS)
    later = at + datetime.timedelta(microseconds=1)
    for time, start in ((at, 40), (later, 41)):
        assert bounds(plan_ranges(topic.topic_ids(), topic.list_offsets, time)) == [(0, start, 50)]


@pytest.mark.parametrize(
    ("starting", "code", "message"),
    [
        ({"t": {0: 2}}, ErrorCode.OFFSET_OUT_OF_RANGE, "t-0 has no offset 2: it has 3 to 100"),
        ({"t": {0: 5, 3: 5}}, ErrorCode.INVALID_REQUEST, "a position is given for t-3, but only t-0 are read"),
        ({"t": {0: 5}, "u": {1: 5}}, ErrorCode.INVALID_REQUEST, "a position is given for u-1"),
        (datetime.datetime(2026, 1, 1), ErrorCode.INVALID_REQUEST, "has no time zone"),
        ({"t": {}}, ErrorCode.INVALID_REQUEST, "no position is given for t-0"),
        (5, ErrorCode.INVALID_REQUEST, "an offset needs its partition"),
        ("soon", ErrorCode.INVALID_REQUEST, "'soon' is not valid"),
    ],
)
def test_positions_that_do_not_fit_are_refused(starting, code, message):
    topic = Topic((3, 100))
    with pytest.raises(RaykaError, match=message) as refused:
        plan_ranges(topic.topic_ids(), topic.list_offsets, starting)
    assert refused.value.code is code


def test_a_range_survives_json():
    whole = OffsetRange("t", 1, 5, 7, uuid.uuid4())
    assert OffsetRange.from_json(whole.to_json()) == whole
    assert OffsetRange.from_json(["t", 1, 5, 7]) == OffsetRange("t", 1, 5, 7)


def test_a_required_time_needs_a_record_at_it_or_later():
    topic = Topic((3, 100), (0, 50))
    topic.times = {1_000: (40, -1)}
    with pytest.raises(RaykaError, match="t-1 has no record with timestamp 1000 or a later one") as refused:
        plan_ranges(topic.topic_ids(), topic.list_offsets, Timestamp(1_000, required=True))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_the_nearest_offset_is_taken_where_that_is_allowed():
    topic = Topic((3, 100))
    planned = plan_ranges(topic.topic_ids(), topic.list_offsets, {"t": {0: 1}}, {"t": {0: 200}}, nearest=True)
    assert bounds(planned) == [(0, 3, 100)]
