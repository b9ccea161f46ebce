"""Conditions on a record's topic, partition, offset and timestamp, by which less is read.

What the conditions leave out of the ranges is certain not to match. Offsets in a list and times leave in more than
what matches: timestamps need not rise with the offsets, so a time bounds a range at its beginning only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import MILLISECOND, ListOffsets, OffsetRange, since_epoch

_OPERATORS = ("=", "in", ">", ">=", "<", "<=")
_TYPES: Mapping[str, type] = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: bool(one == other),
    "in": lambda one, others: one in others,
    ">": lambda one, other: bool(one > other),
    ">=": lambda one, other: bool(one >= other),
    "<": lambda one, other: bool(one < other),
    "<=": lambda one, other: bool(one <= other),
}


class Condition(NamedTuple):
    """`column operator value`, such as `offset >= 500`. Operators: = in > >= < <=; after `in` comes a sequence."""

    column: str
    operator: str
    value: Any

    @property
    def is_exact(self) -> bool:
        """Whether `narrow` leaves nothing that does not match."""
        return self.column != "timestamp" and (self.column, self.operator) != ("offset", "in")

    def require_valid(self) -> None:
        """Raise INVALID_REQUEST for another column or operator, or for a value of another type."""
        if self.column not in _TYPES or self.operator not in _OPERATORS:
            message = f"{self} is not a condition: use {', '.join(_TYPES)} with {' '.join(_OPERATORS)}"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)
        if self.operator == "in" and (isinstance(self.value, str) or not isinstance(self.value, Collection)):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"{self} is not a condition: after in comes a list")
        for value in self.value if self.operator == "in" else [self.value]:
            wanted = _TYPES[self.column]
            if not isinstance(value, wanted) or isinstance(value, bool) or not getattr(value, "tzinfo", True):
                name = "datetime with a time zone" if wanted is datetime else wanted.__name__
                message = f"{self} is not a condition: {value!r} is not of type {name}"
                raise RaykaError(ErrorCode.INVALID_REQUEST, message)

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {self.value!r}"


def narrow(
    ranges: Iterable[OffsetRange], conditions: Sequence[Condition], list_offsets: ListOffsets
) -> list[OffsetRange]:
    """The parts of the ranges that may match all conditions. Raises INVALID_REQUEST."""
    left = list(ranges)
    for each in conditions:
        each.require_valid()
        if each.column == "timestamp":
            left = _from_time(left, each, list_offsets)
        else:
            left = [part for one in left if (part := _narrowed(one, each)) is not None]
    return left


def _narrowed(whole: OffsetRange, condition: Condition) -> OffsetRange | None:
    if condition.column == "offset":
        first, end = _offsets(condition)
        start = max(whole.start_offset, first)
        return whole.between(start, max(start, min(whole.end_offset, end)))
    value = whole.topic if condition.column == "topic" else whole.partition
    return whole if _HOLDS[condition.operator](value, condition.value) else None


def _offsets(condition: Condition) -> tuple[int, int]:
    """The first offset that may match, and the one behind the last."""
    values = condition.value if condition.operator == "in" else [condition.value]
    if not values:
        return 0, 0
    low, high, most = min(values), max(values), 2**63 - 1
    bounds = {">": (low + 1, most), ">=": (low, most), "<": (0, high), "<=": (0, high + 1)}
    return bounds.get(condition.operator, (low, high + 1))


def _from_time(ranges: list[OffsetRange], condition: Condition, list_offsets: ListOffsets) -> list[OffsetRange]:
    if condition.operator in ("<", "<=") or (condition.operator == "in" and not condition.value):
        return ranges
    time = min(condition.value) if condition.operator == "in" else condition.value
    time_ms = since_epoch(time) // MILLISECOND
    if time_ms < 0:  # it would stand for another offset, and a record without a time has -1
        return ranges
    first = list_offsets({each.topic_partition: time_ms for each in ranges if len(each)})
    left = []
    for each in ranges:
        offset = first.get(each.topic_partition, each.start_offset)
        start = each.end_offset if offset < 0 else min(max(each.start_offset, offset), each.end_offset)
        left.append(each.between(start, each.end_offset))
    return left
