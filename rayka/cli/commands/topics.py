"""`rayka topics`: what there is, making it, changing it, taking it away."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Subcommands, add_target, command
from rayka.cli.tables import table
from rayka.cli.text.properties import parse_assignments

if TYPE_CHECKING:
    from rayka.metadata.image import TopicImage

TOPICS = """\
examples:
  rayka topics create events --partitions 4 --config retention.ms=86400000
  rayka topics list
  rayka topics describe events
  rayka topics alter events --partitions 8 --config retention.ms=3600000 --delete-config cleanup.policy
  rayka topics delete events
"""
CREATE = """\
examples:
  rayka topics create events                          as many partitions as num.partitions says
  rayka topics create events clicks --partitions 4
  rayka topics create users --config cleanup.policy=compact --if-not-exists
"""
CODES = "\nExit codes: 0 done, 1 failed, 2 used wrongly, 3 no such topic or no broker.\n"


def register(commands: Subcommands) -> None:
    """Adds the command to the parser."""
    topics = command(commands, "topics", "create, list, describe, alter and delete topics", TOPICS + CODES)
    actions = topics.add_subparsers(metavar="ACTION", required=True)
    create = command(actions, "create", "create topics", CREATE + CODES, _create)
    create.add_argument("topic", metavar="TOPIC", nargs="+")
    create.add_argument("--partitions", metavar="N", type=int, default=-1, help="default: num.partitions of the broker")
    create.add_argument("--replication-factor", metavar="N", type=int, default=-1)
    create.add_argument("--config", metavar="NAME=VALUE", action="append", default=[], help="may be repeated")
    create.add_argument("--if-not-exists", action="store_true", help="be content if it exists")
    show = command(actions, "list", "list topics", TOPICS + CODES, _list)
    show.add_argument("--internal", action="store_true", help="the broker's own too")
    describe = command(
        actions, "describe", "show partitions, leaders, replicas and settings", TOPICS + CODES, _describe
    )
    describe.add_argument("topic", metavar="TOPIC", nargs="*", help="default: all")
    alter = command(actions, "alter", "add partitions, change settings", TOPICS + CODES, _alter)
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument("--partitions", metavar="N", type=int, help="the new number, higher than now")
    alter.add_argument("--config", metavar="NAME=VALUE", action="append", default=[], help="may be repeated")
    alter.add_argument("--delete-config", metavar="NAME", action="append", default=[], help="back to the default")
    delete = command(actions, "delete", "delete topics with their records", TOPICS + CODES, _delete)
    delete.add_argument("topic", metavar="TOPIC", nargs="+")
    for parser in (show, describe):
        parser.add_argument("--json", action="store_true", help="one JSON object for each topic")
    for parser in (create, show, describe, alter, delete):
        add_target(parser)


def _create(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached
    from rayka.errors import ErrorCode, RaykaError
    from rayka.metadata.commands import NewTopic

    configs: dict[str, str | None] = dict(parse_assignments(args.config))
    wanted = [NewTopic(name, args.partitions, args.replication_factor, None, configs) for name in args.topic]
    with attached(args) as cluster:
        results = cluster.admin().create_topics(wanted, raise_errors=False)
    accepted = {ErrorCode.NONE} | ({ErrorCode.TOPIC_ALREADY_EXISTS} if args.if_not_exists else set())
    for result in results:
        if result.error not in accepted:
            raise RaykaError(result.error, f"{result.name}: {result.error_message}")
    return Exit.DONE


def _list(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        admin = cluster.admin()
        names = admin.list_topics(include_internal=args.internal)
        topics = admin.describe_topics(names)
    for topic in topics:
        fields = {"topic": topic.name, "partitions": len(topic.partitions), "internal": topic.is_internal}
        print(json.dumps(fields) if args.json else topic.name)
    return Exit.DONE


def _describe(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        admin = cluster.admin()
        topics = admin.describe_topics(args.topic or admin.list_topics())
        for number, topic in enumerate(topics):
            configs = _set_values(admin.describe_configs(topic.name).values())
            if args.json:
                print(json.dumps(_topic_fields(topic, configs)))
            else:
                print(("\n" if number else "") + _topic_text(topic, configs))
    return Exit.DONE


def _set_values(entries: Any) -> dict[str, str | None]:
    """What somebody set on the topic itself."""
    from rayka.config.describe import ConfigSource

    return {one.name: one.value for one in entries if one.source is ConfigSource.DYNAMIC_TOPIC_CONFIG}


def _topic_fields(topic: TopicImage, configs: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "configs": dict(configs),
        "partitions": [
            {
                "partition": one.partition,
                "leader": one.leader,
                "leader_epoch": one.leader_epoch,
                "replicas": list(one.replicas),
                "isr": list(one.isr),
                "actors": list(one.actors),
            }
            for one in topic.partitions
        ],
    }


def _topic_text(topic: TopicImage, configs: Mapping[str, str | None]) -> str:
    head = f"{topic.name}  id {topic.topic_id}  partitions {len(topic.partitions)}"
    told = "".join(f"\n  {name}={value}" for name, value in sorted(configs.items()))
    rows = [
        (
            one.partition,
            "none" if one.leader < 0 else one.leader,
            one.leader_epoch,
            ",".join(map(str, one.replicas)),
            ",".join(map(str, one.isr)),
            ",".join(one.actors),
        )
        for one in topic.partitions
    ]
    return head + told + "\n" + table(("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "ACTORS"), rows)


def _alter(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached

    changes = _changes(args.config, args.delete_config)
    if not changes and args.partitions is None:
        raise CliError("nothing to change: give --partitions, --config or --delete-config", Exit.USAGE)
    with attached(args) as cluster:
        admin = cluster.admin()
        admin.describe_topics([args.topic])
        if changes:
            admin.alter_configs(args.topic, changes)
        if args.partitions is not None:
            admin.create_partitions({args.topic: args.partitions})
    return Exit.DONE


def _changes(settings: Sequence[str], deleted: Sequence[str]) -> dict[str, str | None]:
    return {**parse_assignments(settings), **dict.fromkeys(deleted)}


def _delete(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        cluster.admin().delete_topics(args.topic)
    return Exit.DONE
