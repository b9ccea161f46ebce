"""A topic of a real broker whose older records are in the remote store alone."""

from __future__ import annotations

from pathlib import Path

from rayka.client.cluster import Cluster
from rayka.testing import wait_until
from tests.support.found_files import found_files

COUNT = 3_000
CONFIGS = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "20000",
    "local.retention.bytes": "20000",
    "file.delete.delay.ms": "0",
}


def tiered_configs(store: Path) -> dict[str, str]:
    """The settings of a broker with a remote store."""
    return {
        "remote.log.storage.system.enable": "true",
        "rsm.config.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
        "log.retention.ms": "-1",  # tests write old timestamps
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
        "rsm.config.chunk.size": "8192",
    }


def create_tiered(cluster: Cluster, topic: str, data_dir: Path) -> int:
    """Create a topic with `COUNT` records, numbered in their values; the offset at which the local log begins."""
    cluster.admin().create_topic(topic, 1, configs=CONFIGS)
    with cluster.producer() as producer:
        for number in range(COUNT):
            producer.send(topic, b"%d " % number + bytes(100))
            if number % 100 == 0:
                producer.flush()

    def local_start() -> int:
        return min((int(path.stem) for path in found_files(data_dir, f"*/{topic}-0/*.log")), default=0)

    wait_until(lambda: local_start() > COUNT // 2, 180, "the older half is in the store alone")
    return local_start()
