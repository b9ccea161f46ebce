"""What a bounded read reads: for each partition a range of offsets, cut into as many parts as are wanted.

A place to start or to end is `"earliest"`, `"latest"`, a point in time (an aware `datetime`, or milliseconds since the
epoch as `Timestamp`), or a mapping that gives each partition its own: `{topic: {partition: offset or place}}`.
The offsets are looked up once, when the ranges are planned: whoever reads them again reads the same records.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from rayka.client.cluster import Cluster
from rayka.errors import ErrorCode, RaykaError
from rayka.types import IsolationLevel, OffsetSpec, TopicPartition


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time, ms since the epoch."""

    ms: int


Place: TypeAlias = str | int | datetime | Timestamp
Places: TypeAlias = Place | Mapping[str, Mapping[int, Place]]

_DEFAULT_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition from `start_offset` up to `end_offset`."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Which partition."""
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return self.end_offset - self.start_offset


def find_topics(cluster: Cluster, topics: str | Iterable[str] | None, pattern: str | None) -> list[str]:
    """The topics that are named, or whose whole name matches the pattern.

    Raises UNKNOWN_TOPIC_OR_PARTITION for a name that does not exist, INVALID_REQUEST unless one of both is given.
    """
    if (topics is None) == (pattern is None):
        raise RaykaError(ErrorCode.INVALID_REQUEST, "give either topics or a pattern")
    known = cluster.admin().list_topics()
    if pattern is not None:
        return [name for name in known if re.fullmatch(pattern, name)]
    names = [topics] if isinstance(topics, str) else list(topics or ())
    cluster.admin().describe_topics(names)
    return names


def plan_ranges(
    cluster: Cluster,
    topics: Sequence[str],
    starting: Places = "earliest",
    ending: Places = "latest",
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> list[OffsetRange]:
    """One range for each partition of the topics, empty ones included, with offsets that are fixed from now on.

    A time after the last record means the end. Raises INVALID_REQUEST for places that do not fit the topics and
    OFFSET_OUT_OF_RANGE for offsets that the log does not have.
    """
    partitions = [
        TopicPartition(topic.name, partition.partition)
        for topic in cluster.admin().describe_topics(topics)
        for partition in topic.partitions
    ]
    earliest = _list(cluster, dict.fromkeys(partitions, int(OffsetSpec.EARLIEST)), isolation)
    latest = _list(cluster, dict.fromkeys(partitions, int(OffsetSpec.LATEST)), isolation)
    starts = _resolve(cluster, partitions, starting, earliest, latest, isolation)
    ends = _resolve(cluster, partitions, ending, earliest, latest, isolation)
    return [OffsetRange(*each, starts[each], max(starts[each], ends[each])) for each in partitions]


def split(ranges: Iterable[OffsetRange], min_splits: int = 1, max_records: int | None = None) -> list[OffsetRange]:
    """The ranges that are not empty, cut evenly into at least `min_splits` parts of at most `max_records` offsets."""
    wanted = [each for each in ranges if len(each)]
    total = sum(map(len, wanted))
    size = math.ceil(total / max(min_splits, 1)) if min_splits > len(wanted) else total
    size = max(1, min(size, max_records or size))
    return [part for each in wanted for part in _cut(each, math.ceil(len(each) / size))]


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    bounds = [whole.start_offset + len(whole) * index // parts for index in range(parts + 1)]
    return [OffsetRange(whole.topic, whole.partition, start, end) for start, end in itertools.pairwise(bounds)]


def _resolve(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    places: Places,
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    isolation: IsolationLevel,
) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    times: dict[TopicPartition, int] = {}
    for each in partitions:
        match _place(places, each):
            case "earliest" | OffsetSpec.EARLIEST:
                offsets[each] = earliest[each]
            case "latest" | OffsetSpec.LATEST:
                offsets[each] = latest[each]
            case datetime() as time:
                times[each] = math.ceil(time.timestamp() * 1000)
            case Timestamp(ms):
                times[each] = ms
            case int() as offset if earliest[each] <= offset <= latest[each]:
                offsets[each] = offset
            case int() as offset:
                message = f"offset {offset} of {each}: there are {earliest[each]} to {latest[each]}"
                raise RaykaError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
            case unknown:
                raise RaykaError(ErrorCode.INVALID_REQUEST, f"{unknown!r} is no place in a topic")
    for each, offset in _list(cluster, times, isolation).items():
        offsets[each] = latest[each] if offset < 0 else offset
    return offsets


def _place(places: Places, partition: TopicPartition) -> Any:
    if isinstance(places, Mapping):
        try:
            return places[partition.topic][partition.partition]
        except KeyError:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"no place is given for {partition}") from None
    if isinstance(places, int):
        raise RaykaError(ErrorCode.INVALID_REQUEST, "an offset needs its partition: {topic: {partition: offset}}")
    return places


def _list(
    cluster: Cluster, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, int]:
    if not timestamps:
        return {}
    found = cluster.admin().list_offsets(dict(timestamps.items()), isolation=isolation, timeout_ms=_DEFAULT_TIMEOUT_MS)
    return {partition: answer.offset for partition, answer in found.items()}
