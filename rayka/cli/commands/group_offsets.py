"""The actions of `rayka groups` on committed offsets: reset, delete, import."""

from __future__ import annotations

import csv
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import (
    CODES,
    Command,
    Target,
    complete_groups,
    complete_topics,
    confirm,
    json_option,
    only_one,
    target_options,
    yes_option,
)
from rayka.cli.tables import table
from rayka.cli.text.offset_files import parse_plan, parse_zookeeper_export, plan_lines
from rayka.errors import ErrorCode

if TYPE_CHECKING:
    from rayka.client.admin.group_offsets import OffsetReset
    from rayka.client.kafka.groups import KafkaGroupAdmin
    from rayka.types import TopicPartition

NEW_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
STATUS_COLUMNS = ("TOPIC", "PARTITION", "STATUS")
RESET = """\
examples:
  rayka groups reset-offsets billing --all-topics --to-latest --execute
  rayka groups reset-offsets billing --topic events:0,2 --to-offset 1000 --execute
  rayka groups reset-offsets billing --topic events --shift-by -100 --execute
  rayka groups reset-offsets billing --topic events --to-datetime 2026-01-31T18:00
  rayka groups reset-offsets billing --topic events --by-duration PT1H30M
  rayka groups reset-offsets billing --all-topics --to-current --export > plan.csv
  rayka groups reset-offsets billing --from-file plan.csv --execute

Stop the members of the group first: a group with members is refused. An offset outside of the log becomes the nearest
one in it; a time after the last record becomes the end. A file has lines of TOPIC,PARTITION,OFFSET, as --export
writes them.
"""
IMPORT = """\
examples:
  rayka groups import-offsets offsets.txt --dry-run    what it would do
  rayka groups import-offsets offsets.txt --group billing

The file is what kafka.tools.ExportZkOffsets wrote when offsets were kept in ZooKeeper:
  /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET      (in 0.7 BROKER-PARTITION)
Stop the members of the group first: a group with members is refused. The topics must exist. An offset outside of a log
becomes the nearest one in it.
"""
DELETE = """\
examples:
  rayka groups delete-offsets billing --topic old-events
  rayka groups delete-offsets billing --topic events:0,2

A topic that members of the group still read is refused.
"""
_DURATION = re.compile(
    r"P(?=.)(?:(?P<d>\d+)D)?(?:T(?=.)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d{1,9})?)S)?)?", re.ASCII
)
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_SUCCESSFUL = "Successful"


@click.command("reset-offsets", cls=Command, epilog=RESET + CODES)
@click.argument("group", shell_complete=complete_groups)
@click.option("--to-earliest", is_flag=True, help="To the first record of each partition.")
@click.option("--to-latest", is_flag=True, help="To the end of each partition.")
@click.option("--to-current", is_flag=True, help="To what is committed, else to the end; for --export.")
@click.option("--to-offset", metavar="OFFSET", type=int, help="To this offset.")
@click.option("--shift-by", metavar="N", type=int, help="Forward or, with a minus sign, back.")
@click.option("--to-datetime", metavar="TIME", help="2026-01-31T18:00 (local, or with a zone) or @MILLISECONDS.")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="This long before now.")
@click.option("--from-file", metavar="FILE", help="To the offsets in a file; `-` is standard input.")
@click.option(
    "--topic",
    metavar="TOPIC[:N,N]",
    multiple=True,
    shell_complete=complete_topics,
    help="A topic, or partitions of it; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All topics that the group has committed offsets for.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets (the default).")
@click.option("--execute", is_flag=True, help="Commit the new offsets.")
@click.option("--export", is_flag=True, help="Print TOPIC,PARTITION,OFFSET for --from-file.")
@json_option("One JSON object for each partition.")
@target_options
def reset_offsets(
    target: Target,
    group: str,
    from_file: str | None,
    topic: tuple[str, ...],
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    export: bool,
    as_json: bool,
    **where: Any,
) -> Exit:
    """Move a group's committed offsets. Shows what it would do; --execute does it."""
    only_one(topic=topic, all_topics=all_topics)
    only_one(dry_run=dry_run, execute=execute)
    only_one(export=export, json=as_json)
    if bool(from_file) is bool(topic or all_topics):
        raise CliError("which offsets: --topic, --all-topics or --from-file", Exit.USAGE)
    change = _change_of(group, from_file, topic, where)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.groups import KafkaGroupAdmin

    with kafka(target) as cluster:
        offsets = change(KafkaGroupAdmin(cluster), not execute)
    if export:
        csv.writer(sys.stdout, lineterminator="\n").writerows(plan_lines(offsets))
    else:
        _show({group: offsets}, as_json=as_json)
    if not execute and not dry_run and not export:
        print("rayka: nothing was changed; add --execute to do it", file=sys.stderr)
    return Exit.DONE


