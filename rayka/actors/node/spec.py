"""What every actor of a broker needs to know when it starts, and again when Ray restarts it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_NAMESPACE = "rayka"
CONTROLLER_NAME = "controller"
MARKED_FILE = "meta.properties"
"""Present in a directory that was ever used as a log directory."""


_PARTITION_ACTOR = "partitions-"


def is_partition_actor(name: str) -> bool:
    """Whether an actor of this name holds replicas."""
    return name.startswith(_PARTITION_ACTOR)


def private_dir(key: str) -> str:
    """A short path in the temporary directory that belongs to this user and `key` (a data directory)."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return os.path.join(tempfile.gettempdir(), f"rayka-{os.getuid()}-{digest}")


def socket_dir_of(namespace: str, data_dir: str) -> str:
    """`NodeSpec.socket_dir` of the node with this data directory, an absolute path."""
    return private_dir(f"{namespace}:{data_dir}")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node's broker. `node_id` is Ray's; `configs` are the static settings as text.

    `namespace` is the Ray namespace of all actors of the cluster; two clusters in one Ray cluster differ in it.
    `cluster_id` is that with which the log directories are marked; a new node gets it from the controller.
    """

    namespace: str
    node_id: str
    broker_id: int
    data_dir: str
    log_dirs: tuple[str, ...]
    host: str
    port: int
    advertised_host: str
    advertised_port: int
    configs: Mapping[str, str] = field(default_factory=dict)
    rack: str | None = None
    cluster_id: str = ""

    @property
    def socket_dir(self) -> str:
        """Where the node's local channels listen: short, for a socket's path has at most 107 bytes."""
        return socket_dir_of(self.namespace, self.data_dir)

    @property
    def usage_dir(self) -> str:
        """Where the node's gateways count what they use together."""
        return os.path.join(self.socket_dir, "usage")

    @property
    def cleaner_dir(self) -> str:
        """Where the node's log cleaners lock their slots."""
        return os.path.join(self.socket_dir, "cleaner")

    @property
    def controller_dir(self) -> str:
        """Where the controller keeps the metadata log."""
        return os.path.join(self.data_dir, "controller")

    def gateway_name(self, index: int) -> str:
        """The name of one of the node's gateways."""
        return f"gateway-{self.broker_id}-{index}"

    def partition_actor_name(self, index: int) -> str:
        """The name of one of the node's partition actors, and of its log directory."""
        return f"{_PARTITION_ACTOR}{self.broker_id}-{index:02d}"

    def log_dir_of(self, index: int) -> str:
        """The log directory of partition actor `index`: in whichever of `log.dirs` it is found.

        New ones are dealt out over `log.dirs`; those that exist stay where they are when the list changes.
        """
        paths = [os.path.join(log_dir, self.partition_actor_name(index)) for log_dir in self.log_dirs]
        dealt = paths[index % len(paths)]
        found = (path for path in (dealt, *paths) if os.path.exists(os.path.join(path, MARKED_FILE)))
        return next(found, dealt)
