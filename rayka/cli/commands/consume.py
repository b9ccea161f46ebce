"""`rayka consume`: records of a topic to standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Subcommands, add_target, command

if TYPE_CHECKING:
    from rayka.client.consumer.consumer import Consumer
    from rayka.client.consumer.records import ConsumerRecord
    from rayka.types import TopicPartition

POLL_MS = 500
POLL_RECORDS = 10_000

EXAMPLES = r"""
where --from begins:
  earliest (default), latest, an offset (42), the last few of each partition (-10),
  a time as 2026-01-31T18:00 (local, or with a zone) or @1769882400000 (milliseconds)

what --format prints: %s value, %S its length, %k key, %K its length, %t topic, %p partition, %o offset,
  %T timestamp in milliseconds, %h headers, %% percent; \n \t \0 \xHH. Default: '%s\n'.

examples:
  rayka consume events                                    everything there is, value by value
  rayka consume events --follow --from latest             what comes from now on, until Ctrl-C
  rayka consume events --partition 0 --from -10           the last ten of one partition
  rayka consume events --from 2026-01-31T18:00 --format '%T %k=%s\n'
  rayka consume events --json | rayka produce copy --json --same-partition
                                                          a faithful copy: keys, headers, timestamps, bytes

Exit codes: 0 done, 1 failed, 2 used wrongly, 3 no such topic or no broker.
"""


def register(commands: Subcommands) -> None:
    """Adds the command to the parser."""
    parser = command(commands, "consume", "print the records of a topic", EXAMPLES, run)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--from", dest="start", metavar="WHERE", default="earliest", help="where to begin, see below")
    parser.add_argument("--partition", metavar="N", type=int, action="append", help="only this one; may be repeated")
    parser.add_argument("--max-messages", metavar="N", type=int, help="stop after so many")
    parser.add_argument("--follow", action="store_true", help="do not stop at the end, wait for more")
    parser.add_argument("--isolation", choices=("read_uncommitted", "read_committed"), default="read_uncommitted")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--format", metavar="TEXT", default=r"%s\n", help="what to print of a record, see below")
    shape.add_argument("--json", action="store_true", help="a JSON line for each record, with everything in it")
    add_target(parser)


def run(args: argparse.Namespace) -> Exit:
    """Prints."""
    from rayka.cli.attached import attached
    from rayka.cli.text.record_text import formatter, to_json

    form: Callable[[ConsumerRecord], bytes] = to_json if args.json else formatter(args.format)
    with attached(args) as cluster, cluster.consumer(isolation_level=args.isolation, fetch_max_wait_ms=100) as consumer:
        partitions = _partitions(consumer, args.topic, args.partition)
        consumer.assign(partitions)
        ends = None if args.follow else consumer.end_offsets(partitions)
        go_to(consumer, partitions, args.start)
        _print(consumer, form, ends, args.max_messages)
    return Exit.DONE


def _partitions(consumer: Consumer, topic: str, wanted: list[int] | None) -> list[TopicPartition]:
    from rayka.types import TopicPartition

    known = consumer.partitions_for_topic(topic)
    if known is None:
        raise CliError(f"there is no topic {topic}", Exit.NOT_FOUND)
    for partition in wanted or ():
        if partition not in known:
            raise CliError(f"{topic} has no partition {partition}; it has {len(known)}", Exit.NOT_FOUND)
    return [TopicPartition(topic, partition) for partition in sorted(wanted or known)]


def go_to(consumer: Consumer, partitions: Iterable[TopicPartition], start: str) -> None:
    """Seeks every partition to what `--from` names. Raises CliError(USAGE) if it names nothing."""
    if start == "earliest":
        consumer.seek_to_beginning()
    elif start == "latest":
        consumer.seek_to_end()
    elif start.isdigit():
        for partition in partitions:
            consumer.seek(partition, int(start))
    elif start[:1] == "-" and start[1:].isdigit():
        first, last = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(partition, max(first[partition], last[partition] + int(start)))
    else:
        _go_to_time(consumer, partitions, start)


def _go_to_time(consumer: Consumer, partitions: Iterable[TopicPartition], start: str) -> None:
    from rayka.cli.text.record_text import parse_time

    timestamp = parse_time(start)
    for partition, found in consumer.offsets_for_times(dict.fromkeys(partitions, timestamp)).items():
        if found is None:
            consumer.seek_to_end(partition)
        else:
            consumer.seek(partition, found.offset)


def _print(
    consumer: Consumer,
    form: Callable[[ConsumerRecord], bytes],
    ends: dict[TopicPartition, int] | None,
    max_messages: int | None,
) -> None:
    """Until every partition is at its end, or so many records are out."""
    from rayka.cli.progress import Progress

    left = sys.maxsize if max_messages is None else max_messages
    total = None if ends is None else sum(max(0, end - consumer.position(at)) for at, end in ends.items())
    out = sys.stdout.buffer
    show = not sys.stdout.isatty()
    with Progress("reading", min(left, total) if total is not None else None) as progress:
        while left > 0 and (ends is None or any(consumer.position(at) < end for at, end in ends.items())):
            for at, records in consumer.poll(POLL_MS, min(left, POLL_RECORDS)).items():
                end = sys.maxsize if ends is None else ends[at]
                wanted = records if records[-1].offset < end else [one for one in records if one.offset < end]
                out.write(b"".join(map(form, wanted)))
                left -= len(wanted)
                if show:
                    progress.add(len(wanted))
            out.flush()
