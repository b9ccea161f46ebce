"""`rayka transactions`: shows transactions, finds hanging ones, and aborts one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from rayka.cli.commands.groups import chosen
from rayka.cli.commands.offset_reset import topics_of
from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import (
    CODES,
    Group,
    Target,
    complete_topics,
    confirm,
    json_option,
    target_options,
    yes_option,
)
from rayka.cli.tables import print_list
from rayka.cli.text.group_tables import flat_fields
from rayka.cli.text.transaction_tables import describe_text, description_fields, list_text, producers_text
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition

if TYPE_CHECKING:
    from rayka.client.kafka.cluster import KafkaCluster
    from rayka.client.kafka.transactions import KafkaTransactionAdmin, ProducerDescription, TransactionDescription

EXAMPLES = """\
examples:
  rayka transactions list                              every transactional id
  rayka transactions list --state Ongoing --longer-than 60
                                                       those with a transaction open for over a minute
  rayka transactions describe copier                   its open transaction and the partitions in it
  rayka transactions describe --topic orders --open    transactions that hold up read_committed consumers of a topic
  rayka transactions hanging                           open transactions that will never end, and how to abort them
  rayka transactions abort --topic orders --partition 0 --start-offset 42
"""
LIST = """\
examples:
  rayka transactions list
  rayka transactions list --state Ongoing --state PrepareCommit
  rayka transactions list --pattern 'copier-.*' --longer-than 60

States: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit and CompleteAbort.
"""
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
DESCRIBE = """\
examples:
  rayka transactions describe copier
  rayka transactions describe --topic orders
  rayka transactions describe --topic orders:0,2 --open

A read_committed consumer reads a partition only up to the START-OFFSET of its oldest open transaction.
"""
HANGING = """\
examples:
  rayka transactions hanging
  rayka transactions hanging --topic orders --max-transaction-timeout 60

A transaction hangs if it is open in a partition but its coordinator does not know it there: it never ends by itself.
A producer that wrote within --max-transaction-timeout may still be working, so its transaction is skipped. For the
transactions that a coordinator knows, see `rayka transactions list --state Ongoing`.
"""
ABORT = """\
examples:
  rayka transactions abort --topic orders --partition 0 --start-offset 42

