"""`rayka produce`: lines to records."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Command, Target, complete_topics, target_options

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from rayka.cli.text.record_text import Outgoing
    from rayka.client.kafka.cluster import KafkaCluster
    from rayka.client.kafka.values import Metadata

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_MAX_RECORD_BYTES = 1_000_000_000  # the broker decides
_DELIVERY_TIMEOUT_MS = 120_000

EXAMPLES = """\
examples:
  echo hello | rayka produce events                       a record for each line
  rayka produce events words.txt --codec zstd
  rayka produce users --key-separator : < users.txt       alice:admin is key alice, value admin
  rayka produce events --header source=cron --header host=$(hostname) < lines.txt
  rayka produce events --json < records.jsonl             {"key": "k", "value": "v", "headers": [["h", "1"]]}

JSON lines may have key, value, headers, partition and timestamp (milliseconds); null is null, bytes that are
not text are {"base64": "..."}, anything else becomes its JSON. topic and offset are ignored, other names refused.
Records are acknowledged by all in-sync replicas (acks=all, idempotent); the command ends when all are acknowledged. A
line that is no record ends it too: the lines before are written, and it says how many.
A topic that does not exist is created, and a line on standard error says so, unless the broker has
auto.create.topics.enable=false.
Exit codes: 0 all records acknowledged, 1 not all, 2 wrong usage, 3 no such topic and none is created, or no broker.
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """How lines become records."""

    key_separator: str | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    as_json: bool
    same_partition: bool


@click.command("produce", cls=Command, epilog=EXAMPLES)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("file", required=False)
@click.option("--key-separator", metavar="TEXT", help="The text between key and value on a line.")
@click.option("--header", metavar="NAME=VALUE", multiple=True, help="A header of every record; may be repeated.")
@click.option("--partition", metavar="N", type=int, help="Send to this partition; default: chosen by key.")
@click.option("--codec", type=click.Choice(CODECS), default="none", show_default=True, help="Compression.")
@click.option("--json", "as_json", is_flag=True, help="Each line is a JSON object, see below.")
@click.option("--same-partition", is_flag=True, help="With --json: use the partition that it names.")
@target_options
def command(
    target: Target,
    topic: str,
    file: str | None,
    key_separator: str | None,
    header: Sequence[str],
    partition: int | None,
    codec: str,
    as_json: bool,
    same_partition: bool,
) -> Exit:
    """Write the lines of standard input, or of FILE, to a topic."""
    _check(key_separator, as_json, same_partition)
    from rayka.cli.attached import kafka
    from rayka.cli.tables import plural
    from rayka.cli.text.record_text import parse_pairs
    from rayka.client.kafka.cluster import existing
    from rayka.types import TopicPartition

    shape = Shape(key_separator, tuple(parse_pairs(header).items()), partition, as_json, same_partition)
    with _opened(file) as lines, kafka(target) as cluster:
        metadata = _metadata(cluster, topic)
        if partition is not None:
            existing(metadata, TopicPartition(topic, partition))
        count = _send_all(_producer(cluster.bootstrap_servers, codec), topic, lines, shape)
    print(f"Wrote {plural(count, 'record')} to {topic}.")
    return Exit.DONE


def _check(key_separator: str | None, as_json: bool, same_partition: bool) -> None:
    if as_json and key_separator:
        raise CliError("--json and --key-separator cannot be used together", Exit.USAGE)
    if same_partition and not as_json:
        raise CliError("--same-partition needs --json", Exit.USAGE)
    if key_separator == "":
        raise CliError("--key-separator is empty", Exit.USAGE)


def _metadata(cluster: KafkaCluster, topic: str) -> Metadata:
    """The topic, which is created if the broker creates topics for clients; says so on standard error.

    Raises UNKNOWN_TOPIC_OR_PARTITION if it does not.
    """
    from rayka.errors import ErrorCode, RaykaError

    try:
        return cluster.metadata([topic])
    except RaykaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    metadata = cluster.metadata([topic], create=True)
    print(f"rayka: created topic {topic}", file=sys.stderr)
    return metadata


def _opened(path: str | None) -> BinaryIO:
    try:
        return open(sys.stdin.fileno() if path is None else path, "rb", closefd=path is not None)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", Exit.USAGE) from None


def _producer(bootstrap_servers: str, codec: str) -> Producer:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "rayka",
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
            "partitioner": "murmur2_random",  # as Kafka's own producer
            "message.max.bytes": _MAX_RECORD_BYTES,
            "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
            "log_level": 0,
        }
    )


def _send_all(producer: Producer, topic: str, file: BinaryIO, shape: Shape) -> int:
    """Send every line and wait for the last acknowledgement; return how many. Raises CliError at the first failure."""
    from rayka.cli.progress import ProgressBar
    from rayka.cli.tables import plural

    failures: list[str] = []
    count = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal count
        if error is not None:
            failures.append(_failure(error, message))
        else:
            count += 1

    size = os.fstat(file.fileno()).st_size
    with ProgressBar("writing", size or None, "bytes") as progress:
        try:
            for record, line_bytes in _records(file, shape):
                _send(producer, topic, record, shape.partition, delivered)
                progress.add(line_bytes)
                if failures:
                    break
        except CliError as error:
            producer.flush()
            written = f"{plural(count, 'record')} before it {'was' if count == 1 else 'were'} written"
            refused = f"{failures[0]}; " if failures else ""
            raise CliError(f"{refused}{error.message}; {written}", error.exit_code) from None
        producer.flush()
    if failures:
        raise CliError(failures[0])
    return count


def _failure(error: Any, message: Any) -> str:
    """Which record the broker or the client refused, and why."""
    from confluent_kafka import KafkaError

    number = message.partition()
    where = message.topic() if number is None or number < 0 else f"{message.topic()}-{number}"
    hint = "; the topic's max.message.bytes is the limit" if error.code() == KafkaError.MSG_SIZE_TOO_LARGE else ""
    return f"a record for {where} was not acknowledged: {error.str()}{hint}"


def _send(producer: Producer, topic: str, record: Outgoing, partition: int | None, delivered: Any) -> None:
    """Hand a record to the producer, and wait while its queue is full."""
    partition = partition if record.partition is None else record.partition
    options: dict[str, Any] = {} if record.timestamp is None else {"timestamp": record.timestamp}
    options |= {} if partition is None else {"partition": partition}
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, headers=list(record.headers), on_delivery=delivered, **options
            )
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


def _records(file: BinaryIO, shape: Shape) -> Iterator[tuple[Outgoing, int]]:
    """The records of the lines, each with the bytes that it took."""
    from rayka.cli.text.record_text import from_json

    parse = from_json if shape.as_json else _key_and_value(shape.key_separator)
    for number, line in enumerate(file, 1):
        record = parse(line.removesuffix(b"\n"), number)
        if not shape.same_partition:
            record = record._replace(partition=None)
        if shape.headers:
            record = record._replace(headers=(*record.headers, *shape.headers))
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
