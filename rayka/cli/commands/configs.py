"""`rayka configs`: settings of topics, brokers and groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Group, Target, complete_groups, complete_topics, json_option, only_one, target_options
from rayka.cli.tables import print_list, table
from rayka.cli.text.properties import parse_assignments

if TYPE_CHECKING:
    from rayka.client.kafka.admin import Resource
    from rayka.client.kafka.values import Config

F = TypeVar("F", bound=Callable[..., Any])
CODES = "\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 no such topic or no broker.\n"
CONFIGS = """\
examples:
  rayka configs describe --topic events               what was set on the topic
  rayka configs describe --topic events --all         defaults too, with the source of each value
  rayka configs describe --broker 1 --all
  rayka configs set --topic events retention.ms=3600000 segment.bytes=16777216
  rayka configs set --all-brokers log.retention.ms=86400000
  rayka configs delete --topic events retention.ms    back to the default
"""
DESCRIBE = """\
examples:
  rayka configs describe --topic events               what was set on the topic
  rayka configs describe --topic events --all         defaults too, with the source of each value
  rayka configs describe --broker 1 --all
  rayka configs describe --all-brokers                what was set for all brokers
"""
SET = """\
examples:
  rayka configs set --topic events retention.ms=3600000 segment.bytes=16777216
  rayka configs set --all-brokers log.retention.ms=86400000
  rayka configs set --group billing consumer.session.timeout.ms=60000
"""
DELETE = """\
examples:
  rayka configs delete --topic events retention.ms
  rayka configs delete --all-brokers log.retention.ms
"""
_OWN_SOURCES = {"topic": "DYNAMIC_TOPIC_CONFIG", "group": "GROUP_CONFIG"}


def resource_options(function: F) -> F:
    """Add --topic, --broker, --all-brokers and --group, of which one has to be given."""
    for option in (
        click.option("--group", metavar="GROUP", shell_complete=complete_groups, help="The settings of a group."),
        click.option("--all-brokers", is_flag=True, help="The settings that all brokers share."),
        click.option("--broker", metavar="ID", type=int, help="The settings of a broker."),
        click.option("--topic", metavar="TOPIC", shell_complete=complete_topics, help="The settings of a topic."),
    ):
        function = option(function)
    return function


def _resource(topic: str | None, broker: int | None, all_brokers: bool, group: str | None) -> Resource:
    """What the options name. Raises CliError(USAGE) if that is not one thing."""
    from rayka.client.kafka.admin import BROKER, GROUP, TOPIC, Resource

    only_one(topic=topic, broker=broker is not None, all_brokers=all_brokers, group=group)
    if topic is not None:
        return Resource(TOPIC, topic)
    if broker is not None:
        return Resource(BROKER, str(broker))
    if group is not None:
        return Resource(GROUP, group)
    if not all_brokers:
        raise CliError("give one of --topic, --broker, --all-brokers and --group", Exit.USAGE)
    return Resource(BROKER, "")


@click.group("configs", cls=Group, epilog=CONFIGS + CODES)
def command() -> None:
    """Show and change settings of topics, brokers and groups."""


@command.command("describe", epilog=DESCRIBE + CODES)
@resource_options
@click.option("--all", "show_all", is_flag=True, help="Show defaults too.")
@json_option("One JSON object for each setting.")
@target_options
def describe(
    target: Target,
    topic: str | None,
    broker: int | None,
    all_brokers: bool,
    group: str | None,
    show_all: bool,
    as_json: bool,
) -> Exit:
    """Show settings and the source of each value."""
    resource = _resource(topic, broker, all_brokers, group)
    from rayka.cli.attached import kafka
    from rayka.client.kafka.admin import KafkaAdmin

    with kafka(target) as cluster:
        entries = KafkaAdmin(cluster).describe_configs(resource)
    own = _OWN_SOURCES.get("topic" if topic else "group" if group else "")
    shown = [one for one in entries if show_all or (one.source == own if own else one.source != "DEFAULT_CONFIG")]
    if as_json:
        for one in shown:
            print(json.dumps(_config_fields(one)))
    else:
        rows = [(one.name, _value(one), one.source.lower().removesuffix("_config")) for one in shown]
        print_list(table(("NAME", "VALUE", "SOURCE"), rows) if rows else "", "nothing is set; see --all")
    return Exit.DONE


def _value(entry: Config) -> str:
    return "(hidden)" if entry.is_sensitive else "" if entry.value is None else entry.value


def _config_fields(entry: Config) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source,
        "read_only": entry.read_only,
        "sensitive": entry.is_sensitive,
        "documentation": entry.documentation,
    }


@command.command("set", epilog=SET + CODES)
@click.argument("config", metavar="NAME=VALUE...", nargs=-1, required=True)
@resource_options
@target_options
def set_(target: Target, config: tuple[str, ...], **resource: Any) -> Exit:
    """Change settings."""
    changes = parse_assignments(config)
    _change(target, _resource(**resource), changes)
    print(f"Set {', '.join(f'{name}={value}' for name, value in changes.items())} for {_resource(**resource)}.")
    return Exit.DONE


@command.command("delete", epilog=DELETE + CODES)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@resource_options
@target_options
def delete(target: Target, names: tuple[str, ...], **resource: Any) -> Exit:
    """Restore the defaults of settings."""
    _change(target, _resource(**resource), dict.fromkeys(names), are_known=not resource["all_brokers"])
    print(f"Restored the default of {', '.join(names)} for {_resource(**resource)}.")
    return Exit.DONE


def _change(target: Target, resource: Resource, changes: Mapping[str, str | None], *, are_known: bool = False) -> None:
    """With `are_known` a name that is no setting is an error here; a broker restores its default without a word."""
    from rayka.cli.attached import kafka
    from rayka.client.kafka.admin import KafkaAdmin

    with kafka(target) as cluster:
        admin = KafkaAdmin(cluster)
        if are_known and (unknown := changes.keys() - {one.name for one in admin.describe_configs(resource)}):
            raise CliError(f"{resource} has no setting {min(unknown)}")
        admin.alter_configs(resource, changes)
