"""`rayka produce`: lines to records."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Subcommands, add_target, command

if TYPE_CHECKING:
    from rayka.cli.text.record_text import Outgoing
    from rayka.client.producer.producer import Producer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

EXAMPLES = """\
examples:
  echo hello | rayka produce events                       a record for each line
  rayka produce events words.txt --codec zstd
  rayka produce users --key-separator : < users.txt       alice:admin is key alice, value admin
  rayka produce events --header source=cron --header host=$(hostname) < lines.txt
  rayka produce events --json < records.jsonl             {"key": "k", "value": "v", "headers": [["h", "1"]]}

JSON lines may carry key, value, headers, partition and timestamp (milliseconds); null is null, bytes that are
not text are {"base64": "..."}, anything else becomes its JSON. Records are acknowledged by all in-sync replicas
(acks=all, idempotent); the command ends when the last one is.
Exit codes: 0 everything acknowledged, 1 something was not, 2 used wrongly, 3 no such topic or no broker.
"""


def register(commands: Subcommands) -> None:
    """Adds the command to the parser."""
    parser = command(commands, "produce", "write lines to a topic", EXAMPLES, run)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("file", metavar="FILE", nargs="?", help="instead of standard input")
    parser.add_argument("--key-separator", metavar="TEXT", help="what stands between key and value on a line")
    parser.add_argument("--header", metavar="NAME=VALUE", action="append", default=[], help="for every record")
    parser.add_argument("--partition", metavar="N", type=int, help="instead of choosing by key")
    parser.add_argument("--codec", choices=CODECS, default="none", help="compression (default none)")
    parser.add_argument("--json", action="store_true", help="each line is a JSON object, see below")
    parser.add_argument("--same-partition", action="store_true", help="with --json: use the partition that it names")
    add_target(parser)


def run(args: argparse.Namespace) -> Exit:
    """Produces."""
    from rayka.cli.attached import attached

    if args.json and args.key_separator:
        raise CliError("--json and --key-separator exclude each other", Exit.USAGE)
    if args.same_partition and not args.json:
        raise CliError("--same-partition needs --json", Exit.USAGE)
    if args.key_separator == "":
        raise CliError("--key-separator is empty", Exit.USAGE)
    compression = None if args.codec == "none" else args.codec
    with (
        _opened(args.file) as file,
        attached(args) as cluster,
        cluster.producer(compression_type=compression, linger_ms=5) as producer,
    ):
        return _send_all(producer, args, file)


def _opened(path: str | None) -> BinaryIO:
    try:
        return open(sys.stdin.fileno() if path is None else path, "rb", closefd=path is not None)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", Exit.USAGE) from None


def _send_all(producer: Producer, args: argparse.Namespace, file: BinaryIO) -> Exit:
    """Sends every line and waits for the last acknowledgement. Raises CliError at the first that fails."""
    from rayka.cli.progress import Progress

    failures: list[Exception] = []
    size = os.fstat(file.fileno()).st_size
    with Progress("writing", size or None, "bytes") as progress:
        for record, line_bytes in _records(args, file):
            partition = args.partition if record.partition is None else record.partition
            future = producer.send(args.topic, record.value, record.key, record.headers, record.timestamp, partition)
            future.add_errback(failures.append)
            progress.add(line_bytes)
            if failures:
                break
        producer.flush()
    if failures:
        raise CliError(f"not acknowledged: {failures[0]}")
    return Exit.DONE


def _records(args: argparse.Namespace, file: BinaryIO) -> Iterator[tuple[Outgoing, int]]:
    """The records of the lines, each with the bytes that it took."""
    from rayka.cli.text.record_text import from_json, parse_pairs

    headers = tuple(parse_pairs(args.header).items())
    parse = from_json if args.json else _key_and_value(args.key_separator)
    for number, line in enumerate(file, 1):
        record = parse(line.removesuffix(b"\n"), number)
        if not args.same_partition:
            record = record._replace(partition=None)
        if headers:
            record = record._replace(headers=(*record.headers, *headers))
        yield record, len(line)


def _key_and_value(separator: str | None) -> Callable[[bytes, int], Outgoing]:
    from rayka.cli.text.record_text import Outgoing

    if separator is None:
        return lambda line, number: Outgoing(None, line)
    between = separator.encode("utf-8", "surrogateescape")

    def split(line: bytes, number: int) -> Outgoing:
        key, found, value = line.partition(between)
        if not found:
            raise CliError(f"line {number} has no {separator!r} between key and value")
        return Outgoing(key, value)

    return split
