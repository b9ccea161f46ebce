"""Queues over a broker without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.client import joined
from rayka.client.cluster import Cluster
from rayka.queue import Queue, connected
from tests.support.client_connection import LocalConnection

HERE = joined.RayCluster("local", "rayka")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The broker of a module, which is the one of "the Ray cluster" for its queues. It allows short leases."""
    directory: Path = tmp_path_factory.mktemp("data")
    connection = LocalConnection(str(directory), {"group.share.min.record.lock.duration.ms": "1000"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined.RayCluster, "here", classmethod(lambda cls, namespace: HERE))
        patch.setitem(joined._connections, HERE, connection)
        yield Cluster(connection)
        producer = connected._producers.pop(HERE, None)
        if producer is not None:
            producer.close()
    connection.close()


@pytest.fixture
def an_empty_queue(cluster: Cluster) -> Iterator[Queue]:
    """A queue that is gone after the test."""
    queue = Queue()
    yield queue
    queue.shutdown()
