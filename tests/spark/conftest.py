"""One broker and one Spark for all of these tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import rayka.spark
from rayka.client.cluster import Cluster
from tests.support.embedded import embedded
from tests.support.quick_java import QUICK_JAVA
from tests.support.tiered_topic import tiered_configs


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_JAVA.items():
            patch.setenv(name, value)
        path = tmp_path_factory.mktemp("rayka")
        with embedded(path / "data", cpus=6, configs=tiered_configs(path / "store")) as started:
            yield started
            rayka.spark.stop()


@pytest.fixture
def spark(cluster: Cluster) -> SparkSession:
    """The Spark of the tests before this one; a test that stops it lets the next one start another."""
    return SparkSession.getActiveSession() or start_session()


def start_session() -> SparkSession:
    """A session as all of these tests can use it."""
    settings = {
        "spark.driver.memory": "700m",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        **rayka.spark.delta_settings(),
    }
    return rayka.spark.session(executor_memory="700m", configs=settings)


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """A new topic of three partitions."""
    return new_topic(cluster, request.node.name, 3)


@pytest.fixture
def other_topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """One more topic of three partitions."""
    return new_topic(cluster, f"{request.node.name}-other", 3)


def new_topic(cluster: Cluster, name: str, partitions: int) -> str:
    """Create a topic whose name begins with `name`."""
    safe = "".join(char if char.isalnum() else "-" for char in name)[:80]
    topic = f"{safe}-{uuid.uuid4().hex[:8]}"
    cluster.admin().create_topic(topic, partitions)
    return topic


def create_anew(cluster: Cluster, *topics: str) -> None:
    """Create topics of two partitions, with names of the documentation that other tests may have taken."""
    cluster.admin().delete_topics(topics, raise_errors=False)
    for topic in topics:
        cluster.admin().create_topic(topic, partitions=2)
