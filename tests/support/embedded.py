"""Ray and rayka inside the test process, in a directory of their own, on a free port; gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import ray

import rayka
from rayka.client.cluster import Cluster
from rayka.testing import free_port
from tests.support.shown_logs import RAY_DIRECTORIES

STORE_BYTES = 256 * 1024 * 1024
CONFIGS = {"log.retention.ms": "-1"}
"""For brokers of tests that write records with old timestamps: else the next check of retention deletes those."""


@contextlib.contextmanager
def embedded(
    data_dir: Path, *, store_bytes: int = STORE_BYTES, cpus: int = 4, configs: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """A cluster in this process. Ray's sockets need a short path, so its directory is not below `data_dir`."""
    assert not ray.is_initialized(), "a test before this one left Ray running"
    ray_dir = tempfile.mkdtemp(prefix="rayka-test-", dir="/tmp")
    # As `rayka.start` does when it starts Ray itself: else every actor is behind everything else on the machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        num_cpus=cpus,
        object_store_memory=store_bytes,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=ray_dir,
    )
    RAY_DIRECTORIES.add(Path(ray_dir))
    try:
        with rayka.start(os.fspath(data_dir), f"127.0.0.1:{free_port()}", {**CONFIGS, **(configs or {})}) as cluster:
            yield cluster
    finally:
        ray.shutdown()
        RAY_DIRECTORIES.discard(Path(ray_dir))
        shutil.rmtree(ray_dir, ignore_errors=True)
