"""The cluster as the paths under which Kafka once kept it in ZooKeeper.

Source: the design papers of Kafka 0.7 and 0.8. What a path holds is as in 0.8; times of registration are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from rayka.client.admin import group_offsets
from rayka.client.admin.group_offsets import GroupDescription


class RegistryPartition(Protocol):
    """A partition in the tree."""

    @property
    def partition(self) -> int: ...
    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def replicas(self) -> Sequence[int]: ...
    @property
    def isr(self) -> Sequence[int]: ...


class RegistryTopic(Protocol):
    """A topic in the tree."""

    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[RegistryPartition]: ...


class RegistryNode(NamedTuple):
    """A path with data: JSON's types."""

    path: str
    data: Any


def registry(
    brokers: Iterable[group_offsets.BrokerAddress], topics: Iterable[RegistryTopic], groups: Iterable[GroupDescription]
) -> Iterator[RegistryNode]:
    """All paths that hold something, below /brokers and /consumers."""
    for broker in brokers:
        data = {"version": 1, "host": broker.host, "port": broker.port, "jmx_port": -1}
        yield RegistryNode(f"/brokers/ids/{broker.broker_id}", data)
    for topic in topics:
        yield from _topic(topic)
    for group in groups:
        yield from _group(group)


def is_below(path: str, root: str) -> bool:
    """Whether `path` is `root` or in the tree under it."""
    root = root.rstrip("/")
    return path == root or path.startswith(root + "/")


def _topic(topic: RegistryTopic) -> Iterator[RegistryNode]:
    path = f"/brokers/topics/{topic.name}"
    replicas = {str(one.partition): list(one.replicas) for one in topic.partitions}
    yield RegistryNode(path, {"version": 1, "partitions": replicas})
    for one in topic.partitions:
        state = {"version": 1, "leader": one.leader, "leader_epoch": one.leader_epoch, "isr": list(one.isr)}
        yield RegistryNode(f"{path}/partitions/{one.partition}/state", state)


def _group(group: GroupDescription) -> Iterator[RegistryNode]:
    path = f"/consumers/{_name(group.group_id)}"
    for member in group.members:
        data = {"version": 1, "client_id": member.client_id, "host": member.host}
        yield RegistryNode(f"{path}/ids/{_name(member.member_id)}", data)
    by_place = {"{}/{}".format(*one.topic_partition): one for one in group.offsets}  # one node, even with two holders
    for place, one in by_place.items():
        if one.current_offset is not None:
            yield RegistryNode(f"{path}/offsets/{place}", one.current_offset)
    for place, one in by_place.items():
        if one.member is not None:
            yield RegistryNode(f"{path}/owners/{place}", one.member.member_id)


def _name(name: str) -> str:
    """One step of a path: groups and members may have slashes in their names."""
    return name.replace("%", "%25").replace("/", "%2F")
