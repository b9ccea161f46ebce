"""The connection that a worker process, of Spark or of Ray Data, keeps for all its tasks."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakSet

import ray

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.actors.remote.stores import open_store
from rayka.client.cluster import Cluster
from rayka.client.connection import ClusterConnection, before_ray_ends, connect
from rayka.client.consumer.range_reader import RangeReader, RayLeaders
from rayka.client.consumer.remote_ranges import RemoteRanges
from rayka.client.consumer.topic_offsets import TopicOffsets
from rayka.config.remote import SYSTEM_ENABLE
from rayka.ranges.batches import OnDataLoss
from rayka.types import IsolationLevel


class RayCluster(NamedTuple):
    """Where to find rayka; travels with every task. `address` is that of Ray's GCS, `namespace` the broker's."""

    address: str
    namespace: str

    @classmethod
    def here(cls, namespace: str = DEFAULT_NAMESPACE) -> RayCluster:
        """The Ray cluster that this program is connected to, or finds. Raises BROKER_NOT_AVAILABLE."""
        if not ray.is_initialized():
            connection = connect(namespace=namespace)
            cluster = cls(ray.get_runtime_context().gcs_address, namespace)
            _connections[cluster] = connection
        return cls(ray.get_runtime_context().gcs_address, namespace)

    def join(self) -> Cluster:
        """The cluster, over the connection of this process."""
        return Cluster(self.connection())

    def reader(
        self,
        columns: Sequence[str],
        isolation: IsolationLevel,
        on_data_loss: OnDataLoss = "fail",
    ) -> RangeReader:
        """A reader of ranges over the connection of this process."""
        earliest = TopicOffsets(self.join().admin(), (), isolation=isolation).earliest
        return RangeReader(
            self.connection().broker,
            columns,
            isolation,
            leaders=RayLeaders(self.namespace),
            earliest=earliest if on_data_loss == "skip" else None,
            remote=self.remote_ranges if self.connection().broker.config[SYSTEM_ENABLE] else None,
        )

    def remote_ranges(self) -> RemoteRanges:
        """The reads of this process from the remote store."""
        with _joining:
            if self not in _remote_ranges:
                config = self.connection().broker.config
                store = open_store(config)
                _remote_ranges[self] = RemoteRanges(store, config["rsm.config.chunk.size"])
            return _remote_ranges[self]

    def keep_for(self, user: object) -> None:
        """Keep the connection open while `user` lives, whatever other part of the program leaves the cluster."""
        with _joining:
            _users.setdefault(self, WeakSet()).add(user)

    def connection(self) -> ClusterConnection:
        """The connection of this process, which is made once."""
        with _joining:
            if self not in _connections:
                _connections[self] = connect(self.address, namespace=self.namespace)
            return _connections[self]


_connections: dict[RayCluster, ClusterConnection] = {}
_remote_ranges: dict[RayCluster, RemoteRanges] = {}
_users: dict[RayCluster, WeakSet[object]] = {}
_joining = threading.RLock()


def leave(*, is_exit: bool = False) -> None:
    """Close the connections of this process that nothing is kept for; at its end, all. The next task that needs one
    connects again."""
    for cluster in [one for one in _connections if is_exit or not _users.get(one)]:
        remote = _remote_ranges.pop(cluster, None)
        if remote is not None:
            remote.close()
        _connections.pop(cluster).close()


@before_ray_ends
@atexit.register
def _leave_at_exit() -> None:
    """Ray, which ends next, aborts the process if another thread still waits for an actor."""
    if ray.is_initialized():
        leave(is_exit=True)


def node_hosts(cluster: Cluster) -> dict[int, str]:
    """The address of each broker's node, as Ray and Spark have it."""
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in cast(Any, ray.nodes)() if node["Alive"]}
    brokers = cluster.admin().describe_cluster().brokers
    return {each.broker_id: addresses[each.node_id] for each in brokers if each.node_id in addresses}


def node_ids(cluster: Cluster) -> dict[int, str]:
    """Ray's id of each broker's node."""
    return {each.broker_id: each.node_id for each in cluster.admin().describe_cluster().brokers}
