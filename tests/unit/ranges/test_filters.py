"""Conditions on topic, partition, offset and timestamp narrow what is read, and never leave out what matches."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.filters import Condition, narrow
from rayka.ranges.plan import OffsetRange
from rayka.types import TopicPartition
from tests.support.scale import examples

PARTITIONS, RECORDS = 3, 8
PLACES = list(itertools.product(range(PARTITIONS), range(RECORDS)))


def at(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def matches(record, condition):
    value, wanted = record[condition.column], condition.value
    return {
        "=": lambda: value == wanted,
        "in": lambda: value in wanted,
        ">": lambda: value > wanted,
        ">=": lambda: value >= wanted,
        "<": lambda: value < wanted,
        "<=": lambda: value <= wanted,
    }[condition.operator]()


numbers = {
    "topic": st.sampled_from(["t", "u"]),
    "partition": st.integers(-1, PARTITIONS),
    "offset": st.integers(-1, RECORDS + 1),
    "timestamp": st.integers(-1500, 20).map(at),
}


@st.composite
def conditions(draw):
    column, operator = draw(st.sampled_from(list(numbers))), draw(st.sampled_from(["=", "in", ">", ">=", "<", "<="]))
    value = draw(st.lists(numbers[column], max_size=3) if operator == "in" else numbers[column])
    return Condition(column, operator, value)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(conditions(), max_size=3), st.lists(st.integers(-1, 15), min_size=24, max_size=24))
def test_all_that_matches_is_read_and_exact_conditions_leave_nothing_else(wanted, times):
    times = dict(zip(PLACES, times, strict=True))
    records = [{"topic": "t", "partition": each[0], "offset": each[1], "timestamp": at(times[each])} for each in PLACES]

    def list_offsets(asked):
        def first(partition, ms):
            assert ms >= 0, "a time before 1970 would mean the earliest or the latest offset"
            return next((offset for offset in range(RECORDS) if times[partition, offset] >= ms), -1)

        return {each: first(each.partition, ms) for each, ms in asked.items()}

    whole = [OffsetRange("t", partition, 0, RECORDS) for partition in range(PARTITIONS)]
    left = {
        (each.topic_partition, offset)
        for each in narrow(whole, wanted, list_offsets)
        for offset in range(each.start_offset, each.end_offset)
    }

    def places(conditions):
        found = [each for each in records if all(matches(each, one) for one in conditions)]
        return {(TopicPartition("t", each["partition"]), each["offset"]) for each in found}

    assert places(wanted) <= left <= places([each for each in wanted if each.is_exact])


def test_a_record_without_a_time_is_read_where_the_time_before_1970_that_it_shows_matches():
    """Its timestamp is -1, a millisecond before 1970."""
    whole = [OffsetRange("t", 0, 0, 9)]
    for operator, value in ((">=", at(-1000)), ("=", at(-1)), ("in", [at(-1), at(5)])):
        assert narrow(whole, [Condition("timestamp", operator, value)], lambda asked: dict.fromkeys(asked, 4)) == whole


@pytest.mark.parametrize(
    "condition",
    [
        Condition("value", "=", b"x"),
        Condition("offset", "!=", 5),
        Condition("offset", "=", "5"),
        Condition("partition", "in", [1, True]),
        Condition("partition", "in", 1),
        Condition("partition", "in", iter([0, 1])),
        Condition("topic", "in", "tu"),
        Condition("timestamp", ">", datetime(2026, 1, 1)),
    ],
)
def test_what_is_not_a_condition_is_refused(condition):
    with pytest.raises(RaykaError, match="is not a condition") as refused:
        narrow([OffsetRange("t", 0, 0, 9)], [condition], dict)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
