"""kill -9 of leaders and of an executor in the middle of a job: the same results."""

from __future__ import annotations

import os
import signal
import threading

import psutil
from pyspark.sql import functions as F  # noqa: N812

from rayka.spark import read_topic
from rayka.testing import title
from tests.spark.test_read import COUNT, fill


def test_leaders_are_killed_in_the_middle_of_a_job(spark, cluster, topic, actor_pid):
    fill(cluster, topic, 10 * COUNT)
    frame = read_topic(spark, topic, max_records_per_partition=500)
    expected = total(frame)
    again = Job(frame)
    for partition in (0, 1, 2, 0):
        os.kill(actor_pid(topic, partition), signal.SIGKILL)
        again.wait(1.0)
    assert again.result() == expected


def test_an_executor_is_killed_in_the_middle_of_a_job(spark, cluster, topic):
    fill(cluster, topic, 10 * COUNT)
    frame = read_topic(spark, topic, max_records_per_partition=500)
    expected = total(frame)
    again = Job(frame)
    again.wait(0.5)
    os.kill(executor_pid(), signal.SIGKILL)
    assert again.result() == expected


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

    def wait(self, timeout_s):
        self._thread.join(timeout_s)

    def result(self):
        self._thread.join(120)
        assert not self._thread.is_alive(), "the job does not end"
        return self._result


def executor_pid():
    """The Java process of the executor: the parent of Spark's Python daemon."""
    for child in psutil.Process().children(recursive=True):
        if "pyspark.daemon" in child.cmdline() and "java" in title(child.parent()):
            return child.parent().pid
    raise AssertionError("there is no executor")
