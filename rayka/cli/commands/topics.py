"""`rayka topics`: create, list, describe, alter and delete topics; delete records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

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
from rayka.cli.tables import plural, print_list, table
from rayka.cli.text.properties import parse_assignments

if TYPE_CHECKING:
    from rayka.client.kafka.values import TopicDescription
    from rayka.types import TopicPartition

TOPICS = """\
examples:
  rayka topics create events --partitions 4 --config retention.ms=86400000
  rayka topics list
  rayka topics describe events
  rayka topics alter events --partitions 8 --config retention.ms=3600000 --delete-config cleanup.policy
  rayka topics delete-records events --before 1000
  rayka topics delete events
"""
CREATE = """\
examples:
  rayka topics create events                          with the broker's num.partitions
  rayka topics create events clicks --partitions 4
  rayka topics create users --config cleanup.policy=compact --if-not-exists
  rayka topics create history --config remote.storage.enable=true --config local.retention.ms=7200000
                                                      tiered: needs a broker with a remote store, see `rayka up --help`
"""
LIST = """\
examples:
  rayka topics list                   a name on each line
  rayka topics list --internal        __consumer_offsets too
  rayka topics list --json
"""
DESCRIBE = """\
examples:
  rayka topics describe               every topic
  rayka topics describe events clicks
  rayka topics describe events --json | jq .
"""
ALTER = """\
examples:
  rayka topics alter events --partitions 8
  rayka topics alter events --config retention.ms=3600000 --delete-config cleanup.policy

Partitions can be added, not removed. Afterwards records with a key may go to another partition than before.
"""
DELETE = """\
examples:
  rayka topics delete events
  rayka topics delete events clicks --yes
"""
DELETE_RECORDS = """\
examples:
  rayka topics delete-records events --before 1000                every partition
  rayka topics delete-records events --before 2026-01-31T18:00    records older than that
  rayka topics delete-records events --before latest --partition 3

