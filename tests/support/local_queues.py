"""Queues over a broker without Ray, which is the broker of "the Ray cluster" for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.client import joined
from rayka.client.cluster import Cluster
from rayka.queue import connected
from tests.support.client_connection import LocalConnection

HERE = joined.RayCluster("local", "rayka")


@contextlib.contextmanager
def local_queues(directory: Path) -> Iterator[Cluster]:
    """The cluster, which allows short leases."""
    connection = LocalConnection(str(directory), {"group.share.min.record.lock.duration.ms": "1000"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined.RayCluster, "here", classmethod(lambda cls, namespace: HERE))
        patch.setitem(joined._connections, HERE, connection)
        yield Cluster(connection)
        producer = connected._producers.pop(HERE, None)
        if producer is not None:
            producer.close()
    connection.close()
