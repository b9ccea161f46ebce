"""What a bounded read reads: a range of offsets for each partition, cut into the requested number of splits.

A start or end position is `"earliest"`, `"latest"`, a point in time (an aware `datetime`, or milliseconds since the
epoch as `Timestamp`), or a mapping with a position for each partition: `{topic: {partition: offset or position}}`. The
offsets are looked up once, when the ranges are planned: a read that is repeated reads the same records.
"""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeAlias

from rayka.errors import ErrorCode, RaykaError
from rayka.types import OffsetSpec, TopicPartition

NO_TOPIC_ID = uuid.UUID(int=0)
"""Stands for any topic of the name."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time, in ms since the epoch. `required`: each partition must have a record at that time or later."""

    ms: int
    required: bool = False


Position: TypeAlias = str | int | datetime | Timestamp
Positions: TypeAlias = Position | Mapping[str, Mapping[int, Position]]

TopicIds: TypeAlias = Mapping[TopicPartition, uuid.UUID]
"""Partitions, each with the id of its topic."""
ListOffsets: TypeAlias = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]
"""Looks up the offset of a timestamp (ms) or `OffsetSpec` in each partition; -1 for a time after the last record."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition from `start_offset` up to `end_offset`, in the topic with this id."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    topic_id: uuid.UUID = NO_TOPIC_ID

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return self.end_offset - self.start_offset

    def __str__(self) -> str:
        return f"{self.topic_partition} from offset {self.start_offset} to {self.end_offset}"

    def between(self, start_offset: int, end_offset: int) -> OffsetRange:
        """Other offsets of the same partition."""
        return OffsetRange(self.topic, self.partition, start_offset, end_offset, self.topic_id)

    def is_same_topic(self, other: OffsetRange) -> bool:
        """Whether both are of one topic, not of two that had the same name one after the other."""
        return self.topic_id == other.topic_id or NO_TOPIC_ID in (self.topic_id, other.topic_id)

    def to_json(self) -> list[Any]:
        """Plain values, for `from_json`."""
        return [*self.topic_partition, self.start_offset, self.end_offset, str(self.topic_id)]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> Self:
        """What `to_json` gave; without a topic id if it was written before ids were. Raises ValueError, TypeError."""
        topic, partition, start_offset, end_offset, *topic_id = row
        return cls(topic, partition, start_offset, end_offset, *map(uuid.UUID, topic_id))


def plan_ranges(
    topic_ids: TopicIds,
    list_offsets: ListOffsets,
    starting: Positions = "earliest",
    ending: Positions = "latest",
    *,
    nearest: bool = False,
) -> list[OffsetRange]:
    """One range for each partition, empty ones included, with offsets that do not change any more.

    A time after the last record means the end. Raises INVALID_REQUEST for positions that do not fit the partitions, and
    OFFSET_OUT_OF_RANGE for offsets that the log does not have; with `nearest` the nearest that it has is taken.
    """
    bounds = log_bounds(topic_ids, list_offsets)
    starts = _resolve(bounds, starting, list_offsets, nearest)
    ends = _resolve(bounds, ending, list_offsets, nearest)
    return [bound.between(starts[each], max(starts[each], ends[each])) for each, bound in bounds.items()]


def log_bounds(topic_ids: TopicIds, list_offsets: ListOffsets) -> dict[TopicPartition, OffsetRange]:
    """All offsets that each partition has now."""
    earliest = list_offsets(dict.fromkeys(topic_ids, int(OffsetSpec.EARLIEST)))
    latest = list_offsets(dict.fromkeys(topic_ids, int(OffsetSpec.LATEST)))
    return {
        each: OffsetRange(*each, earliest[each], max(earliest[each], latest[each]), topic_id)
        for each, topic_id in topic_ids.items()
    }


def split(ranges: Iterable[OffsetRange], min_splits: int = 1, max_records: int | None = None) -> list[OffsetRange]:
    """The ranges that are not empty, cut evenly into at least `min_splits` parts of at most `max_records` offsets."""
    wanted = [each for each in ranges if len(each)]
    total = sum(map(len, wanted))
    size = math.ceil(total / max(min_splits, 1)) if min_splits > len(wanted) else total
    size = max(1, min(size, max_records or size))
    return [part for each in wanted for part in _cut(each, math.ceil(len(each) / size))]


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    bounds = [whole.start_offset + len(whole) * index // parts for index in range(parts + 1)]
    return [whole.between(start, end) for start, end in itertools.pairwise(bounds)]


def _resolve(
    bounds: Mapping[TopicPartition, OffsetRange], positions: Positions, list_offsets: ListOffsets, nearest: bool
) -> dict[TopicPartition, int]:
    _require_known(bounds, positions)
    offsets: dict[TopicPartition, int] = {}
    times: dict[TopicPartition, Timestamp] = {}
    for each, bound in bounds.items():
        match _position(positions, each):
            case "earliest" | OffsetSpec.EARLIEST:
                offsets[each] = bound.start_offset
            case "latest" | OffsetSpec.LATEST:
                offsets[each] = bound.end_offset
            case datetime() as time if time.utcoffset() is None:
                message = f"{time!r} has no time zone: use datetime.datetime(..., tzinfo=datetime.UTC) or a Timestamp"
                raise RaykaError(ErrorCode.INVALID_REQUEST, message)
            case datetime() as time:
                times[each] = Timestamp(-(-since_epoch(time) // MILLISECOND))
            case Timestamp() as time:
                times[each] = time
            case int() as offset if bound.start_offset <= offset <= bound.end_offset:
                offsets[each] = offset
            case int() as offset if nearest and offset >= 0:
                offsets[each] = min(max(offset, bound.start_offset), bound.end_offset)
            case int() as offset:
                message = f"{each} has no offset {offset}: it has {bound.start_offset} to {bound.end_offset}"
                raise RaykaError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
            case unknown:
                message = f'{unknown!r} is not valid: use "earliest", "latest", a datetime, a Timestamp or an offset'
                raise RaykaError(ErrorCode.INVALID_REQUEST, message)
    return offsets | _offsets_at(bounds, times, list_offsets)


def _offsets_at(
    bounds: Mapping[TopicPartition, OffsetRange], times: Mapping[TopicPartition, Timestamp], list_offsets: ListOffsets
) -> dict[TopicPartition, int]:
    asked = {each: time.ms if time.ms >= 0 else OffsetSpec.EARLIEST for each, time in times.items()}
    offsets = dict(list_offsets(asked)) if asked else {}
    for each, offset in offsets.items():
        if offset < 0 and times[each].required:
            message = f"{each} has no record with timestamp {times[each].ms} or a later one"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)
        offsets[each] = bounds[each].end_offset if offset < 0 else offset
    return offsets


def since_epoch(time: datetime) -> timedelta:
    """Exactly; as a float of milliseconds it would be rounded, in some years to a later one."""
    return time.astimezone(UTC) - _EPOCH


def _require_known(bounds: Mapping[TopicPartition, OffsetRange], positions: Positions) -> None:
    """Raises INVALID_REQUEST for the position of a partition that is not read: its name may be wrong."""
    if isinstance(positions, Mapping):
        given = [TopicPartition(topic, partition) for topic, each in positions.items() for partition in each]
        unknown = [str(each) for each in given if each not in bounds]
        if unknown:
            message = f"a position is given for {', '.join(unknown)}, but only {', '.join(map(str, bounds))} are read"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)


def _position(positions: Positions, partition: TopicPartition) -> Any:
    if isinstance(positions, Mapping):
        try:
            return positions[partition.topic][partition.partition]
        except KeyError:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"no position is given for {partition}") from None
    if isinstance(positions, int):
        raise RaykaError(ErrorCode.INVALID_REQUEST, "an offset needs its partition: {topic: {partition: offset}}")
    return positions
