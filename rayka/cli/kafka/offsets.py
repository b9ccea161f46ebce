"""Places in a topic as people name them: earliest, latest, an offset, the last few records, a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rayka.cli.exits import CliError, Exit
from rayka.cli.text.record_text import parse_time
from rayka.client.kafka.admin import KafkaAdmin
from rayka.client.kafka.cluster import KafkaCluster
from rayka.types import IsolationLevel, OffsetSpec, TopicPartition


class Range(NamedTuple):
    """Offsets from `start` to before `end`."""

    start: int
    end: int


def partitions_of(cluster: KafkaCluster, topic: str, wanted: Sequence[int] = ()) -> list[TopicPartition]:
    """The partitions of a topic, or those that are wanted. Raises UNKNOWN_TOPIC_OR_PARTITION, CliError(NOT_FOUND)."""
    known = [one.partition for one in cluster.metadata([topic]).topics[topic].partitions]
    for number in wanted:
        if number not in known:
            raise CliError(f"{topic} has no partition {number}; it has {len(known)}", Exit.NOT_FOUND)
    return [TopicPartition(topic, number) for number in sorted(wanted or known)]


def log_ranges(
    admin: KafkaAdmin, partitions: Sequence[TopicPartition], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> dict[TopicPartition, Range]:
    """What each partition's log holds."""
    first = admin.list_offsets(partitions, OffsetSpec.EARLIEST)
    last = admin.list_offsets(partitions, OffsetSpec.LATEST, isolation)
    return {at: Range(first[at], last[at]) for at in partitions}


def starting_offsets(admin: KafkaAdmin, logs: Mapping[TopicPartition, Range], where: str) -> dict[TopicPartition, int]:
    """The offset that `where` names in each partition. Raises CliError(USAGE) if it names none."""
    if where == "earliest":
        return {at: log.start for at, log in logs.items()}
    if where == "latest":
        return {at: log.end for at, log in logs.items()}
    if where.isdigit():
        return dict.fromkeys(logs, int(where))
    if where[:1] == "-" and where[1:].isdigit():
        return {at: max(log.start, log.end + int(where)) for at, log in logs.items()}
    found = admin.list_offsets(logs, parse_time(where))
    return {at: log.end if found[at] < 0 else found[at] for at, log in logs.items()}


def outside(offsets: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, Range]) -> Iterable[str]:
    """A sentence for each partition whose log does not hold the offset."""
    for at, offset in offsets.items():
        if offset < logs[at].start:
            yield f"{at} begins at offset {logs[at].start}: the records from {offset} on were deleted"
        elif offset > logs[at].end:
            yield f"{at} ends at offset {logs[at].end}, before {offset}"


def deletable(admin: KafkaAdmin, partitions: Sequence[TopicPartition], before: str) -> dict[TopicPartition, int]:
    """Up to where to delete in each partition. Raises CliError(USAGE) for an offset below 0."""
    if before.startswith("-"):
        raise CliError(f"--before {before!r} is not an offset, `latest` or a time", Exit.USAGE)
    logs = log_ranges(admin, partitions)
    starts = starting_offsets(admin, logs, before)
    return {at: max(start, logs[at].start) for at, start in starts.items()}
