"""One broker and one Spark of PySpark 4 for all of these tests; `./check` runs them in an environment of their own."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from rayka.client.cluster import Cluster
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
    return topic


@pytest.fixture
def actor_pid(cluster: Cluster) -> Any:
    """`actor_pid(topic, partition)`: the process that leads a partition."""
    import ray

    def find(topic: str, partition: int) -> int:
        image = cluster.admin().describe_topics([topic])[0].partitions[partition]
        pid: int = ray.get(ray.get_actor(image.leader_actor, namespace="rayka").process_id.remote())
        assert pid != os.getpid()
        return pid

    return find
