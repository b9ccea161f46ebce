"""`rayka status`: brokers, actors, topics, and whether every partition is served."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from rayka.cli.exits import CliError, Exit
from rayka.cli.parsing import Command, Target, actor_options, json_option
from rayka.cli.tables import size_text, table

if TYPE_CHECKING:
    from rayka.metadata.image import MetadataImage
    from rayka.types import TopicPartition

EXAMPLES = """\
examples:
  rayka status                        brokers, actors with their processes, topics
  rayka status --partitions           each partition too: leader, epoch, in-sync replicas, actor, size
  rayka status --json | jq .actors

Exit codes: 0 every partition has a leader and every actor answers, 1 some do not, 3 no broker to reach.
"""
ANSWER_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """An actor of the broker; without a process while Ray starts it again. Memory in bytes."""

    name: str
    pid: int | None
    memory: int | None
    replicas: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition; `leader` is None while it has none. Size in bytes, None if no replica told."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]
    actors: tuple[str, ...]
    size: int | None


@click.command("status", cls=Command, epilog=EXAMPLES)
@click.option("--partitions", "every", is_flag=True, help="Show every partition.")
@json_option("As one JSON object.")
@actor_options
def command(target: Target, every: bool, as_json: bool) -> Exit:
    """Show brokers, actors with their processes, and topics; exit code 1 if something is not served."""
    if target.bootstrap_server is not None:
        raise CliError("status does not work with --bootstrap-server: give --data-dir or --address", Exit.USAGE)
    from rayka.actors.node.spec import DEFAULT_NAMESPACE
    from rayka.cli.attached import connected

    with connected(target) as connection:
        image = connection.broker.image
        directories = connection.loop.run(connection.broker.partitions.describe_log_dirs())
        actors = _actors(image, DEFAULT_NAMESPACE)
    sizes = {replica.topic_partition: replica.size for one in directories for replica in one.replicas}
    partitions = list(_partitions(image, sizes))
    strays = [path for one in directories for path in one.strays]
    if as_json:
        print(json.dumps(_as_json(image, actors, partitions) | {"strays": strays}, indent=2))
    else:
        _show(image, actors, partitions, every=every)
        for path in strays:
            print(f"{path}: not served, because the cluster does not know its topic; remove it if you don't need it")
    whole = all(one.pid for one in actors) and all(one.leader is not None for one in partitions)
    return Exit.DONE if whole else Exit.FAILED


def _partitions(image: MetadataImage, sizes: Mapping[TopicPartition, int]) -> Iterable[PartitionStatus]:
    from rayka.types import NO_LEADER, TopicPartition

    for name, topic in sorted(image.topics.items()):
        for number, partition in enumerate(topic.partitions):
            yield PartitionStatus(
                name,
                number,
                None if partition.leader == NO_LEADER else partition.leader,
                partition.leader_epoch,
                tuple(partition.isr),
                tuple(partition.actors),
                sizes.get(TopicPartition(name, number)),
            )


def _actors(image: MetadataImage, namespace: str) -> list[ActorStatus]:
    """Every named actor of the cluster, with its process id and memory."""
    import ray
    from ray.util import list_named_actors

    names = sorted(found["name"] for found in list_named_actors(all_namespaces=True) if found["namespace"] == namespace)
    asked: dict[str, Any] = {}
    for name in names:
        try:
            asked[name] = ray.get_actor(name, namespace).__ray_call__.remote(_process)
        except ValueError:
            continue
    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_TIMEOUT_S) if asked else ([], [])
    answers = {name: _answer_of(ref) if ref in ready else (None, None) for name, ref in asked.items()}
    return [ActorStatus(name, *answers.get(name, (None, None)), len(image.replicas_of_actor(name))) for name in names]


def _answer_of(ref: Any) -> tuple[int | None, int | None]:
    import ray

    try:
        pid, memory = ray.get(ref)
    except ray.exceptions.RayError:
        return None, None
    return pid, memory


def _process(actor: object) -> tuple[int, int]:
    """Runs in the actor: its process id and the bytes of memory that are its own."""
    import os
    import re
    from pathlib import Path

    rollup = Path("/proc/self/smaps_rollup").read_text()
    return os.getpid(), 1024 * sum(int(kib) for kib in re.findall(r"Private_\w+: +(\d+)", rollup))


def _as_json(
    image: MetadataImage, actors: Sequence[ActorStatus], partitions: Sequence[PartitionStatus]
) -> dict[str, Any]:
    return {
        "cluster_id": image.cluster_id,
        "brokers": [
            {"broker_id": one.broker_id, "host": one.host, "port": one.port, "rack": one.rack, "fenced": one.fenced}
            for one in image.brokers.values()
        ],
        "actors": [asdict(one) for one in actors],
        "partitions": [asdict(one) for one in partitions],
    }


def _show(
    image: MetadataImage, actors: Sequence[ActorStatus], partitions: Sequence[PartitionStatus], *, every: bool
) -> None:
    print(f"cluster {image.cluster_id}: {len(image.topics)} topics, {len(partitions)} partitions\n")
    brokers = [
        (one.broker_id, f"{one.host}:{one.port}", one.rack or "-", "fenced" if one.fenced else "serving")
        for one in image.brokers.values()
    ]
    print(table(("BROKER", "ADDRESS", "RACK", "STATE"), brokers), end="\n\n")
    rows = [(one.name, one.pid or "restarting", size_text(one.memory), one.replicas) for one in actors]
    print(table(("ACTOR", "PROCESS", "MEMORY", "REPLICAS"), rows), end="\n\n")
    if every:
        print(table(PARTITION_COLUMNS, [_partition_row(one) for one in partitions]))
    else:
        print(table(("TOPIC", "PARTITIONS", "WITHOUT LEADER", "SIZE"), _topic_rows(partitions)))


PARTITION_COLUMNS = ("PARTITION", "LEADER", "EPOCH", "IN SYNC", "ACTOR", "SIZE")


def _partition_row(one: PartitionStatus) -> tuple[object, ...]:
    return (
        f"{one.topic}-{one.partition}",
        "none" if one.leader is None else one.leader,
        one.leader_epoch,
        ",".join(map(str, one.isr)),
        ",".join(one.actors),
        size_text(one.size),
    )


def _topic_rows(partitions: Sequence[PartitionStatus]) -> list[tuple[object, ...]]:
    topics: dict[str, list[PartitionStatus]] = {}
    for one in partitions:
        topics.setdefault(one.topic, []).append(one)
    return [
        (
            name,
            len(found),
            sum(one.leader is None for one in found),
            size_text(sum(one.size or 0 for one in found)),
        )
        for name, found in topics.items()
    ]