The command writes an abort marker to this partition only, and does not tell the coordinator. So abort only transactions
that hang. A transaction that a coordinator knows ends after its timeout, or when a new producer with its transactional
id starts.
"""


@click.group("transactions", cls=Group, epilog=EXAMPLES + CODES)
def command() -> None:
    """Show transactions, find those that hang, abort one."""


@command.command("list", epilog=LIST + CODES)
@click.option("--state", metavar="STATE", multiple=True, help="Only in this state; may be repeated.")
@click.option("--producer-id", metavar="ID", type=int, multiple=True, help="Only of this producer; may be repeated.")
@click.option("--longer-than", metavar="SECONDS", type=click.FloatRange(min=0), help="Only if open for longer.")
@click.option("--pattern", metavar="PATTERN", help="Only ids that match this regular expression (RE2) as a whole.")
@json_option("One JSON object for each transactional id.")
@target_options
def list_(
    target: Target,
    state: tuple[str, ...],
    producer_id: tuple[int, ...],
    longer_than: float | None,
    pattern: str | None,
    as_json: bool,
) -> Exit:
    """List transactional ids with their states."""
    states = chosen(",".join(state), STATES, "--state")
    duration_ms = -1 if longer_than is None else round(longer_than * 1000)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.transactions import KafkaTransactionAdmin

    with kafka(target) as cluster:
        listed = KafkaTransactionAdmin(cluster).list_transactions(states, producer_id, duration_ms, pattern)
    if as_json:
        for one in listed:
            print(json.dumps(one._asdict()))
    else:
        print_list(list_text(listed) if listed else "", "there are no such transactional ids")
    return Exit.DONE


@command.command("describe", epilog=DESCRIBE + CODES)
@click.argument("transactional_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--topic",
    metavar="TOPIC[:N,N]",
    multiple=True,
    shell_complete=complete_topics,
    help="The producers of a topic's partitions instead; may be repeated.",
)
@click.option("--open", "is_open", is_flag=True, help="With --topic: only producers with an open transaction.")
@json_option("One JSON object for each transactional id or producer.")
@target_options
def describe(
    target: Target, transactional_ids: tuple[str, ...], topic: tuple[str, ...], is_open: bool, as_json: bool
) -> Exit:
    """Show the open transactions of transactional ids, or what partitions know of their producers."""
    if bool(transactional_ids) == bool(topic):
        wrong = "not both" if topic else "`rayka transactions list` shows the ids"
        raise CliError(f"give transactional ids, or --topic; {wrong}", Exit.USAGE)
    if is_open and not topic:
        raise CliError("--open needs --topic", Exit.USAGE)
    topics = topics_of(topic)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.transactions import KafkaTransactionAdmin

    now_ms = time.time_ns() // 1_000_000
    with kafka(target) as cluster:
        admin = KafkaTransactionAdmin(cluster)
        if topics:
            found = admin.active_producers(_partitions(cluster, topics)).values()
            producers = [one for each in found for one in each if one.start_offset is not None or not is_open]
            what = "open transaction" if is_open else "producer"
            _print_producers(producers, as_json, f"there is no {what} in {', '.join(topic)}")
            return Exit.DONE
        described = [_described(admin, each) for each in transactional_ids]
    if as_json:
        for one in described:
            print(json.dumps(description_fields(one)))
    else:
        print("\n\n".join(describe_text(one, now_ms) for one in described))
    return Exit.DONE


@command.command("hanging", epilog=HANGING + CODES)
@click.option(
    "--topic",
    metavar="TOPIC[:N,N]",
    multiple=True,
    shell_complete=complete_topics,
    help="Only in this topic, or partitions of it; may be repeated.",
)
@click.option(
    "--max-transaction-timeout",
    metavar="MINUTES",
    type=click.FloatRange(min=0),
    default=15,
    show_default=True,
    help="Only where the producer has written nothing for this long; the brokers' transaction.max.timeout.ms.",
)
@json_option("One JSON object for each transaction.")
@target_options
def hanging(target: Target, topic: tuple[str, ...], max_transaction_timeout: float, as_json: bool) -> Exit:
    """Find open transactions that no coordinator knows, and show the commands that abort them."""
    topics = topics_of(topic)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.transactions import KafkaTransactionAdmin

    with kafka(target) as cluster:
        partitions = _partitions(cluster, topics or dict.fromkeys(sorted(cluster.metadata(None).topics)))
        found = KafkaTransactionAdmin(cluster).hanging_transactions(partitions, round(max_transaction_timeout * 60_000))
    _print_producers(found, as_json, "no transaction hangs")
    if found and not as_json:
        print()
        for one in found:
            name, number = one.topic_partition
            place = f"--topic {name} --partition {number} --start-offset {one.start_offset}"
            print(f"rayka transactions abort {place}")
    return Exit.DONE


@command.command("abort", epilog=ABORT + CODES)
@click.option("--topic", metavar="TOPIC", required=True, shell_complete=complete_topics, help="The topic.")
@click.option("--partition", metavar="N", type=int, required=True, help="The partition.")
@click.option(
    "--start-offset", metavar="OFFSET", type=int, required=True, help="Where the transaction begins in the partition."
)
@yes_option
@target_options
def abort(target: Target, topic: str, partition: int, start_offset: int, yes: bool) -> Exit:
    """Abort a transaction in one partition. Asks first on a terminal."""
    from rayka.cli.attached import kafka
    from rayka.client.kafka.transactions import KafkaTransactionAdmin

    topic_partition = TopicPartition(topic, partition)
    with kafka(target) as cluster:
        admin = KafkaTransactionAdmin(cluster)
        opened = _open_at(admin, topic_partition, start_offset)
        confirm(f"Abort the transaction of producer {opened.producer_id} in {topic_partition}?", yes)
        admin.abort(opened)
    print(f"Aborted the transaction of producer {opened.producer_id} in {topic_partition}.")
    return Exit.DONE


def _described(admin: KafkaTransactionAdmin, transactional_id: str) -> TransactionDescription:
    try:
        return admin.describe_transaction(transactional_id)
    except RaykaError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        text = f"{error.code.name}: no transactional id {transactional_id}; `rayka transactions list` shows them"
        raise CliError(text, Exit.NOT_FOUND) from None


def _open_at(admin: KafkaTransactionAdmin, topic_partition: TopicPartition, start_offset: int) -> ProducerDescription:
    for one in admin.active_producers([topic_partition])[topic_partition]:
        if one.start_offset == start_offset:
            return one
    described = f"`rayka transactions describe --topic {topic_partition.topic} --open` shows them"
    raise CliError(
        f"no open transaction of {topic_partition} begins at offset {start_offset}; {described}", Exit.NOT_FOUND
    )


def _partitions(cluster: KafkaCluster, topics: Mapping[str, Iterable[int] | None]) -> list[TopicPartition]:
    from rayka.cli.kafka.offsets import partitions_of

    return [
        topic_partition
        for topic, numbers in topics.items()
        for topic_partition in partitions_of(cluster, topic, tuple(numbers or ()))
    ]


def _print_producers(producers: Sequence[ProducerDescription], as_json: bool, nothing: str) -> None:
    if as_json:
        for one in producers:
            print(json.dumps(flat_fields(one)))
    else:
        print_list(producers_text(producers) if producers else "", nothing)
