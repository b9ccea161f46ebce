"""`rayka groups`: who reads what, how far behind, and moving or deleting what a group has committed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Subcommands, add_target, command
from rayka.cli.tables import table

if TYPE_CHECKING:
    from rayka.client.group_offsets import GroupDescription, GroupMember, OffsetReset
    from rayka.types import TopicPartition

OFFSET_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)
MEMBER_COLUMNS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "GROUP-INSTANCE-ID", "ASSIGNMENT")
STATE_COLUMNS = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS", "TYPE")
NEW_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")

CODES = "\nExit codes: 0 done, 1 failed, 2 used wrongly, 3 no such group or topic, or no broker.\n"
GROUPS = """\
examples:
  rayka groups list --state                            with type and state
  rayka groups describe billing                        offsets and lag of every partition
  rayka groups describe billing --members
  rayka groups reset-offsets billing --topic events --to-earliest
                                                       what it would do; add --execute to do it
  rayka groups delete billing
"""
RESET = """\
examples:
  rayka groups reset-offsets billing --all-topics --to-latest --execute
  rayka groups reset-offsets billing --topic events:0,2 --to-offset 1000 --execute
  rayka groups reset-offsets billing --topic events --shift-by -100 --execute
  rayka groups reset-offsets billing --topic events --to-datetime 2026-01-31T18:00

A group with members is refused: stop them first. An offset beyond the ends of the log becomes the nearest that there
is; a time after the last record becomes the end. --all-topics means all that the group has committed.
"""


def register(commands: Subcommands) -> None:
    """Adds the command to the parser."""
    groups = command(commands, "groups", "show consumer groups and their lag, reset offsets, delete", GROUPS + CODES)
    actions = groups.add_subparsers(metavar="ACTION", required=True)
    listing = command(actions, "list", "list groups", GROUPS + CODES, _list)
    listing.add_argument(
        "--state", metavar="STATES", nargs="?", const="", help="show type and state; only of these (Stable,Empty)"
    )
    describe = command(actions, "describe", "show offsets and lag, members or states", GROUPS + CODES, _describe)
    describe.add_argument("group", metavar="GROUP", nargs="*", help="default: all")
    what = describe.add_mutually_exclusive_group()
    what.add_argument("--members", action="store_true", help="who is in the group, and what each reads")
    what.add_argument("--state", action="store_true", help="state, coordinator and assignor")
    _register_reset(command(actions, "reset-offsets", "put a group's offsets elsewhere", RESET + CODES, _reset))
    delete = command(actions, "delete", "delete groups that have no members, with offsets", GROUPS + CODES, _delete)
    delete.add_argument("group", metavar="GROUP", nargs="+")
    for parser in (listing, describe):
        parser.add_argument("--json", action="store_true", help="one JSON object for each group")
    for parser in (listing, describe, delete):
        add_target(parser)


def _register_reset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true", help="to the first records that there are")
    where.add_argument("--to-latest", action="store_true", help="to the ends of the logs")
    where.add_argument("--to-offset", metavar="OFFSET", type=int)
    where.add_argument("--shift-by", metavar="N", type=int, help="forward or, with a minus, back")
    where.add_argument(
        "--to-datetime", metavar="TIME", help="2026-01-31T18:00 (local, or with a zone) or @MILLISECONDS"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--topic", metavar="TOPIC[:N,N]", action="append", help="may be repeated")
    which.add_argument("--all-topics", action="store_true", help="all that the group has committed")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only show the new offsets (the default)")
    how.add_argument("--execute", action="store_true", help="do it")
    parser.add_argument("--json", action="store_true", help="one JSON object for each partition")
    add_target(parser)


def _list(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        groups = cluster.admin().list_groups([state for state in (args.state or "").split(",") if state])
    if args.json:
        for group in groups:
            fields = {"group": group.group_id, "type": group.group_type, "state": group.group_state}
            print(json.dumps(fields | {"protocol_type": group.protocol_type}))
    elif args.state is None:
        for group in groups:
            print(group.group_id)
    else:
        rows = [(group.group_id, group.group_type, group.group_state) for group in groups]
        print(table(("GROUP", "TYPE", "STATE"), rows))
    return Exit.DONE


def _describe(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        admin = cluster.admin()
        names = args.group or [group.group_id for group in admin.list_groups()]
        for number, name in enumerate(names):
            group = admin.describe_group(name)
            if args.json:
                print(json.dumps(group_fields(group)))
                continue
            if not group.members:
                print(f"rayka: group {name} has no members", file=sys.stderr)
            text = members_text(group) if args.members else state_text(group) if args.state else offsets_text(group)
            print(("\n" if number else "") + text)
    return Exit.DONE


def offsets_text(group: GroupDescription) -> str:
    """Kafka's table of offsets and lag, `-` for what is not known."""
    rows = [
        (
            group.group_id,
            *one.topic_partition,
            _or_dash(one.current_offset),
            _or_dash(one.log_end_offset),
            _or_dash(one.lag),
            *((one.member.member_id, one.member.host, one.member.client_id) if one.member else ("-", "-", "-")),
        )
        for one in group.offsets
    ]
    return table(OFFSET_COLUMNS, rows)


