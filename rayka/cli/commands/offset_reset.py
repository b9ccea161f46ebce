"""What `rayka groups reset-offsets` and `rayka share-groups reset-offsets` have in common."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import F, complete_topics, json_option, only_one
from rayka.cli.tables import table
from rayka.cli.text.offset_files import plan_lines
from rayka.types import is_number

if TYPE_CHECKING:
    from rayka.client.admin.group_offsets import OffsetReset
    from rayka.types import TopicPartition

NEW_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
_DURATION = re.compile(
    r"P(?=.)(?:(?P<d>\d+)D)?(?:T(?=.)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d{1,9})?)S)?)?", re.ASCII
)
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
Change = Callable[[bool], Mapping["TopicPartition", int]]
"""Computes the new offsets, and sets them unless it is a dry run."""


def topic_option(*, required: bool = False) -> Callable[[F], F]:
    """Add --topic, which `topics_of` reads."""
    return click.option(
        "--topic", metavar="TOPIC[:N,N]", multiple=True, required=required, shell_complete=complete_topics,
        help="A topic, or partitions of it; may be repeated.",
    )  # fmt: skip


def reset_options(all_topics: str, execute: str, export: str, *more: Callable[[Any], Any]) -> Callable[[F], F]:
    """Add the options of a reset, with the help of some of them; `more` say where to as well."""
    options: Sequence[Callable[[Any], Any]] = (
        click.option("--to-earliest", is_flag=True, help="To the first record of each partition."),
        click.option("--to-latest", is_flag=True, help="To the end of each partition."),
        click.option("--to-offset", metavar="OFFSET", type=int, help="To this offset."),
        click.option(
            "--to-datetime", metavar="TIME", help="2026-01-31T18:00 (local, or with a zone) or @MILLISECONDS."
        ),
        click.option("--by-duration", metavar="PnDTnHnMnS", help="This long before now."),
        *more,
        topic_option(),
        click.option("--all-topics", is_flag=True, help=all_topics),
        click.option("--dry-run", is_flag=True, help="Only show the new offsets (the default)."),
        click.option("--execute", is_flag=True, help=execute),
        click.option("--export", is_flag=True, help=export),
        json_option("One JSON object for each partition."),
    )

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


@dataclass(frozen=True, slots=True)
class ResetOptions:
    """The options that `reset_options` adds; `where` are those that say where to."""

    topic: tuple[str, ...]
    all_topics: bool
    dry_run: bool
    execute: bool
    export: bool
    as_json: bool
    where: Mapping[str, Any]

    @classmethod
    def check(cls, **given: Any) -> ResetOptions:
        """Raises CliError(USAGE) for options that contradict each other."""
        names = [field.name for field in dataclasses.fields(cls)]
        where = {name: value for name, value in given.items() if name not in names}
        options = cls(**{name: given[name] for name in names if name in given}, where=where)
        only_one(topic=options.topic, all_topics=options.all_topics)
        only_one(dry_run=options.dry_run, execute=options.execute)
        only_one(export=options.export, json=options.as_json)
        return options

    @property
    def topics(self) -> dict[str, list[int] | None] | None:
        """The topics; None for all. Raises CliError(USAGE)."""
        return topics_of(self.topic) if self.topic else None

    def run(self, group: str, change: Change) -> Exit:
        """Carry out the reset and print the new offsets."""
        offsets = change(not self.execute)
        if self.export:
            csv.writer(sys.stdout, lineterminator="\n").writerows(plan_lines(offsets))
        else:
            show({group: offsets}, as_json=self.as_json)
        if not self.execute and not self.dry_run and not self.export:
            print("rayka: nothing was changed; add --execute to apply this", file=sys.stderr)
        return Exit.DONE


def show(groups: Mapping[str, Mapping[TopicPartition, int]], *, as_json: bool) -> None:
    """Print the new offsets of groups."""
    rows = [(group, *partition, offset) for group, offsets in groups.items() for partition, offset in offsets.items()]
    if not as_json:
        print(table(NEW_COLUMNS, rows))
        return
    for group, topic, partition, offset in rows:
        print(json.dumps({"group": group, "topic": topic, "partition": partition, "new_offset": offset}))


def chosen(where: Mapping[str, Any]) -> dict[str, bool]:
    """Which of the options that say where to are given; 0 is an offset too."""
    return {name: value is not None and value is not False for name, value in where.items()}


def reset_of(where: Mapping[str, Any], now_ms: int | None = None) -> OffsetReset:
    """Where the options lead: exactly one of them is set. Raises CliError(USAGE)."""
    from rayka.cli.text.record_text import parse_time
    from rayka.client.admin.group_offsets import OffsetReset

    only_one(**chosen(where))
    given = [name for name, is_set in chosen(where).items() if is_set]
    if not given:
        raise CliError("give the new offsets: --to-earliest, --to-latest, --to-offset ... (see --help)", Exit.USAGE)
    value = where[given[0]]
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
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

    Raises CliError(USAGE) for partitions that are not numbers.
    """
    topics: dict[str, list[int] | None] = {}
    for word in words:
        topic, colon, numbers = word.partition(":")
        parts = numbers.split(",")
        if not topic or (colon and not all(map(is_number, parts))):
            raise CliError(f"--topic {word!r} is not of the form TOPIC or TOPIC:N,N", Exit.USAGE)
        known = topics.get(topic, [])
        topics[topic] = None if known is None or not colon else known + [int(part) for part in parts]
    return topics
