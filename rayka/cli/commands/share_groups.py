"""`rayka share-groups`: members, lag and record states of share groups, and moving their offsets."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.commands.offset_reset import ResetOptions, reset_of, reset_options
from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import (
    CODES,
    Group,
    Target,
    complete_share_groups,
    confirm,
    json_option,
    only_one,
    target_options,
    yes_option,
)
from rayka.cli.tables import print_list
from rayka.cli.text.group_tables import list_text
from rayka.cli.text.share_group_tables import (
    batches_text,
    in_flight_text,
    members_text,
    offsets_text,
    share_group_fields,
    state_text,
)

if TYPE_CHECKING:
    from rayka.client.kafka.share_groups import KafkaShareGroupAdmin, ShareBatch, ShareOffset

_NO_GROUPS = "there are no share groups"
EXAMPLES = """\
examples:
  rayka share-groups list --state                      with state
  rayka share-groups describe jobs                     start offset and lag of every partition
  rayka share-groups describe jobs --members           who reads which partitions
  rayka share-groups describe jobs --records           which records are acknowledged, and deliveries of the others
  rayka share-groups describe jobs --in-flight         who has which record, and for how long
  rayka share-groups reset-offsets jobs --topic tasks --to-earliest
                                                       what it would do; add --execute to do it
  rayka share-groups delete jobs
  rayka configs set --group jobs share.auto.offset.reset=earliest
                                                       let a new group start with the first records
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
  rayka share-groups describe jobs --in-flight

--records works with any broker, rayka or Kafka, but does not show which records are acquired. --in-flight does; it asks
rayka's actors through Ray.
Records before the START-OFFSET of a partition are not delivered again. From there on --records shows ranges of records:
  Available     waits for its first or next delivery
  Acquired      locked for a consumer
  Acknowledged  accepted
  Archiving     rejected or delivered too often, not yet written to the dead-letter topic
  Archived      rejected or delivered too often
"""
DELETE = """\
examples:
  rayka share-groups delete jobs
  rayka share-groups delete jobs mails --yes

A group that a rayka.Queue reads is refused too. After its program was killed, that is so until the locks have ended.
"""
RESET = """\
examples:
  rayka share-groups reset-offsets jobs --all-topics --to-latest --execute
  rayka share-groups reset-offsets jobs --topic tasks:0,2 --to-offset 1000 --execute
  rayka share-groups reset-offsets jobs --topic tasks --by-duration PT1H30M

Stop the members of the group first: a group with members is refused, and so is one that a rayka.Queue reads. Records
from the new start offset on are delivered again, also those that were acknowledged.
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
    if as_json:
        for group in groups:
            print(json.dumps({"group": group.group_id, "type": group.group_type, "state": group.group_state}))
    else:
        print_list(list_text(groups, types=False, states=state), _NO_GROUPS)
    return Exit.DONE


@command.command("describe", epilog=DESCRIBE + CODES)
@click.argument("groups", metavar="[GROUP]...", nargs=-1, shell_complete=complete_share_groups)
@click.option("--offsets", is_flag=True, help="Start offsets and lag (the default).")
@click.option("--members", is_flag=True, help="The members, with their clients and partitions.")
@click.option("--state", is_flag=True, help="State and coordinator.")
@click.option("--records", is_flag=True, help="States and deliveries of records from the start offsets on.")
@click.option("--in-flight", is_flag=True, help="As --records, and which member has which record.")
@click.option("--verbose", is_flag=True, help="Add epochs.")
@json_option("One JSON object for each group.")
@target_options
def describe(target: Target, groups: tuple[str, ...], verbose: bool, as_json: bool, **views: bool) -> Exit:
    """Show offsets and lag, members, states or records; of all share groups if none is named."""
    only_one(**views)
    view = next((name for name, is_chosen in views.items() if is_chosen), "offsets")
    if view == "in_flight":
        return _describe_in_flight(target, groups, as_json=as_json)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.share_groups import KafkaShareGroupAdmin

    with kafka(target) as cluster:
        admin = KafkaShareGroupAdmin(cluster)
        for number, name in enumerate(_named(groups or [group.group_id for group in admin.list_groups()])):
            if as_json:
                print(json.dumps(_fields(admin, name)))
            else:
                print(("\n" if number else "") + _text(admin, name, view, verbose=verbose))
    return Exit.DONE


def _named(names: Sequence[str]) -> Sequence[str]:
    """The groups to describe; says so if there are none."""
    if not names:
        print_list("", _NO_GROUPS)
    return names


def _describe_in_flight(target: Target, groups: Sequence[str], *, as_json: bool) -> Exit:
    if target.bootstrap_server is not None:
        raise CliError("--in-flight does not work with --bootstrap-server: give --address or --data-dir", Exit.USAGE)
    from rayka.cli.attached import connected
    from rayka.client.admin.admin import AsyncAdmin
    from rayka.client.admin.share_records import COLUMNS, share_records

    with connected(target) as connection:
        ask = AsyncAdmin(connection.broker, connection.loop.loop)
        names = groups or [group.group_id for group in connection.loop.run(ask.list_groups(types=("share",)))]
        for number, name in enumerate(_named(names)):
            rows = connection.loop.run(share_records(connection.broker, name))
            if as_json:
                print(json.dumps({"group": name, "in_flight": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}))
            else:
                print(("\n" if number else "") + in_flight_text(name, rows))
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
@reset_options("All topics that the group has read.", "Set the new offsets.", "Print TOPIC,PARTITION,OFFSET.")
@target_options
def reset_offsets(target: Target, group: str, **given: Any) -> Exit:
    """Move a share group's start offsets. Shows what it would do; --execute does it."""
    options = ResetOptions.check(**given)
    if not options.topic and not options.all_topics:
        raise CliError("give --topic or --all-topics", Exit.USAGE)
    reset, topics = reset_of(options.where), options.topics
    from rayka.cli.attached import kafka
    from rayka.client.kafka.share_groups import KafkaShareGroupAdmin

    with kafka(target) as cluster:
        admin = KafkaShareGroupAdmin(cluster)
        return options.run(group, lambda dry_run: admin.reset_offsets(group, reset, topics, dry_run=dry_run))


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
