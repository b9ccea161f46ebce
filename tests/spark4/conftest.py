"""One broker and one Spark of PySpark 4 for all of these tests; `./check` runs them in an environment of their own."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pyspark
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from rayka.client.cluster import Cluster
from rayka.testing import wait_until
from tests.support.embedded import embedded
from tests.support.quick_java import QUICK_JAVA

collect_ignore_glob = ["test_*.py"] if int(pyspark.__version__.split(".")[0]) < 4 else []


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with embedded(tmp_path_factory.mktemp("rayka")) as started:
        yield started


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_JAVA.items():
            patch.setenv(name, value)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        settings = {
            "spark.driver.memory": "700m",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
        }
        builder: Any = SparkSession.builder
        started = builder.master("local[2]").config(map=settings).getOrCreate()
        started.sparkContext.setLogLevel("ERROR")
        yield started
        started.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """A new topic of three partitions."""
    return new_topic(cluster, request.node.name)


@pytest.fixture
def other_topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """One more topic of three partitions."""
    return new_topic(cluster, f"{request.node.name}-other")


def new_topic(cluster: Cluster, name: str, partitions: int = 3) -> str:
    """Create a topic whose name begins with `name`."""
    safe = "".join(char if char.isalnum() else "-" for char in name)[:80]
    topic = f"{safe}-{uuid.uuid4().hex[:8]}"
    cluster.admin().create_topic(topic, partitions)
    broker = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    wait_until(lambda: topic in broker.list_topics(timeout=60).topics, 60, f"the broker's port knows {topic}")
    return topic
