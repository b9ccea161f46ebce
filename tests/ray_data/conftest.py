"""One broker for each module."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from rayka.client.cluster import Cluster
from tests.support.embedded import embedded


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with embedded(tmp_path_factory.mktemp("rayka")) as started:
        yield started


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A new topic of three partitions."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    cluster.admin().create_topic(name, 3)
    return name
