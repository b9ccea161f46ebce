"""What a group has committed, moved, forgotten or taken over: the actions of `rayka groups` on offsets."""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Subcommands, add_target, command
from rayka.cli.tables import table
from rayka.cli.text.offset_files import parse_plan, parse_zookeeper_export, plan_lines
from rayka.errors import ErrorCode

if TYPE_CHECKING:
    from rayka.client.admin.admin import Admin
    from rayka.client.admin.group_offsets import OffsetReset
    from rayka.types import TopicPartition

NEW_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
STATUS_COLUMNS = ("TOPIC", "PARTITION", "STATUS")
CODES = "\nExit codes: 0 done, 1 failed, 2 used wrongly, 3 no such group or topic, or no broker.\n"
RESET = """\
examples:
  rayka groups reset-offsets billing --all-topics --to-latest --execute
  rayka groups reset-offsets billing --topic events:0,2 --to-offset 1000 --execute
  rayka groups reset-offsets billing --topic events --shift-by -100 --execute
  rayka groups reset-offsets billing --topic events --to-datetime 2026-01-31T18:00
  rayka groups reset-offsets billing --topic events --by-duration PT1H30M
  rayka groups reset-offsets billing --all-topics --to-current --export > plan.csv
  rayka groups reset-offsets billing --from-file plan.csv --execute

A group with members is refused: stop them first. An offset beyond the ends of the log becomes the nearest that there
is; a time after the last record becomes the end. --all-topics means all that the group has committed. A file has
lines of TOPIC,PARTITION,OFFSET, as --export writes them.
"""
IMPORT = """\
examples:
  rayka groups import-offsets offsets.txt --dry-run    what it would do
  rayka groups import-offsets offsets.txt --group billing

The file is what kafka.tools.ExportZkOffsets wrote when offsets were kept in ZooKeeper:
  /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET      (in 0.7 BROKER-PARTITION)
A group with members is refused: stop them first. The topics have to be there. An offset beyond the ends of a log
becomes the nearest that there is.
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


def register(actions: Subcommands) -> None:
    """Adds the actions to the parser of `rayka groups`."""
    _register_reset(command(actions, "reset-offsets", "put a group's offsets elsewhere", RESET + CODES, _reset))
    delete = command(actions, "delete-offsets", "forget offsets of a group", DELETE + CODES, _delete_offsets)
    delete.add_argument("group", metavar="GROUP")
    delete.add_argument("--topic", metavar="TOPIC[:N,N]", action="append", required=True, help="may be repeated")
    add_target(delete)
    summary = "take over offsets that were exported from ZooKeeper"
    importing = command(actions, "import-offsets", summary, IMPORT + CODES, _import)
    importing.add_argument("file", metavar="FILE", help="`-` is standard input")
    importing.add_argument("--group", metavar="GROUP", help="only of this group")
    importing.add_argument("--dry-run", action="store_true", help="only show the new offsets")
    importing.add_argument("--json", action="store_true", help="one JSON object for each partition")
    add_target(importing)


def _register_reset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true", help="to the first records that there are")
    where.add_argument("--to-latest", action="store_true", help="to the ends of the logs")
    where.add_argument(
        "--to-current", action="store_true", help="to what is committed, to the end where nothing is: for --export"
    )
    where.add_argument("--to-offset", metavar="OFFSET", type=int)
    where.add_argument("--shift-by", metavar="N", type=int, help="forward or, with a minus, back")
    where.add_argument(
        "--to-datetime", metavar="TIME", help="2026-01-31T18:00 (local, or with a zone) or @MILLISECONDS"
    )
    where.add_argument("--by-duration", metavar="PnDTnHnMnS", help="so long before now")
    where.add_argument("--from-file", metavar="FILE", help="to the offsets in a file; `-` is standard input")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--topic", metavar="TOPIC[:N,N]", action="append", help="may be repeated")
    which.add_argument("--all-topics", action="store_true", help="all that the group has committed")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only show the new offsets (the default)")
    how.add_argument("--execute", action="store_true", help="do it")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--export", action="store_true", help="TOPIC,PARTITION,OFFSET for --from-file")
    output.add_argument("--json", action="store_true", help="one JSON object for each partition")
    add_target(parser)


def _reset(args: argparse.Namespace) -> Exit:
    if bool(args.from_file) is bool(args.topic or args.all_topics):
        raise CliError("which offsets: --topic, --all-topics or --from-file", Exit.USAGE)
    change = _change_of(args)
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        offsets = change(cluster.admin(), not args.execute)
    if args.export:
        csv.writer(sys.stdout, lineterminator="\n").writerows(plan_lines(offsets))
    else:
        _show({args.group: offsets}, as_json=args.json)
    if not args.execute and not args.dry_run and not args.export:
        print("rayka: nothing was changed; add --execute to do it", file=sys.stderr)
    return Exit.DONE


def _change_of(args: argparse.Namespace) -> Callable[[Admin, bool], dict[TopicPartition, int]]:
    """What is to be asked of the admin, after all that can be wrong with the arguments. Raises CliError."""
    if args.from_file:
        plan = parse_plan(_lines(args.from_file), args.group)
        return lambda admin, dry: admin.set_offsets(args.group, plan, validate_only=dry)
    reset = reset_of(args, time.time_ns() // 1_000_000)
    topics = topics_of(args.topic) if args.topic else None
    return lambda admin, dry: admin.reset_offsets(args.group, reset, topics, validate_only=dry)


def reset_of(args: argparse.Namespace, now_ms: int) -> OffsetReset:
    """Where the arguments lead. Raises CliError(USAGE) for a time that is none."""
    from rayka.cli.text.record_text import parse_time
    from rayka.client.admin.group_offsets import OffsetReset

    if args.to_offset is not None:
        return OffsetReset.to_offset(args.to_offset)
    if args.shift_by is not None:
        return OffsetReset.shift_by(args.shift_by)
    if args.to_datetime is not None:
        return OffsetReset.to_time(parse_time(args.to_datetime))
    if args.by_duration is not None:
        return OffsetReset.to_time(max(0, now_ms - parse_duration(args.by_duration)))
    if args.to_current:
        return OffsetReset.to_current()
    return OffsetReset.to_earliest() if args.to_earliest else OffsetReset.to_latest()


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


def _delete_offsets(args: argparse.Namespace) -> Exit:
    topics = topics_of(args.topic)
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        outcomes = cluster.admin().delete_offsets(args.group, topics)
    rows = [(*at, _SUCCESSFUL if error is ErrorCode.NONE else f"Error: {error.name}") for at, error in outcomes.items()]
    print(table(STATUS_COLUMNS, rows))
    return Exit.FAILED if any(outcomes.values()) else Exit.DONE


def _import(args: argparse.Namespace) -> Exit:
    groups = parse_zookeeper_export(_lines(args.file))
    if args.group is not None:
        if args.group not in groups:
            raise CliError(f"the file has no offsets of group {args.group}", Exit.NOT_FOUND)
        groups = {args.group: groups[args.group]}
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        admin = cluster.admin()
        new = {group: admin.set_offsets(group, offsets, validate_only=True) for group, offsets in groups.items()}
        if not args.dry_run:  # only now that nothing stands in the way of any of them
            new = {group: admin.set_offsets(group, offsets) for group, offsets in groups.items()}
    _show(new, as_json=args.json)
    moved = sum(offset != groups[group][at] for group, offsets in new.items() for at, offset in offsets.items())
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
