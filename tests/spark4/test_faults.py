"""kill -9 of leaders, Python workers, executors and the driver: each record is once in Spark's own file sink.

In local mode the driver is the executor, so the long form has a small cluster of Spark, whose executors are processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rayka.testing import title, wait_until
from tests.spark4.reading import fill
from tests.spark4.test_stream import once, written
from tests.support.leaders import leader_pid
from tests.support.scale import IS_LONG, rounds

KILLED = ("leader", "worker", "driver", "executor") if IS_LONG else ("leader", "worker", "driver")
KILLS = rounds(1, 20) * len(KILLED)
MASTER = "local-cluster[1,2,1024]" if IS_LONG else "local[2,4]"
ROOT = Path(__file__).parents[2]
MAX_OFFSETS = 60
COUNT = MAX_OFFSETS * 20 * KILLS  # more batches than are done between two kills
TIMEOUT_S = 300
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Driver:
    """A streaming program, which is started again where an error or a kill has ended it."""

    def __init__(self, topic, cluster, directory):
        command = [sys.executable, "-m", "tests.spark4.streaming_driver", topic, cluster.bootstrap_servers]
        self._command = [*command, os.fspath(directory), MASTER]
        self._commits = directory / "checkpoint" / "commits"
        self._process = None

    def start(self, max_offsets=MAX_OFFSETS):
        """Start it unless it runs."""
        if self._process is None or self._process.poll() is not None:
            command = [*self._command, str(max_offsets)]
            self._process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    def committed(self):
        """How many batches are done: Spark keeps the files of the last hundred."""
        return max((int(path.name) + 1 for path in self._commits.glob("[0-9]*")), default=0)

    def wait_for(self, batches):
        """Wait until so many more batches are done."""
        wanted = self.committed() + batches

        def are_done():
            self.start()
            return self.committed() >= wanted

        wait_until(are_done, TIMEOUT_S, "more batches")

    def kill_worker(self):
        """Kill one of the Python workers, which read; tells whether there was one."""
        daemons = [each for each in self._children() if "pyspark.daemon" in title(each)]
        return kill_last([each for each in daemons if parent_of(each) in daemons])

    def kill_executor(self):
        """Kill the executor's Java process; tells whether there was one."""
        return kill_last([each for each in self._children() if EXECUTOR in command_of(each)])

    def finish(self):
        """Let it run to its end, with all that is left in one batch; its exit status."""
        self.start(max_offsets=COUNT)
        return self._process.wait(TIMEOUT_S)

    def kill(self):
        """Kill it with its Java process."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _children(self):
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def kill_last(found):
    """Kill the last of the processes that were found; tells whether there was one."""
    try:
        found[-1].kill()
    except (IndexError, psutil.NoSuchProcess):
        return False
    return True


def command_of(process):
    """Its command line; empty when it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def parent_of(process):
    """The process that has started it; None when it has ended."""
    try:
        return process.parent()
    except psutil.Error:
        return None


@pytest.mark.timeout(1200)  # Spark starts twice, and takes half a minute for a batch on a busy machine
def test_each_record_is_written_once_whatever_is_killed(spark, cluster, topic, tmp_path):
    fill(cluster, topic, COUNT)
    driver = Driver(topic, cluster, tmp_path)
    try:
        for number in range(KILLS):
            leader = leader_pid(cluster, topic, number % 3)  # before the batches, which go on meanwhile
            driver.wait_for(2)
            killed = KILLED[number % len(KILLED)]
            if killed == "leader":
                os.kill(leader, signal.SIGKILL)
            elif killed == "worker":
                wait_until(driver.kill_worker, TIMEOUT_S, "a Python worker")
            elif killed == "executor":
                wait_until(driver.kill_executor, TIMEOUT_S, "an executor")
            else:
                driver.kill()
            assert driver.committed() * MAX_OFFSETS < COUNT, "the kill came too late"
        driver.kill()
        wait_until(lambda: driver.finish() == 0, TIMEOUT_S, "the end of the program")
    finally:
        driver.kill()
    assert written(spark, tmp_path) == once(COUNT)
