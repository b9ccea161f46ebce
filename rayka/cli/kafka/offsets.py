"""Start positions as users write them: earliest, latest, an offset, the last few records, a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rayka.cli.exits import CliError, Exit
from rayka.cli.text.record_text import parse_time
from rayka.client.kafka.admin import KafkaAdmin
from rayka.client.kafka.cluster import KafkaCluster
from rayka.types import IsolationLevel, OffsetSpec, TopicPartition, is_number


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
    return {topic_partition: Range(first[topic_partition], last[topic_partition]) for topic_partition in partitions}


def starting_offsets(admin: KafkaAdmin, logs: Mapping[TopicPartition, Range], where: str) -> dict[TopicPartition, int]:
    """The offset that `where` names in each partition. Raises CliError(USAGE) if it names none."""
    if where == "earliest":
        return {topic_partition: log.start for topic_partition, log in logs.items()}
    if where == "latest":
        return {topic_partition: log.end for topic_partition, log in logs.items()}
    if is_number(where):
        return dict.fromkeys(logs, int(where))
    if where[:1] == "-" and is_number(where[1:]):
        return {topic_partition: max(log.start, log.end + int(where)) for topic_partition, log in logs.items()}
    found = admin.list_offsets(logs, _time(where))
    return {
        topic_partition: log.end if found[topic_partition] < 0 else found[topic_partition]
        for topic_partition, log in logs.items()
    }


def _time(where: str) -> int:
    try:
        return parse_time(where)
    except CliError:
        known = "earliest, latest, an offset, @MILLISECONDS nor a time such as 2026-01-31T18:00"
        raise CliError(f"{where!r} is neither {known}", Exit.USAGE) from None


def outside(offsets: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, Range]) -> Iterable[str]:
    """A sentence for each partition whose log does not hold the offset."""
    for topic_partition, offset in offsets.items():
        start, end = logs[topic_partition].start, logs[topic_partition].end
        if offset < start:
            yield f"{topic_partition} begins at offset {start}: the records from {offset} to {start - 1} were deleted"
        elif offset > end:
            yield f"{topic_partition} ends at offset {end}, before {offset}"


def deletable(admin: KafkaAdmin, partitions: Sequence[TopicPartition], before: str) -> dict[TopicPartition, int]:
    """Up to where to delete in each partition. Raises CliError for an offset below 0 or after the end of a log."""
    if before.startswith("-"):
        raise CliError(f"--before {before!r} is not an offset, `latest` or a time", Exit.USAGE)
    logs = log_ranges(admin, partitions)
    starts = starting_offsets(admin, logs, before)
    for topic_partition, start in starts.items():
        if start > logs[topic_partition].end:
            raise CliError(f"{topic_partition} ends at offset {logs[topic_partition].end}, before {start}")
    return {topic_partition: max(start, logs[topic_partition].start) for topic_partition, start in starts.items()}
