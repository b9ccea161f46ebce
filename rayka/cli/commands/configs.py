"""`rayka configs`: settings of topics and brokers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayka.cli.exits import Exit
from rayka.cli.parsing import Subcommands, add_target, command
from rayka.cli.tables import table
from rayka.cli.text.properties import parse_assignments

if TYPE_CHECKING:
    from rayka.config import ConfigEntry

CONFIGS = """\
examples:
  rayka configs describe --topic events               what was set on the topic
  rayka configs describe --topic events --all         and every default, with where it comes from
  rayka configs describe --broker 1 --all
  rayka configs set --topic events retention.ms=3600000 segment.bytes=16777216
  rayka configs set --all-brokers log.retention.ms=86400000
  rayka configs delete --topic events retention.ms    back to the default

Exit codes: 0 done, 1 failed, 2 used wrongly, 3 no such topic or no broker.
"""


def register(commands: Subcommands) -> None:
    """Adds the command to the parser."""
    configs = command(commands, "configs", "show and change settings of topics and brokers", CONFIGS)
    actions = configs.add_subparsers(metavar="ACTION", required=True)
    describe = command(actions, "describe", "show settings", CONFIGS, _describe_configs)
    describe.add_argument("--all", action="store_true", help="defaults too, not only what was set")
    describe.add_argument("--json", action="store_true", help="one JSON object for each setting")
    change = command(actions, "set", "change settings", CONFIGS, _set)
    change.add_argument("config", metavar="NAME=VALUE", nargs="+")
    delete = command(actions, "delete", "take settings back to their defaults", CONFIGS, _unset)
    delete.add_argument("name", metavar="NAME", nargs="+")
    for parser in (describe, change, delete):
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument("--topic", metavar="TOPIC")
        whose.add_argument("--broker", metavar="ID", type=int)
        whose.add_argument("--all-brokers", action="store_true", help="the defaults of all brokers")
        add_target(parser)


def _resource(args: argparse.Namespace) -> Any:
    from rayka.metadata.records import ConfigResource, ResourceType

    if args.all_brokers:
        return ConfigResource(ResourceType.BROKER, "")
    return args.topic if args.topic is not None else args.broker


def _describe_configs(args: argparse.Namespace) -> Exit:
    from rayka.cli.attached import attached
    from rayka.config.describe import ConfigSource

    with attached(args) as cluster:
        entries = cluster.admin().describe_configs(_resource(args)).values()
    own = {ConfigSource.DYNAMIC_TOPIC_CONFIG} if args.topic else set(ConfigSource) - {ConfigSource.DEFAULT_CONFIG}
    shown = sorted((one for one in entries if args.all or one.source in own), key=lambda one: one.name)
    if args.json:
        for one in shown:
            print(json.dumps(_config_fields(one)))
    elif shown:
        rows = [(one.name, _value(one), one.source.name.lower().removesuffix("_config")) for one in shown]
        print(table(("NAME", "VALUE", "SOURCE"), rows))
    return Exit.DONE


def _value(entry: ConfigEntry) -> str:
    return "(hidden)" if entry.is_sensitive else "" if entry.value is None else entry.value


def _config_fields(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "read_only": entry.read_only,
        "sensitive": entry.is_sensitive,
        "documentation": entry.documentation,
    }


def _set(args: argparse.Namespace) -> Exit:
    return _change_configs(args, parse_assignments(args.config))


def _unset(args: argparse.Namespace) -> Exit:
    return _change_configs(args, dict.fromkeys(args.name))


def _change_configs(args: argparse.Namespace, changes: Mapping[str, str | None]) -> Exit:
    from rayka.cli.attached import attached

    with attached(args) as cluster:
        cluster.admin().alter_configs(_resource(args), changes)
    return Exit.DONE
