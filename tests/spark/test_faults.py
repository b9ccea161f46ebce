"""kill -9 of leaders and of an executor in the middle of a job: the same results."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import psutil
import pytest
from pyspark import SparkContext
from pyspark.sql import functions as F  # noqa: N812

import rayka.spark
from rayka.spark import read_topic
from rayka.testing import title, wait_until
from tests.spark.conftest import start_session
from tests.support.gate import Gate
from tests.support.leaders import kill_leader, tables_given

ENOUGH_S = 300
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


def test_leaders_are_killed_in_the_middle_of_a_job(spark, cluster, topic, gate):
    fill(cluster, topic)
    frame = read_topic(spark, topic, columns=("partition", "offset", "value"))
    expected = total(frame)
    job = Job(gated(frame, gate))
    (partition, *_) = gate.wait_for_readers()
    for _ in range(2):
        kill_leader(cluster, topic, partition)
    given = tables_given(cluster, topic, partition)  # some, to tasks that began after the kill
    assert job.is_alive()
    gate.open()
    assert job.result() == expected
    assert tables_given(cluster, topic, partition) > given, "the range had been read before the kill"


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


def test_another_session_starts_after_one_has_ended_and_its_java_was_killed(spark):
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    rayka.spark.stop()
    java = SparkContext._gateway
    left = java.jvm.System.getProperty("spark.sql.shuffle.partitions")
    assert left is None, "the next session would have the settings of this one"
    java.proc.kill()
    java.proc.wait(ENOUGH_S)
    assert start_session().range(10).count() == 10


def gated(frame, gate):
    """The frame, whose tasks wait at the gate with their first records: the rest of their ranges is not read yet."""
    return frame.mapInArrow(gate.waiting(), frame.schema)


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
        self._thread.join(ENOUGH_S)
        assert not self._thread.is_alive(), "the job does not end"
        return self._result


def executor_pid():
    """The Java process of the executor: the parent of Spark's Python daemon."""
    found = []

    def is_there():
        found[:] = executors()
        return found != []

    wait_until(is_there, ENOUGH_S, "there is an executor")
    return found[0]


def executors():
    """The Java processes that have a Python daemon of ours."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            parent = child.parent()
            if (
                any("spark.worker" in part for part in child.cmdline())
                and parent is not None
                and "java" in title(parent)
            ):
                found.append(parent.pid)
    return found
