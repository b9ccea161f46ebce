"""Files of offsets: the plans of `reset-offsets`, and what the export tools of the ZooKeeper era wrote. No I/O here.

Errors name the line. Formats: Kafka's `--export` CSV, `TOPIC,PARTITION,OFFSET` or `GROUP,TOPIC,PARTITION,OFFSET`;
`kafka.tools.ExportZkOffsets`, a line for each node of the registry,
`/consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET`, in 0.7 with `BROKER-PARTITION` in the place of the partition.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from rayka.cli.exits import CliError, Exit
from rayka.types import TopicPartition, is_number

_ZK_LINE = re.compile(r"/consumers/([^/]+)/offsets/([^/]+)/(?:(\d+)-)?(\d+):(\d+)", re.ASCII)
K = TypeVar("K")
V = TypeVar("V")
_MAX_PARTITION = 2**31 - 1
_MAX_OFFSET = 2**63 - 1


def parse_plan(lines: Iterable[str], group: str) -> dict[TopicPartition, int]:
    """The offsets for one group. Raises CliError(USAGE)."""
    offsets: dict[TopicPartition, int] = {}
    for number, fields in enumerate(csv.reader(lines), 1):
        fields = [field.strip() for field in fields]
        if not any(fields):
            continue
        if len(fields) == 4 and fields.pop(0) != group:
            raise _wrong(number, f"this is about another group than {group}")
        if len(fields) != 3 or not fields[0] or not (is_number(fields[1]) and is_number(fields[2])):
            raise _wrong(number, "not of the form TOPIC,PARTITION,OFFSET")
        _put(offsets, number, fields[0], int(fields[1]), int(fields[2]))
    return _not_empty(offsets)


def plan_lines(offsets: Mapping[TopicPartition, int]) -> list[list[object]]:
    """The rows of a plan that `parse_plan` reads."""
    return [[topic, partition, offset] for (topic, partition), offset in offsets.items()]


def parse_zookeeper_export(lines: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
    """The offsets of each group. Raises CliError(USAGE).

    What several brokers of 0.7 had under one partition number is an error: those were logs of their own.
    """
    groups: dict[str, dict[TopicPartition, int]] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        match = _ZK_LINE.fullmatch(text)
        if match is None:
            raise _wrong(number, f"{text[:80]!r} is not of the form /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET")
        group, topic, _, partition, offset = match.groups()
        _put(groups.setdefault(group, {}), number, topic, int(partition), int(offset))
    return _not_empty(groups)


def _put(offsets: dict[TopicPartition, int], number: int, topic: str, partition: int, offset: int) -> None:
    topic_partition = TopicPartition(topic, partition)
    if partition > _MAX_PARTITION or offset > _MAX_OFFSET:
        raise _wrong(number, f"partition {partition} or offset {offset} is too large")
    if topic_partition in offsets:
        raise _wrong(number, f"{topic} partition {partition} is there for the second time")
    offsets[topic_partition] = offset


def _not_empty(parsed: dict[K, V]) -> dict[K, V]:
    if not parsed:
        raise CliError("the file has no offsets", Exit.USAGE)
    return parsed


def _wrong(number: int, what: str) -> CliError:
    return CliError(f"line {number}: {what}", Exit.USAGE)
