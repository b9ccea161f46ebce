"""Sessions go on from a Java that was killed, and say what an executor needs that Ray does not have."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.driver import forget_java, java_has_ended
from rayka.spark.sessions import missing_resources, session, texts


@pytest.fixture
def process(monkeypatch):
    """A process in place of Java."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        gateway = SimpleNamespace(proc=process, close=lambda: None)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        monkeypatch.setattr(SparkContext, "_jvm", None)
        yield process
        process.kill()


def test_java_that_was_killed_is_started_again(process):
    assert not java_has_ended()
    process.kill()
    process.wait()
    assert java_has_ended()
    forget_java()
    assert SparkContext._gateway is None
    assert not java_has_ended()


@pytest.mark.parametrize(
    ("cpus", "memory_mb", "fits"), [(2, 1024, True), (4, 1024, False), (2, 4096, False), (0.5, 2048, True)]
)
def test_an_executor_that_no_node_of_ray_has_room_for_is_named(cpus, memory_mb, fits):
    nodes = [{"CPU": 2.0, "memory": float(2048 << 20)}, {"memory": float(8192 << 20)}]
    missing = missing_resources(nodes, cpus, memory_mb << 20)
    if fits:
        assert missing is None
    else:
        assert missing == (
            f"Queries wait until Ray has a node for an executor, which needs {cpus:g} CPUs and {memory_mb} MB:"
            " now a node has 2 CPUs and 2048 MB or 0 CPUs and 8192 MB"
        )


def test_a_session_does_not_take_a_spark_that_the_program_has_started_otherwise(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(_jsc=object()))
    with pytest.raises(RaykaError, match="Spark runs already") as refused:
        session()
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_settings_may_be_numbers_and_flags_as_for_spark_itself():
    assert texts({"spark.sql.shuffle.partitions": 4, "spark.ui.enabled": False, "spark.app.id": "a"}) == {
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.app.id": "a",
    }
