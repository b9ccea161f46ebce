"""`rayka share-groups`: who shares which topics, how far behind, and in which state records are."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.commands.group_offsets import NEW_COLUMNS, reset_of, topics_of
from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import (
    CODES,
    Group,
    Target,
    complete_share_groups,
    complete_topics,
    confirm,
    json_option,
    only_one,
    target_options,
    yes_option,
)
from rayka.cli.tables import table
from rayka.cli.text.offset_files import plan_lines
from rayka.cli.text.share_group_tables import (
    batches_text,
    members_text,
    offsets_text,
    share_group_fields,
    state_text,
)

if TYPE_CHECKING:
    from rayka.client.kafka.share_groups import KafkaShareGroupAdmin, ShareBatch, ShareOffset

EXAMPLES = """\
examples:
  rayka share-groups list --state                      with state
  rayka share-groups describe jobs                     start offset and lag of every partition
  rayka share-groups describe jobs --members           who reads which partitions
  rayka share-groups describe jobs --records           which records are acknowledged, and deliveries of the others
  rayka share-groups reset-offsets jobs --topic tasks --to-earliest
                                                       what it would do; add --execute to do it
  rayka share-groups delete jobs
"""
LIST = """\
examples:
  rayka share-groups list
  rayka share-groups list --state
"""
DESCRIBE = """\
examples:
  rayka share-groups describe                          every share group
  rayka share-groups describe jobs --members --verbose
  rayka share-groups describe jobs --records

Nothing before the START-OFFSET of a partition is delivered again. From there on --records shows runs of records:
  Available     waits for a delivery, the first one or another
  Acquired      a consumer has it, under a lock
  Acknowledged  accepted
  Archiving     rejected or delivered too often, and on its way to the dead-letter topic
  Archived      rejected or delivered too often
"""
DELETE = """\
examples:
  rayka share-groups delete jobs
  rayka share-groups delete jobs mails --yes
"""
RESET = """\
examples:
  rayka share-groups reset-offsets jobs --all-topics --to-latest --execute
  rayka share-groups reset-offsets jobs --topic tasks:0,2 --to-offset 1000 --execute
  rayka share-groups reset-offsets jobs --topic tasks --by-duration PT1H30M

