"""kill -9 of leaders and of an executor in the middle of a job: the same results."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import psutil
import pytest
import ray
from pyspark.sql import functions as F  # noqa: N812

from rayka.spark import read_topic
from rayka.testing import title
from tests.support.gate import Gate

COUNT = 30_000
VALUE = os.urandom(1_000)
"""A partition has 20 MB: several tables, of which a reader has two in hand."""


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path)


def fill(cluster, topic):
    with cluster.producer() as producer:
        for i in range(COUNT):
            producer.send(topic, VALUE + b"%d" % i, partition=i % 3)


def test_leaders_are_killed_in_the_middle_of_a_job(spark, cluster, topic, actor_pid, gate):
    fill(cluster, topic)
    frame = read_topic(spark, topic, columns=("partition", "offset", "value"))
    expected = total(frame)
    job = Job(gated(frame, gate))
    (partition, *_) = gate.wait_for_readers()
    for _ in range(2):
        os.kill(actor_pid(topic, partition), signal.SIGKILL)
    assert actor_pid(topic, partition)
    assert served(cluster, topic, partition) == 0
    assert job.is_alive()
    gate.open()
    assert job.result() == expected
    assert served(cluster, topic, partition) > 0, "the range had been read before the kill"


def test_an_executor_is_killed_in_the_middle_of_a_job(spark, cluster, topic, gate):
    fill(cluster, topic)
    frame = read_topic(spark, topic, columns=("partition", "offset", "value"))
    expected = total(frame)
    job = Job(gated(frame, gate))
    gate.wait_for_readers()
    assert job.is_alive()
    os.kill(executor_pid(), signal.SIGKILL)
    gate.open()
    assert job.result() == expected


def gated(frame, gate):
    """The frame, whose tasks wait at the gate with their first records: the rest of their ranges is not read yet."""
    return frame.mapInArrow(gate.waiting(), frame.schema)


def served(cluster, topic, partition):
    """How many tables the leader has given to readers since it started."""
    leader = cluster.admin().describe_topics([topic])[0].partitions[partition].leader_actor
    published = ray.get(ray.get_actor(leader, namespace="rayka").published.remote())
    return published.misses + published.hits


def total(frame):
    return tuple(
        frame.agg(F.count("*"), F.sum(F.length("value")), F.sum("offset"), F.sum(F.hash("value"))).collect()[0]
    )


class Job:
    """The query in a thread."""

    def __init__(self, frame):
        self._result = None
        self._thread = threading.Thread(target=self._run, args=(frame,), daemon=True)
        self._thread.start()

    def _run(self, frame):
        self._result = total(frame)

    def is_alive(self):
        return self._thread.is_alive()

    def result(self):
        self._thread.join(120)
        assert not self._thread.is_alive(), "the job does not end"
        return self._result


def executor_pid():
    """The Java process of the executor: the parent of Spark's Python daemon."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            parent = child.parent()
            if "rayka.spark.daemon" in child.cmdline() and parent is not None and "java" in title(parent):
                return parent.pid
    raise AssertionError("there is no executor")
