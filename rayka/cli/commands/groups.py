"""`rayka groups`: who reads what and how far behind; the offsets themselves are in `group_offsets`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from rayka.cli.commands import group_offsets
from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Subcommands, add_target, command
from rayka.cli.text.group_tables import group_fields, list_text, members_text, offsets_text, state_text

if TYPE_CHECKING:
    from rayka.client.admin.group_offsets import GroupDescription

STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "Empty",
    "Dead",
)
TYPES = ("Classic", "Consumer")
_REBALANCING = STATES[:4]

GROUPS = """\
examples:
  rayka groups list --state --type                     with state and type
  rayka groups list --state stable,empty               only those
  rayka groups describe billing                        offsets and lag of every partition
  rayka groups describe billing --members --verbose    who reads which partitions
  rayka groups describe --all-groups --state
  rayka groups reset-offsets billing --topic events --to-earliest
                                                       what it would do; add --execute to do it
  rayka groups delete-offsets billing --topic old-events
  rayka groups delete billing
  rayka groups import-offsets zookeeper-offsets.txt
"""


def register(commands: Subcommands) -> None:
    """Adds the command to the parser."""
    epilog = GROUPS + group_offsets.CODES
    groups = command(commands, "groups", "show consumer groups and their lag, move offsets, delete", epilog)
    actions = groups.add_subparsers(metavar="ACTION", required=True)
    listing = command(actions, "list", "list groups", epilog, _list)
    for name, values in (("state", STATES), ("type", TYPES)):
        listing.add_argument(
            f"--{name}", metavar="A,B", nargs="?", const="", help=f"show the {name}; only of these: {', '.join(values)}"
        )
    describe = command(actions, "describe", "show offsets and lag, members or states", epilog, _describe)
    describe.add_argument("group", metavar="GROUP", nargs="*", help="default: all")
    describe.add_argument("--all-groups", action="store_true", help="all, as without a name")
    what = describe.add_mutually_exclusive_group()
    what.add_argument("--offsets", action="store_true", help="offsets and lag (the default)")
    what.add_argument("--members", action="store_true", help="who is in the group")
    what.add_argument("--state", action="store_true", help="state, coordinator and assignor")
    describe.add_argument("--verbose", action="store_true", help="with leader epochs; assignments; group epochs")
    group_offsets.register(actions)
    delete = command(actions, "delete", "delete groups that have no members, with offsets", epilog, _delete)
    delete.add_argument("group", metavar="GROUP", nargs="+")
    for parser in (listing, describe):
        parser.add_argument("--json", action="store_true", help="one JSON object for each group")
    for parser in (listing, describe, delete):
        add_target(parser)


def chosen(text: str | None, known: tuple[str, ...], option: str) -> list[str]:
    """The values that an option names, as Kafka writes them. Raises CliError(USAGE) for others."""
    by_name = {name.lower(): name for name in known}
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if word.lower() not in by_name:
            raise CliError(f"{option} {word!r} is none of {', '.join(known)}", Exit.USAGE)
    return [by_name[word.lower()] for word in words]


def _list(args: argparse.Namespace) -> Exit:
    states, types = chosen(args.state, STATES, "--state"), chosen(args.type, TYPES, "--type")
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        groups = cluster.admin().list_groups(states, types)
    if args.json:
        for group in groups:
            fields = {"group": group.group_id, "type": group.group_type, "state": group.group_state}
            print(json.dumps(fields | {"protocol_type": group.protocol_type}))
    elif text := list_text(groups, types=args.type is not None, states=args.state is not None):
        print(text)
    return Exit.DONE


def _describe(args: argparse.Namespace) -> Exit:
    if args.all_groups and args.group:
        raise CliError("name groups or --all-groups, not both", Exit.USAGE)
    from rayka.cli.attached import attached

    show = members_text if args.members else state_text if args.state else offsets_text
    with attached(args) as cluster:
        admin = cluster.admin()
        names = args.group or [group.group_id for group in admin.list_groups()]
        for number, name in enumerate(names):
            group = admin.describe_group(name)
            if args.json:
                print(json.dumps(group_fields(group)))
                continue
            if remark := remark_on(group):
                print(f"rayka: group {name} {remark}", file=sys.stderr)
            print(("\n" if number else "") + show(group, verbose=args.verbose))
    return Exit.DONE


def remark_on(group: GroupDescription) -> str | None:
    """What is to be known before its table is read."""
    if group.state in _REBALANCING:
        return "is rebalancing"
    return None if group.members else "has no members"


def _delete(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        cluster.admin().delete_groups(args.group)
    return Exit.DONE