def _change_of(
    group: str, from_file: str | None, topic: Sequence[str], where: Mapping[str, Any]
) -> Callable[[KafkaGroupAdmin, bool], dict[TopicPartition, int]]:
    """What to ask of the admin, after everything that can be wrong with the options. Raises CliError."""
    if from_file:
        only_one(from_file=from_file, **_set_options(where))
        plan = parse_plan(_lines(from_file), group)
        return lambda admin, dry_run: admin.set_offsets(group, plan, dry_run=dry_run)
    reset = reset_of(where, time.time_ns() // 1_000_000)
    topics = topics_of(topic) if topic else None
    return lambda admin, dry_run: admin.reset_offsets(group, reset, topics, dry_run=dry_run)


def _set_options(where: Mapping[str, Any]) -> dict[str, bool]:
    """The options that are there; 0 is an offset too."""
    return {name: value is not None and value is not False for name, value in where.items()}


def reset_of(where: Mapping[str, Any], now_ms: int) -> OffsetReset:
    """Where the options lead: exactly one of them is set. Raises CliError(USAGE)."""
    from rayka.cli.text.record_text import parse_time
    from rayka.client.admin.group_offsets import OffsetReset

    only_one(**_set_options(where))
    given = [name for name, is_set in _set_options(where).items() if is_set]
    if not given:
        raise CliError("say where to: --to-earliest, --to-latest, --to-offset ... (see --help)", Exit.USAGE)
    value = where[given[0]]
    resets: dict[str, Callable[[], OffsetReset]] = {
        "to_offset": lambda: OffsetReset.to_offset(value),
        "shift_by": lambda: OffsetReset.shift_by(value),
        "to_datetime": lambda: OffsetReset.to_time(parse_time(value)),
        "by_duration": lambda: OffsetReset.to_time(max(0, now_ms - parse_duration(value))),
        "to_current": OffsetReset.to_current,
        "to_earliest": OffsetReset.to_earliest,
        "to_latest": OffsetReset.to_latest,
    }
    return resets[given[0]]()


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days and less. Raises CliError(USAGE)."""
    match = _DURATION.fullmatch(text.upper())
    if match is None:
        raise CliError(f"--by-duration {text!r} is not of the form PnDTnHnMnS, such as P1D or PT1H30M", Exit.USAGE)
    return round(sum(float(match[unit] or 0) * size for unit, size in _UNITS_MS.items()))


def topics_of(words: Sequence[str]) -> dict[str, list[int] | None]:
    """Topics and their partitions, None for all, of words such as `events` and `events:0,2`.

    Raises CliError(USAGE) for partitions that are no numbers.
    """
    topics: dict[str, list[int] | None] = {}
    for word in words:
        topic, colon, numbers = word.partition(":")
        parts = numbers.split(",")
        if not topic or (colon and not all(part.isdecimal() for part in parts)):
            raise CliError(f"--topic {word!r} is not of the form TOPIC or TOPIC:N,N", Exit.USAGE)
        known = topics.get(topic, [])
        topics[topic] = None if known is None or not colon else known + [int(part) for part in parts]
    return topics


@click.command("delete-offsets", cls=Command, epilog=DELETE + CODES)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--topic",
    metavar="TOPIC[:N,N]",
    multiple=True,
    required=True,
    help="A topic, or partitions of it; may be repeated.",
)
@yes_option
@target_options
def delete_offsets(target: Target, group: str, topic: tuple[str, ...], yes: bool) -> Exit:
    """Delete committed offsets of a group. Asks first on a terminal."""
    topics = topics_of(topic)
    confirm(f"Delete the offsets of group {group} for {', '.join(topic)}?", yes)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.groups import KafkaGroupAdmin

    with kafka(target) as cluster:
        outcomes = KafkaGroupAdmin(cluster).delete_offsets(group, topics)
    rows = [(*at, _SUCCESSFUL if error is ErrorCode.NONE else f"Error: {error.name}") for at, error in outcomes.items()]
    print(table(STATUS_COLUMNS, rows))
    return Exit.FAILED if any(outcomes.values()) else Exit.DONE


@click.command("import-offsets", cls=Command, epilog=IMPORT + CODES)
@click.argument("file")
@click.option("--group", metavar="GROUP", help="Only the offsets of this group.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets.")
@json_option("One JSON object for each partition.")
@target_options
def import_offsets(target: Target, file: str, group: str | None, dry_run: bool, as_json: bool) -> Exit:
    """Commit offsets that were exported from ZooKeeper. FILE `-` is standard input."""
    groups = parse_zookeeper_export(_lines(file))
    if group is not None:
        if group not in groups:
            raise CliError(f"the file has no offsets of group {group}", Exit.NOT_FOUND)
        groups = {group: groups[group]}
    from rayka.cli.attached import kafka
    from rayka.client.kafka.groups import KafkaGroupAdmin

    with kafka(target) as cluster:
        admin = KafkaGroupAdmin(cluster)
        new = {name: admin.set_offsets(name, offsets, dry_run=True) for name, offsets in groups.items()}
        if not dry_run:  # only now that nothing stands in the way of any of them
            new = {name: admin.set_offsets(name, offsets, dry_run=False) for name, offsets in groups.items()}
    _show(new, as_json=as_json)
    moved = sum(offset != groups[name][at] for name, offsets in new.items() for at, offset in offsets.items())
    if moved:
        print(f"rayka: {moved} offsets were beyond the ends of their logs", file=sys.stderr)
    return Exit.DONE


def _lines(path: str) -> list[str]:
    """Raises CliError if the file cannot be read."""
    try:
        return (sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {path}: {error}") from None


def _show(groups: Mapping[str, Mapping[TopicPartition, int]], *, as_json: bool) -> None:
    rows = [(group, *at, offset) for group, offsets in groups.items() for at, offset in offsets.items()]
    if not as_json:
        print(table(NEW_COLUMNS, rows))
        return
    for group, topic, partition, offset in rows:
        print(json.dumps({"group": group, "topic": topic, "partition": partition, "new_offset": offset}))