Stop the members of the group first: a group with members is refused. Records from the new start offset on are delivered
again, also those that were acknowledged.
"""


@click.group("share-groups", cls=Group, epilog=EXAMPLES + CODES)
def command() -> None:
    """Show share groups, their lag and the state of their records, move offsets, delete."""


@command.command("list", epilog=LIST + CODES)
@click.option("--state", is_flag=True, help="Show the state.")
@json_option("One JSON object for each group.")
@target_options
def list_(target: Target, state: bool, as_json: bool) -> Exit:
    """List share groups."""
    from rayka.cli.attached import kafka
    from rayka.client.kafka.share_groups import KafkaShareGroupAdmin

    with kafka(target) as cluster:
        groups = KafkaShareGroupAdmin(cluster).list_groups()
    for group in groups if as_json else ():
        print(json.dumps({"group": group.group_id, "type": group.group_type, "state": group.group_state}))
    if groups and not as_json:
        rows = [[group.group_id, group.group_state] for group in groups]
        print(table(["GROUP", "STATE"], rows) if state else "\n".join(group.group_id for group in groups))
    return Exit.DONE


@command.command("describe", epilog=DESCRIBE + CODES)
@click.argument("groups", metavar="[GROUP]...", nargs=-1, shell_complete=complete_share_groups)
@click.option("--offsets", is_flag=True, help="Start offsets and lag (the default).")
@click.option("--members", is_flag=True, help="The members, with their clients and partitions.")
@click.option("--state", is_flag=True, help="State and coordinator.")
@click.option("--records", is_flag=True, help="States and deliveries of records from the start offsets on.")
@click.option("--verbose", is_flag=True, help="Add epochs.")
@json_option("One JSON object for each group.")
@target_options
def describe(target: Target, groups: tuple[str, ...], verbose: bool, as_json: bool, **views: bool) -> Exit:
    """Show offsets and lag, members, states or records; of all share groups if none is named."""
    only_one(**views)
    view = next((name for name, is_chosen in views.items() if is_chosen), "offsets")
    from rayka.cli.attached import kafka
    from rayka.client.kafka.share_groups import KafkaShareGroupAdmin

    with kafka(target) as cluster:
        admin = KafkaShareGroupAdmin(cluster)
        for number, name in enumerate(groups or [group.group_id for group in admin.list_groups()]):
            if as_json:
                print(json.dumps(_fields(admin, name)))
            else:
                print(("\n" if number else "") + _text(admin, name, view, verbose=verbose))
    return Exit.DONE


def _text(admin: KafkaShareGroupAdmin, name: str, view: str, *, verbose: bool) -> str:
    group = admin.describe_group(name)
    if not group.members:
        print(f"rayka: share group {name} has no members", file=sys.stderr)
    if view == "members":
        return members_text(group, verbose=verbose)
    if view == "state":
        return state_text(group, verbose=verbose)
    offsets = admin.offsets(name)
    if view == "records":
        return batches_text(name, _batches(admin, name, offsets))
    return offsets_text(name, offsets, verbose=verbose)


def _batches(admin: KafkaShareGroupAdmin, name: str, offsets: Sequence[ShareOffset]) -> list[ShareBatch]:
    return [batch for offset in offsets for batch in admin.batches(name, offset)]


def _fields(admin: KafkaShareGroupAdmin, name: str) -> dict[str, Any]:
    group, offsets = admin.describe_group(name), admin.offsets(name)
    return share_group_fields(group, offsets, _batches(admin, name, offsets))


@command.command("reset-offsets", epilog=RESET + CODES)
@click.argument("group", shell_complete=complete_share_groups)
@click.option("--to-earliest", is_flag=True, help="To the first record of each partition.")
@click.option("--to-latest", is_flag=True, help="To the end of each partition.")
@click.option("--to-offset", metavar="OFFSET", type=int, help="To this offset.")
@click.option("--to-datetime", metavar="TIME", help="2026-01-31T18:00 (local, or with a zone) or @MILLISECONDS.")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="This long before now.")
@click.option(
    "--topic",
    metavar="TOPIC[:N,N]",
    multiple=True,
    shell_complete=complete_topics,
    help="A topic, or partitions of it; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All topics that the group has read.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets (the default).")
@click.option("--execute", is_flag=True, help="Set the new offsets.")
@click.option("--export", is_flag=True, help="Print TOPIC,PARTITION,OFFSET.")
@json_option("One JSON object for each partition.")
@target_options
def reset_offsets(
    target: Target,
    group: str,
    topic: tuple[str, ...],
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    export: bool,
    as_json: bool,
    **where: Any,
) -> Exit:
    """Move a share group's start offsets. Shows what it would do; --execute does it."""
    only_one(topic=topic, all_topics=all_topics)
    only_one(dry_run=dry_run, execute=execute)
    only_one(export=export, json=as_json)
    if not topic and not all_topics:
        raise CliError("which offsets: --topic or --all-topics", Exit.USAGE)
    reset = reset_of(where, time.time_ns() // 1_000_000)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.share_groups import KafkaShareGroupAdmin

    with kafka(target) as cluster:
        admin = KafkaShareGroupAdmin(cluster)
        offsets = admin.reset_offsets(group, reset, topics_of(topic) if topic else None, dry_run=not execute)
    if export:
        csv.writer(sys.stdout, lineterminator="\n").writerows(plan_lines(offsets))
    elif as_json:
        for (name, number), offset in offsets.items():
            print(json.dumps({"group": group, "topic": name, "partition": number, "new_offset": offset}))
    else:
        print(table(NEW_COLUMNS, [(group, *at, offset) for at, offset in offsets.items()]))
    if not execute and not dry_run and not export:
        print("rayka: nothing was changed; add --execute to do it", file=sys.stderr)
    return Exit.DONE


@command.command("delete", epilog=DELETE + CODES)
@click.argument("groups", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_share_groups)
@yes_option
@target_options
def delete(target: Target, groups: tuple[str, ...], yes: bool) -> Exit:
    """Delete share groups that have no members, with their state. Asks first on a terminal."""
    from rayka.cli.attached import kafka
    from rayka.client.kafka.share_groups import KafkaShareGroupAdmin

    names = f"share {'group' if len(groups) == 1 else 'groups'} {', '.join(groups)}"
    confirm(f"Delete {names} with the state of all records?", yes)
    with kafka(target) as cluster:
        KafkaShareGroupAdmin(cluster).delete_groups(groups)
    print(f"Deleted {names}.")
    return Exit.DONE
