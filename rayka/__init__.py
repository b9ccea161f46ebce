"""rayka: a Kafka-compatible broker built of Ray actors.

`rayka.start()` starts Ray and a broker in this program; `rayka.connect()` connects to a running one. Both return a
`Cluster`, which creates producers, consumers and the admin client; their classes are in `rayka.client`. `rayka.Queue`
is a queue with the interface of `ray.util.queue.Queue`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rayka.errors import ErrorCode, RaykaError
from rayka.lazy import lazy_names
from rayka.types import TopicPartition

if TYPE_CHECKING:
    from rayka.client.cluster import Cluster
    from rayka.queue.queue import Queue

__all__ = ["Cluster", "ErrorCode", "Queue", "RaykaError", "TopicPartition", "connect", "start"]
__version__ = "0.1.0"


def start(
    data_dir: str | None = None,
    listen: str = "127.0.0.1:9092",
    configs: Mapping[str, str] | None = None,
    address: str | None = None,
    *,
    namespace: str = "rayka",
    dashboard: bool = False,
) -> Cluster:
    """Start a broker on this machine and connect to it.

    `data_dir` holds logs and metadata. The default is a directory of this user in the temporary directory; its name is
    printed on standard error. `listen` is the address for Kafka clients (port 0 chooses a free port). `configs` are
    broker settings with Kafka's names; those without effect are named on standard error. `address` uses a running Ray
    cluster; without it this process starts Ray, unless it is already connected to one. `Cluster.stop()`, and the end of
    a `with` block, stop what this call started.

    Raises RaykaError: INVALID_CONFIG for an invalid setting or address, REQUEST_TIMED_OUT if the broker does not start.
    """
    from rayka.client.cluster import Cluster
    from rayka.client.connection import start as start_connection
    from rayka.config import BrokerConfig

    for warning in BrokerConfig.parse(configs or {}).warnings():
        print(f"rayka: {warning}", file=sys.stderr)
    return Cluster(
        start_connection(data_dir, listen, configs, address, namespace=namespace, dashboard=dashboard, checks_port=True)
    )


def connect(address: str | None = None, *, namespace: str = "rayka") -> Cluster:
    """Connect to the broker on the Ray cluster at `address`: by default the one that this process uses or can find.

    If this process is connected to Ray already, that connection is used, and `address` is ignored. Otherwise this calls
    `ray.init` with `log_to_driver=False`: what tasks print appears in Ray's log files only. `Cluster.stop()`, and the
    end of a `with` block, then disconnect from Ray again.

    Raises RaykaError: BROKER_NOT_AVAILABLE if there is none, REQUEST_TIMED_OUT if it does not answer.
    """
    from rayka.client.cluster import Cluster
    from rayka.client.connection import connect as connect_to

    return Cluster(connect_to(address, namespace=namespace))


__getattr__, __dir__ = lazy_names(__name__, {"Cluster": "rayka.client.cluster", "Queue": "rayka.queue.queue"})
