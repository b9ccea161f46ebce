"""kill -9 of the driver, of its Python workers and of leaders: each record is once in Spark's own file sink."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rayka.testing import wait_until
from tests.spark4.reading import fill
from tests.spark4.test_stream import once, written
from tests.support.scale import rounds

KILLS = rounds(3, 20)
ROOT = Path(__file__).parents[2]
BATCHES = 10 + 5 * KILLS
TIMEOUT_S = 120


class Driver:
    """A streaming program, which is started again when it has ended before it was done."""

    def __init__(self, topic, cluster, directory):
        self.command = [sys.executable, "-m", "tests.spark4.streaming_driver", topic, cluster.bootstrap_servers]
        self.directory = directory
        self.process = None

    def start(self):
        if self.process is None or self.process.poll() is not None:
            command = [*self.command, os.fspath(self.directory)]
            self.process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    def committed(self):
        """How many batches are done."""
        return len(list((self.directory / "checkpoint" / "commits").glob("[0-9]*")))

    def wait_for(self, batches):
        """Wait for more batches; the program is started again if an error has ended it."""
        wanted = self.committed() + batches

        def is_there():
            self.start()
            return self.committed() >= wanted

        wait_until(is_there, TIMEOUT_S, "more batches")

    def workers(self):
        """The Python workers that Spark has forked."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        daemons = [each.pid for each in found if "pyspark.daemon" in each.cmdline()]
        return [each.pid for each in found if each.ppid() in daemons]

    def finish(self):
        self.start()
        return self.process.wait(TIMEOUT_S)

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.mark.timeout(rounds(400, 2400))
def test_each_record_is_written_once_whatever_is_killed(spark, cluster, topic, tmp_path, actor_pid):
    fill(cluster, topic, 60 * BATCHES)
    driver = Driver(topic, cluster, tmp_path)
    try:
        for number in range(KILLS):
            driver.wait_for(2)
            assert driver.committed() < BATCHES, "the kill came too late"
            if number % 3 == 0:
                os.kill(actor_pid(topic, number % 2), signal.SIGKILL)
            elif number % 3 == 1:
                os.kill(driver.workers()[-1], signal.SIGKILL)
            else:
                driver.kill()
        while driver.finish() and driver.committed() < BATCHES:
            driver.wait_for(1)
    finally:
        driver.kill()
    assert driver.committed() == BATCHES
    assert written(spark, tmp_path) == once(60 * BATCHES)
