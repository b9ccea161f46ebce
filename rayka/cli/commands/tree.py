"""`rayka tree`: the cluster as the paths that Kafka once kept in ZooKeeper."""

from __future__ import annotations

import json

import click

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Command, Target, target_options

EXAMPLES = """\
examples:
  rayka tree                                   everything
  rayka tree /brokers/topics/events            replicas, and the leader and ISR of each partition
  rayka tree /consumers/billing                ids, offsets and owners of a group

Prints one line for each path with content: the path, a tab, and JSON. In names of groups and members %2F is a slash.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing at that path, or no broker.
"""


@click.command("tree", cls=Command, epilog=EXAMPLES)
@click.argument("path", default="/")
@target_options
def command(target: Target, path: str) -> Exit:
    """Show brokers, topics and groups as a registry of paths, at PATH and below."""
    if not path.startswith("/"):
        raise CliError(f"{path!r} is not a path: it must begin with /, as in /brokers", Exit.USAGE)
    from rayka.cli.attached import kafka
    from rayka.client.admin.registry_tree import is_below, registry
    from rayka.client.kafka.admin import KafkaAdmin
    from rayka.client.kafka.groups import KafkaGroupAdmin

    with kafka(target) as cluster:
        brokers = sorted(cluster.metadata().brokers.values())
        topics = KafkaAdmin(cluster).topics()
        admin = KafkaGroupAdmin(cluster)
        groups = [admin.describe_group(group.group_id) for group in admin.list_groups()]
    found = [node for node in registry(brokers, topics, groups) if is_below(node.path, path)]
    for node in found:
        print(f"{node.path}\t{json.dumps(node.data)}")
    if not found:
        raise CliError(f"nothing found at {path}", Exit.NOT_FOUND)
    return Exit.DONE