--before takes an offset, `latest` (all records there are), or a time: 2026-01-31T18:00 (local, or with a zone) or
@MILLISECONDS. Partitions whose first record is later are not changed.
"""
_config = click.option("--config", metavar="NAME=VALUE", multiple=True, help="A setting; may be repeated.")
_topics = click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
_topic = click.argument("topic", shell_complete=complete_topics)


@click.group("topics", cls=Group, epilog=TOPICS + CODES)
def command() -> None:
    """Create, list, describe, alter and delete topics; delete records."""


@command.command("create", epilog=CREATE + CODES)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--partitions", metavar="N", type=int, default=-1, help="Default: num.partitions of the broker.")
@click.option("--replication-factor", metavar="N", type=int, default=-1, help="Default: the broker's.")
@_config
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists.")
@target_options
def create(
    target: Target,
    topics: tuple[str, ...],
    partitions: int,
    replication_factor: int,
    config: tuple[str, ...],
    if_not_exists: bool,
) -> Exit:
    """Create topics."""
    configs = parse_assignments(config)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.admin import KafkaAdmin
    from rayka.errors import ErrorCode, RaykaError

    with kafka(target) as cluster:
        results = KafkaAdmin(cluster).create_topics(topics, partitions, replication_factor, configs)
    failure: RaykaError | None = None
    for result in results:
        if result.error is ErrorCode.NONE:
            print(f"Created topic {result.name} with {plural(result.partitions, 'partition')}.")
        elif result.error is ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            print(f"Topic {result.name} already exists.")
        else:
            failure = failure or RaykaError(result.error, f"{result.name}: {result.message}")
    if failure is not None:
        raise failure
    return Exit.DONE


@command.command("list", epilog=LIST + CODES)
@click.option("--internal", is_flag=True, help="Include internal topics.")
@json_option("One JSON object for each topic.")
@target_options
def list_(target: Target, internal: bool, as_json: bool) -> Exit:
    """List topics."""
    from rayka.cli.attached import kafka
    from rayka.client.kafka.admin import KafkaAdmin

    with kafka(target) as cluster:
        topics = [topic for topic in KafkaAdmin(cluster).topics() if internal or not topic.is_internal]
    if as_json:
        for topic in topics:
            fields = {"topic": topic.name, "partitions": len(topic.partitions), "internal": topic.is_internal}
            print(json.dumps(fields))
    else:
        print_list("\n".join(topic.name for topic in topics), "there are no topics")
    return Exit.DONE


@command.command("describe", epilog=DESCRIBE + CODES)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@json_option("One JSON object for each topic.")
@target_options
def describe(target: Target, topics: tuple[str, ...], as_json: bool) -> Exit:
    """Show partitions, leaders, replicas and settings; of all topics if none is named."""
    from rayka.cli.attached import kafka
    from rayka.client.kafka.admin import TOPIC, KafkaAdmin, Resource

    with kafka(target) as cluster:
        admin = KafkaAdmin(cluster)
        found = admin.topics(topics) if topics else [one for one in admin.topics() if not one.is_internal]
        for number, topic in enumerate(found):
            entries = admin.describe_configs(Resource(TOPIC, topic.name))
            configs = {one.name: one.value for one in entries if one.source == "DYNAMIC_TOPIC_CONFIG"}
            if as_json:
                print(json.dumps(_topic_fields(topic, configs)))
            else:
                print(("\n" if number else "") + _topic_text(topic, configs))
    return Exit.DONE


def _topic_fields(topic: TopicDescription, configs: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "configs": dict(configs),
        "partitions": [partition._asdict() for partition in topic.partitions],
    }


def _topic_text(topic: TopicDescription, configs: Mapping[str, str | None]) -> str:
    head = f"{topic.name}  id {topic.topic_id}  partitions {len(topic.partitions)}"
    settings = "".join(f"\n  {name}={value}" for name, value in sorted(configs.items()))
    rows = [
        (
            one.partition,
            "none" if one.leader < 0 else one.leader,
            one.leader_epoch,
            ",".join(map(str, one.replicas)),
            ",".join(map(str, one.isr)),
        )
        for one in topic.partitions
    ]
    return head + settings + "\n" + table(("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC"), rows)


@command.command("alter", epilog=ALTER + CODES)
@_topic
@click.option("--partitions", metavar="N", type=int, help="The new number of partitions, higher than now.")
@_config
@click.option("--delete-config", metavar="NAME", multiple=True, help="Restore a setting's default; may be repeated.")
@target_options
def alter(
    target: Target, topic: str, partitions: int | None, config: tuple[str, ...], delete_config: tuple[str, ...]
) -> Exit:
    """Add partitions to a topic and change its settings."""
    changes: dict[str, str | None] = {**parse_assignments(config), **dict.fromkeys(delete_config)}
    if not changes and partitions is None:
        raise CliError("nothing to change: give --partitions, --config or --delete-config", Exit.USAGE)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.admin import TOPIC, KafkaAdmin, Resource

    done = []
    with kafka(target) as cluster:
        admin = KafkaAdmin(cluster)
        admin.topics([topic])
        if changes:
            admin.alter_configs(Resource(TOPIC, topic), changes)
            done.append(plural(len(changes), "setting"))
        if partitions is not None:
            admin.create_partitions(topic, partitions)
            done.append(f"the number of partitions to {partitions}")
    print(f"Changed {' and '.join(done)} of topic {topic}.")
    return Exit.DONE


@command.command("delete", epilog=DELETE + CODES)
@_topics
@yes_option
@target_options
def delete(target: Target, topics: tuple[str, ...], yes: bool) -> Exit:
    """Delete topics with their records. Asks first on a terminal."""
    from rayka.cli.attached import kafka
    from rayka.client.kafka.admin import KafkaAdmin

    names = ", ".join(topics)
    with kafka(target) as cluster:
        admin = KafkaAdmin(cluster)
        admin.topics(topics)
        confirm(f"Delete {_noun(topics)} {names} with all records?", yes)
        admin.delete_topics(topics)
    print(f"Deleted {_noun(topics)} {names}.")
    return Exit.DONE


@command.command("delete-records", epilog=DELETE_RECORDS + CODES)
@_topic
@click.option("--before", metavar="WHERE", required=True, help="An offset, `latest` or a time; see below.")
@click.option("--partition", metavar="N", type=int, multiple=True, help="Only this partition; may be repeated.")
@yes_option
@json_option("One JSON object for each partition.")
@target_options
def delete_records(
    target: Target, topic: str, before: str, partition: tuple[int, ...], yes: bool, as_json: bool
) -> Exit:
    """Delete the oldest records of a topic, up to an offset or a time. Asks first on a terminal."""
    from rayka.cli.attached import kafka
    from rayka.cli.kafka.offsets import deletable, partitions_of
    from rayka.client.kafka.admin import KafkaAdmin

    with kafka(target) as cluster:
        admin = KafkaAdmin(cluster)
        offsets = deletable(admin, partitions_of(cluster, topic, partition), before)
        confirm(f"Delete the records of {topic} before {before}?", yes)
        starts = admin.delete_records(offsets)
    print("\n".join(_start_lines(starts)) if as_json else _starts_text(starts))
    return Exit.DONE


def _start_lines(starts: Mapping[TopicPartition, int]) -> list[str]:
    return [
        json.dumps({**partition._asdict(), "log_start_offset": start}) for partition, start in sorted(starts.items())
    ]


def _starts_text(starts: Mapping[TopicPartition, int]) -> str:
    return table(
        ("TOPIC", "PARTITION", "LOG-START-OFFSET"), [(*partition, start) for partition, start in sorted(starts.items())]
    )


def _noun(topics: Sequence[str]) -> str:
    return "topic" if len(topics) == 1 else "topics"