def members_text(group: GroupDescription) -> str:
    """Kafka's table of members, with what they are assigned."""
    rows = [
        (
            group.group_id,
            member.member_id,
            member.host,
            member.client_id,
            len(member.assignment),
            _or_dash(member.group_instance_id),
            assignment_text(member.assignment),
        )
        for member in group.members
    ]
    return table(MEMBER_COLUMNS, rows)


def state_text(group: GroupDescription) -> str:
    """Kafka's table of one group's state, with its type."""
    node = group.coordinator
    where = f"{node.host}:{node.port} ({node.broker_id})"
    row = (group.group_id, where, group.assignor or "-", group.state, len(group.members), group.group_type)
    return table(STATE_COLUMNS, [row])


def assignment_text(assignment: Iterable[TopicPartition]) -> str:
    """`topic:0,1;other:0`, `-` for nothing."""
    topics: dict[str, list[str]] = {}
    for topic, partition in assignment:
        topics.setdefault(topic, []).append(str(partition))
    return ";".join(f"{topic}:{','.join(numbers)}" for topic, numbers in topics.items()) or "-"


def _or_dash(value: object) -> object:
    return "-" if value is None else value


def group_fields(group: GroupDescription) -> dict[str, Any]:
    """Everything known of a group, for JSON."""
    return {
        "group": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator.broker_id,
        "members": [_member_fields(member) for member in group.members],
        "offsets": [
            {
                "topic": one.topic_partition.topic,
                "partition": one.topic_partition.partition,
                "current_offset": one.current_offset,
                "log_end_offset": one.log_end_offset,
                "lag": one.lag,
                "consumer_id": one.member.member_id if one.member else None,
            }
            for one in group.offsets
        ],
    }


def _member_fields(member: GroupMember) -> dict[str, Any]:
    return {
        "consumer_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "host": member.host,
        "client_id": member.client_id,
        "assignment": [list(held) for held in member.assignment],
    }


def _reset(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached

    reset, topics = reset_of(args), None if args.all_topics else topics_of(args.topic)
    with attached(args) as cluster:
        offsets = cluster.admin().reset_offsets(args.group, reset, topics, validate_only=not args.execute)
    if args.json:
        for (topic, partition), offset in offsets.items():
            fields = {"group": args.group, "topic": topic, "partition": partition, "new_offset": offset}
            print(json.dumps(fields))
    else:
        print(table(NEW_COLUMNS, [(args.group, *partition, offset) for partition, offset in offsets.items()]))
    if not args.execute and not args.dry_run:
        print("rayka: nothing was changed; add --execute to do it", file=sys.stderr)
    return Exit.DONE


def reset_of(args: argparse.Namespace) -> OffsetReset:
    """Where the arguments lead. Raises CliError(USAGE) for a time that is none."""
    from rayka.cli.record_text import parse_time
    from rayka.client.group_offsets import OffsetReset

    if args.to_offset is not None:
        return OffsetReset.to_offset(args.to_offset)
    if args.shift_by is not None:
        return OffsetReset.shift_by(args.shift_by)
    if args.to_datetime is not None:
        return OffsetReset.to_time(parse_time(args.to_datetime))
    return OffsetReset.to_earliest() if args.to_earliest else OffsetReset.to_latest()


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


def _delete(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        cluster.admin().delete_groups(args.group)
    return Exit.DONE
