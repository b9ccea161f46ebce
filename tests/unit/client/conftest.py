"""A cluster without Ray for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.client.cluster import Cluster
from tests.support.client_connection import LocalConnection
from tests.support.faulty_partitions import FaultyPartitions


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[LocalConnection]:
    """The way to a broker of this test's own."""
    connection = LocalConnection(str(tmp_path))
    yield connection
    connection.close()


@pytest.fixture
def cluster(connection: LocalConnection) -> Cluster:
    """The cluster of that broker."""
    return Cluster(connection)


@pytest.fixture
def faults(connection: LocalConnection) -> FaultyPartitions:
    """What may fail on the way to the partitions."""
    return connection.faults
