"""A cluster without Ray for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.client.cluster import Cluster
from rayka.gateway.server.segment_files import SegmentFiles
from tests.support.client_connection import LocalConnection
from tests.support.faulty_channel import FaultyChannel
from tests.support.faulty_partitions import FaultyPartitions
from tests.support.ways import WAYS, fill_by


@pytest.fixture
def broker_config() -> dict[str, str]:
    """The broker's settings; a module of tests may have others."""
    return {}


@pytest.fixture(params=WAYS)
def way_to_fill(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers encode records as they come, by C code, or when they send them, by plain Python."""
    fill_by(request.param, monkeypatch)


@pytest.fixture
def files() -> Iterator[SegmentFiles]:
    """The open segments of a consumer without a broker."""
    files = SegmentFiles()
    yield files
    files.close()


@pytest.fixture
def connection(tmp_path: Path, broker_config: dict[str, str]) -> Iterator[LocalConnection]:
    """The way to a broker of this test's own."""
    connection = LocalConnection(str(tmp_path), broker_config)
    yield connection
    connection.close()


@pytest.fixture
def cluster(connection: LocalConnection) -> Iterator[Cluster]:
    """The cluster of that broker."""
    cluster = Cluster(connection)
    yield cluster
    cluster.close()


@pytest.fixture
def faults(connection: LocalConnection) -> FaultyPartitions:
    """What may fail on the way to the partitions."""
    return connection.faults


@pytest.fixture
def channel(connection: LocalConnection, cluster: Cluster, tmp_path: Path) -> Iterator[FaultyChannel]:
    """The channel of the leader of the topic `events`."""
    channel = FaultyChannel(connection, tmp_path)
    channel.open()
    cluster.admin().create_topic("events", partitions=1)
    yield channel
    channel.close()
