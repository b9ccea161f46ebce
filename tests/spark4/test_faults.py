"""kill -9 of the driver: each record is once in Spark's own file sink."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from rayka.testing import wait_until
from tests.spark4.reading import fill
from tests.spark4.test_stream import once, written

CRASHES = int(os.environ.get("RAYKA_TEST_CRASHES", "1"))
ROOT = Path(__file__).parents[2]
BATCHES = 10 + 5 * CRASHES
TIMEOUT_S = 100


def start_driver(topic, cluster, tmp_path):
    command = [sys.executable, "-m", "tests.spark4.streaming_driver", topic, cluster.bootstrap_servers]
    return subprocess.Popen([*command, os.fspath(tmp_path)], cwd=ROOT, start_new_session=True)


def committed(tmp_path):
    """How many batches are done."""
    return len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))


def test_each_record_is_written_once_though_the_driver_is_killed(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 60 * BATCHES)
    for _ in range(CRASHES):
        before = committed(tmp_path)
        driver = start_driver(topic, cluster, tmp_path)
        try:
            wait_until(lambda before=before: committed(tmp_path) >= before + 2, TIMEOUT_S, "two batches")
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert before < committed(tmp_path) < BATCHES, "the driver was killed too late"
    assert start_driver(topic, cluster, tmp_path).wait(TIMEOUT_S) == 0
    assert committed(tmp_path) == BATCHES
    assert written(spark, tmp_path) == once(60 * BATCHES)
