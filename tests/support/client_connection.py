"""A cluster of one broker without Ray, for tests of the Python clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayka.client.loop import LoopThread
from tests.support.faulty_partitions import FaultyPartitions
from tests.support.local_broker import LocalBroker


class LocalConnection:
    """What `Cluster` needs, over the storage and metadata cores; `faults` sits before the partitions."""

    bootstrap_servers = "127.0.0.1:9092"

    def __init__(self, directory: str, configs: Mapping[str, str] | None = None) -> None:
        self.loop = LoopThread("test-client")
        self.broker: Any = self.loop.run(self._open(directory, configs))
        self.faults: FaultyPartitions = self.broker.partitions

    async def _open(self, directory: str, configs: Mapping[str, str] | None) -> LocalBroker:
        broker = LocalBroker(directory, configs)
        broker.register("127.0.0.1", 9092)
        local = broker.partitions
        faulty: Any = FaultyPartitions(local)
        broker.partitions = faulty
        return broker

    def close(self) -> None:
        """Close the logs and the loop. Safe to repeat."""
        self.loop.call_soon(self.broker.close)
        self.loop.close()

    stop = close
