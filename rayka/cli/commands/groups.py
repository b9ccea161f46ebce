"""`rayka groups`: lists and describes groups, and deletes them; `group_offsets` changes their offsets."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from rayka.cli.commands import group_offsets
from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import (
    CODES,
    Group,
    Target,
    complete_groups,
    confirm,
    json_option,
    only_one,
    target_options,
    yes_option,
)
from rayka.cli.tables import print_list
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
TYPES = ("Classic", "Consumer", "Share")
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
LIST = """\
examples:
  rayka groups list
  rayka groups list --state --type                     with state and type
  rayka groups list --state stable,empty               only those
  rayka groups list --type share                       share groups, which are listed only with --type
"""
DESCRIBE = """\
examples:
  rayka groups describe billing                        offsets and lag of every partition
  rayka groups describe billing --members --verbose    who reads which partitions
  rayka groups describe --all-groups --state
"""
DELETE = """\
examples:
  rayka groups delete billing
  rayka groups delete billing audit --yes
"""


@click.group("groups", cls=Group, epilog=GROUPS + CODES)
def command() -> None:
    """Show consumer groups and their lag, move offsets, delete."""


for _action in (group_offsets.reset_offsets, group_offsets.delete_offsets, group_offsets.import_offsets):
    command.add_command(_action)


def chosen(text: str | None, known: tuple[str, ...], option: str) -> list[str]:
    """The values that an option names, as Kafka writes them. Raises CliError(USAGE) for others."""
    by_name = {name.lower(): name for name in known}
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if word.lower() not in by_name:
            raise CliError(f"{option} {word!r} is not known: use {', '.join(known)}", Exit.USAGE)
    return [by_name[word.lower()] for word in words]


@command.command("list", epilog=LIST + CODES)
@click.option(
    "--state", metavar="[A,B]", is_flag=False, flag_value="",
    help=f"Show the state; only of these: {', '.join(STATES)}.",
)  # fmt: skip
@click.option(
    "--type", "types", metavar="[A,B]", is_flag=False, flag_value="",
    help=f"Show the type; only of these: {', '.join(TYPES)}.",
)  # fmt: skip
@json_option("One JSON object for each group.")
@target_options
def list_(target: Target, state: str | None, types: str | None, as_json: bool) -> Exit:
    """List groups."""
    wanted_states, wanted_types = chosen(state, STATES, "--state"), chosen(types, TYPES, "--type")
    from rayka.cli.attached import kafka
    from rayka.client.kafka.groups import KafkaGroupAdmin

    with kafka(target) as cluster:
        groups = KafkaGroupAdmin(cluster).list_groups(wanted_states, wanted_types)
    if as_json:
        for group in groups:
            fields = {"group": group.group_id, "type": group.group_type, "state": group.group_state}
            print(json.dumps(fields | {"protocol_type": group.protocol_type}))
    else:
        nothing = "there are no such groups" if wanted_states or wanted_types else "there are no groups"
        print_list(list_text(groups, types=types is not None, states=state is not None), nothing)
    return Exit.DONE


@command.command("describe", epilog=DESCRIBE + CODES)
@click.argument("groups", metavar="[GROUP]...", nargs=-1, shell_complete=complete_groups)
@click.option("--all-groups", is_flag=True, help="All groups, as without a name.")
@click.option("--offsets", is_flag=True, help="Offsets and lag (the default).")
@click.option("--members", is_flag=True, help="The members, with their clients and partitions.")
@click.option("--state", is_flag=True, help="State, coordinator and assignor.")
@click.option("--verbose", is_flag=True, help="Add leader epochs to offsets, assignments to members, epochs to state.")
@json_option("One JSON object for each group.")
@target_options
def describe(
    target: Target,
    groups: tuple[str, ...],
    all_groups: bool,
    offsets: bool,
    members: bool,
    state: bool,
    verbose: bool,
    as_json: bool,
) -> Exit:
    """Show offsets and lag, members or states; of all groups if none is named."""
    only_one(offsets=offsets, members=members, state=state)
    if all_groups and groups:
        raise CliError("name groups or --all-groups, not both", Exit.USAGE)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.groups import KafkaGroupAdmin

    text = members_text if members else state_text if state else offsets_text
    with kafka(target) as cluster:
        admin = KafkaGroupAdmin(cluster)
        for number, name in enumerate(groups or [group.group_id for group in admin.list_groups()]):
            group = admin.describe_group(name)
            if as_json:
                print(json.dumps(group_fields(group)))
                continue
            if remark := remark_on(group):
                print(f"rayka: group {name} {remark}", file=sys.stderr)
            print(("\n" if number else "") + text(group, verbose=verbose))
    return Exit.DONE


def remark_on(group: GroupDescription) -> str | None:
    """What to know before reading its table."""
    if group.state in _REBALANCING:
        return "is rebalancing"
    return None if group.members else "has no members"


@command.command("delete", epilog=DELETE + CODES)
@click.argument("groups", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@yes_option
@target_options
def delete(target: Target, groups: tuple[str, ...], yes: bool) -> Exit:
    """Delete groups that have no members, with their offsets. Asks first on a terminal."""
    from rayka.cli.attached import kafka
    from rayka.client.kafka.groups import KafkaGroupAdmin

    names = f"{'group' if len(groups) == 1 else 'groups'} {', '.join(groups)}"
    confirm(f"Delete {names} with all committed offsets?", yes)
    with kafka(target) as cluster:
        admin = KafkaGroupAdmin(cluster)
        for group in groups:
            admin.require_not_shared(group)
        admin.delete_groups(groups)
    print(f"Deleted {names}.")
    return Exit.DONE
