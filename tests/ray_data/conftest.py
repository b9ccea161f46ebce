"""One broker for each module."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.client.cluster import Cluster
from tests.support.embedded import embedded
from tests.support.tiered_topic import tiered_configs


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("rayka")
    with embedded(path / "data", configs=tiered_configs(path / "store")) as started:
        yield started


@pytest.fixture(scope="module")
def data_dir(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files of the broker and its remote store are."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A new topic of three partitions."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    cluster.admin().create_topic(name, 3)
    return name
