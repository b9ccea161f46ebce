"""`rayka tree`: the cluster as the paths that Kafka once kept in ZooKeeper."""

from __future__ import annotations

import argparse
import json

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Subcommands, add_target, command

EXAMPLES = """\
examples:
  rayka tree                                   everything
  rayka tree /brokers/topics/events            replicas, and the leader and ISR of each partition
  rayka tree /consumers/billing                ids, offsets and owners of a group

One line for each path that holds something: the path, a tab, and JSON. In names of groups and members %2F is a slash.

Exit codes: 0 done, 1 failed, 2 used wrongly, 3 nothing at that path, or no broker.
"""


def register(commands: Subcommands) -> None:
    """Adds the command to the parser."""
    parser = command(commands, "tree", "show brokers, topics and groups as a registry of paths", EXAMPLES, run)
    parser.add_argument("path", metavar="PATH", nargs="?", default="/", help="only what is there and below")
    add_target(parser)


def run(args: argparse.Namespace) -> Exit:
    """Prints the tree."""
    from rayka.cli.attached import attached
    from rayka.client.admin.registry_tree import is_below, registry

    with attached(args) as cluster:
        admin = cluster.admin()
        brokers = admin.describe_cluster().brokers
        topics = admin.describe_topics(admin.list_topics(include_internal=True))
        groups = [admin.describe_group(group.group_id) for group in admin.list_groups()]
    found = [node for node in registry(brokers, topics, groups) if is_below(node.path, args.path)]
    for path, data in found:
        print(f"{path}\t{json.dumps(data)}")
    if not found:
        raise CliError(f"there is nothing at {args.path}", Exit.NOT_FOUND)
    return Exit.DONE
