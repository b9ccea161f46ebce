"""The actions of `rayka groups` on committed offsets: reset, delete, import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.commands.offset_reset import ResetOptions, chosen, reset_of, reset_options, show, topic_option, topics_of
from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import (
    CODES,
    Command,
    Target,
    complete_groups,
    confirm,
    json_option,
    only_one,
    target_options,
    yes_option,
)
from rayka.cli.tables import table
from rayka.cli.text.offset_files import parse_plan, parse_zookeeper_export
from rayka.errors import ErrorCode

if TYPE_CHECKING:
    from rayka.client.kafka.groups import KafkaGroupAdmin
    from rayka.types import TopicPartition

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

Stop the members of the group first: a group with members is refused. An offset outside of the log is replaced by
the nearest one in it; a time after the last record by the end. A file has lines of TOPIC,PARTITION,OFFSET, as --export
writes them.
"""
IMPORT = """\
examples:
  rayka groups import-offsets offsets.txt --dry-run    what it would do
  rayka groups import-offsets offsets.txt --group billing

The file is the output of kafka.tools.ExportZkOffsets of an old Kafka that kept offsets in ZooKeeper:
  /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET      (in 0.7 BROKER-PARTITION)
Offsets of Kafka 0.7 count bytes: first replace them with offsets of records.
Stop the members of the group first: a group with members is refused. The topics must exist. An offset outside of a log
is replaced by the nearest one in it.
"""
DELETE = """\
examples:
  rayka groups delete-offsets billing --topic old-events
  rayka groups delete-offsets billing --topic events:0,2

The command refuses a topic that members of the group still read.
"""
_SUCCESSFUL = "Successful"


@click.command("reset-offsets", cls=Command, epilog=RESET + CODES)
@click.argument("group", shell_complete=complete_groups)
@reset_options(
    "All topics that the group has committed offsets for.",
    "Commit the new offsets.",
    "Print TOPIC,PARTITION,OFFSET for --from-file.",
    click.option("--to-current", is_flag=True, help="To the committed offset, else to the end; for --export."),
    click.option("--shift-by", metavar="N", type=int, help="Forward or, with a minus sign, back."),
    click.option("--from-file", metavar="FILE", help="To the offsets in a file; `-` is standard input."),
)
@target_options
def reset_offsets(target: Target, group: str, from_file: str | None, **given: Any) -> Exit:
    """Move a group's committed offsets. Shows what it would do; --execute does it."""
    options = ResetOptions.check(**given)
    if bool(from_file) is bool(options.topic or options.all_topics):
        raise CliError("give --topic, --all-topics or --from-file", Exit.USAGE)
    change = _change_of(group, from_file, options)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.groups import KafkaGroupAdmin

    with kafka(target) as cluster:
        return options.run(group, partial(change, KafkaGroupAdmin(cluster)))


def _change_of(
    group: str, from_file: str | None, options: ResetOptions
) -> Callable[[KafkaGroupAdmin, bool], dict[TopicPartition, int]]:
    """What to ask of the admin, after everything that can be wrong with the options. Raises CliError."""
    if from_file:
        only_one(from_file=from_file, **chosen(options.where))
        plan = parse_plan(_lines(from_file), group)
        return lambda admin, dry_run: admin.set_offsets(group, plan, dry_run=dry_run)
    reset, topics = reset_of(options.where), options.topics
    return lambda admin, dry_run: admin.reset_offsets(group, reset, topics, dry_run=dry_run)


@click.command("delete-offsets", cls=Command, epilog=DELETE + CODES)
@click.argument("group", shell_complete=complete_groups)
@topic_option(required=True)
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
    rows = [
        (*partition, _SUCCESSFUL if error is ErrorCode.NONE else f"Error: {error.name}")
        for partition, error in outcomes.items()
    ]
    print(table(STATUS_COLUMNS, rows))
    if remark := remark_on_deletion(group, outcomes):
        print(f"rayka: {remark}", file=sys.stderr)
    return Exit.FAILED if any(outcomes.values()) else Exit.DONE


def remark_on_deletion(group: str, outcomes: Mapping[TopicPartition, ErrorCode]) -> str | None:
    """What a person should know of offsets that could not be deleted, beyond the names of the errors."""
    read = {each.topic for each, error in outcomes.items() if error is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    if not read:
        return None
    return (
        f"members of group {group} still read {', '.join(sorted(read))}, and would commit these offsets again: "
        "stop the members, or let them unsubscribe, and repeat the command"
    )


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
    show(new, as_json=as_json)
    moved = sum(
        offset != groups[name][partition] for name, offsets in new.items() for partition, offset in offsets.items()
    )
    if moved:
        print(f"rayka: {moved} offsets were beyond the ends of their logs", file=sys.stderr)
    return Exit.DONE


def _lines(path: str) -> list[str]:
    """Raises CliError if the file cannot be read."""
    try:
        return (sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")).splitlines()
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", Exit.USAGE) from None
    except UnicodeDecodeError:
        raise CliError(f"cannot read {path}: it is not a text file in UTF-8", Exit.USAGE) from None
