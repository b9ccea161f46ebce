"""Queues over a broker without Ray."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rayka.client.cluster import Cluster
from rayka.queue import Queue
from tests.support.local_queues import local_queues


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The broker of a module."""
    with local_queues(tmp_path_factory.mktemp("data")) as cluster:
        yield cluster


@pytest.fixture
def an_empty_queue(cluster: Cluster) -> Iterator[Queue]:
    """A queue that is gone after the test."""
    queue = Queue()
    yield queue
    queue.shutdown()
