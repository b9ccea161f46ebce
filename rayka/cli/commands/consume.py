"""`rayka consume`: records of topics to standard output."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Command, Target, complete_groups, complete_topics, only_one, target_options

if TYPE_CHECKING:
    from rayka.cli.text.record_text import Readable
    from rayka.client.kafka.cluster import KafkaCluster
    from rayka.types import TopicPartition

EXAMPLES = r"""
where --from starts:
  earliest (default), latest, an offset (42), the last few of each partition (-10),
  a time as 2026-01-31T18:00 (local, or with a zone) or @1769882400000 (milliseconds);
  in a group: earliest or latest, used where the group has no committed offset

what --format prints: %s value, %S its length, %k key, %K its length, %t topic, %p partition, %o offset,
  %T timestamp in milliseconds, %h headers, %% percent; \n \t \0 \xHH. Default: '%s\n'.

examples:
  rayka consume events                                    all values, one on each line
  rayka consume events --follow --from latest             new records, until Ctrl-C
  rayka consume events clicks --format '%t %s\n'          several topics
  rayka consume --pattern 'logs-.*' --follow              all topics whose names match
  rayka consume events --group billing --follow           share the partitions with the others in the group
  rayka consume events --partition 0 --from -10           the last ten of one partition
  rayka consume events --from 2026-01-31T18:00 --format '%T %k=%s\n'
  rayka consume events --json | rayka produce copy --json --same-partition
                                                          an exact copy: keys, headers, timestamps, bytes

In a group offsets are committed after the records are printed. Without --follow the command ends at the end of each
partition.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no such topic or no broker.
"""


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """What to read, from where and how much."""

    topics: tuple[str, ...]
    is_pattern: bool
    partitions: tuple[int, ...]
    start: str
    group: str | None
    max_messages: int | None
    follow: bool
    isolation: str


@click.command("consume", cls=Command, epilog=EXAMPLES)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--pattern", is_flag=True, help="TOPIC is a regular expression for whole names.")
@click.option("--group", metavar="GROUP", shell_complete=complete_groups, help="Read as a member of this group.")
@click.option("--from", "start", metavar="WHERE", default="earliest", help="Where to start, see below.")
@click.option(
    "--partition", "partitions", metavar="N", type=int, multiple=True, help="Only this partition; may be repeated."
)
@click.option("--max-messages", metavar="N", type=click.IntRange(min=0), help="Stop after this many records.")
@click.option("--follow", is_flag=True, help="Do not stop at the end, wait for more.")
@click.option(
    "--isolation", type=click.Choice(("read_uncommitted", "read_committed")), default="read_uncommitted",
    help="Whether records of open and aborted transactions are read.",
)  # fmt: skip
@click.option("--format", "pattern_text", metavar="TEXT", help="What to print of a record, see below.")
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each record, with all of its fields.")
@target_options
def command(
    target: Target,
    topics: tuple[str, ...],
    pattern: bool,
    group: str | None,
    start: str,
    partitions: tuple[int, ...],
    max_messages: int | None,
    follow: bool,
    isolation: str,
    pattern_text: str | None,
    as_json: bool,
) -> Exit:
    """Print the records of topics."""
    only_one(format=pattern_text, json=as_json)
    wanted = ConsumeOptions(topics, pattern, partitions, start, group, max_messages, follow, isolation)
    _check(wanted)
    from rayka.cli.attached import kafka
    from rayka.cli.kafka.records import read_assigned, read_in_group
    from rayka.cli.text.record_text import formatter, to_json

    form: Callable[[Readable], bytes] = to_json if as_json else formatter(pattern_text or r"%s\n")
    with kafka(target) as cluster:
        if group is not None:
            with _sigterm_leaves_the_group():
                read_in_group(cluster, wanted, _names(cluster, wanted), form)
        else:
            read_assigned(cluster, wanted, _starts(cluster, wanted), form)
    return Exit.DONE


@contextmanager
def _sigterm_leaves_the_group() -> Iterator[None]:
    """End at SIGTERM as at Ctrl-C: partitions of a member that does not leave wait until its session ends."""

    def terminate(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(wanted: ConsumeOptions) -> None:
    """Raises CliError(USAGE)."""
    if wanted.group is not None and wanted.partitions:
        raise CliError("--group and --partition cannot be used together: the group assigns partitions", Exit.USAGE)
    if wanted.group is not None and wanted.start not in ("earliest", "latest"):
        raise CliError(
            "with --group, --from must be earliest or latest; `rayka groups reset-offsets` moves a group", Exit.USAGE
        )
    if wanted.is_pattern:
        for topic in wanted.topics:
            try:
                re.compile(topic)
            except re.error as error:
                raise CliError(f"--pattern: {topic!r} is not a regular expression: {error}", Exit.USAGE) from None


def _names(cluster: KafkaCluster, wanted: ConsumeOptions) -> list[str]:
    """The topics to read. Raises UNKNOWN_TOPIC_OR_PARTITION, CliError(NOT_FOUND)."""
    if not wanted.is_pattern:
        return list(cluster.metadata(wanted.topics).topics)
    known = [topic.name for topic in cluster.metadata(None).topics.values() if not topic.is_internal]
    names = [name for name in sorted(known) if any(re.fullmatch(topic, name) for topic in wanted.topics)]
    if not names and not (wanted.follow and wanted.group):
        raise CliError(f"no topic matches {' or '.join(wanted.topics)}", Exit.NOT_FOUND)
    return names


def _starts(cluster: KafkaCluster, wanted: ConsumeOptions) -> dict[TopicPartition, tuple[int, int]]:
    """From which offset to which each partition is read; says on standard error what the log does not hold."""
    from rayka.cli.kafka.offsets import log_ranges, outside, partitions_of, starting_offsets
    from rayka.client.kafka.admin import KafkaAdmin
    from rayka.types import IsolationLevel, is_number

    admin = KafkaAdmin(cluster)
    places = [
        partition for name in _names(cluster, wanted) for partition in partitions_of(cluster, name, wanted.partitions)
    ]
    logs = log_ranges(admin, places, IsolationLevel[wanted.isolation.upper()])
    offsets = starting_offsets(admin, logs, wanted.start)
    if is_number(wanted.start):
        _warn(outside(offsets, logs))
    return {
        partition: (max(offset, logs[partition].start), logs[partition].end) for partition, offset in offsets.items()
    }


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"rayka: {line}", file=sys.stderr)
