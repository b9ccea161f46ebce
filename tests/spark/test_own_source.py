"""Spark's own Kafka source and sink work against the broker's port, batch and Structured Streaming."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from benchmarks.spark import spark_jars
from tests.spark.test_read import fill, plain

ROOT = Path(__file__).parents[2]
COUNT = 1_000


def test_batch_and_structured_streaming(cluster, topic, other_topic, tmp_path):
    fill(cluster, topic, COUNT)
    before = plain(cluster, topic)
    jars = ",".join(map(os.fspath, spark_jars()))
    command = [sys.executable, "-m", "tests.spark.own_source", cluster.bootstrap_servers, topic, other_topic]
    command += [os.fspath(tmp_path / "checkpoint"), jars]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=560, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [
        COUNT, sum(len(row.value or b"") for row in before), sum(row.offset for row in before)
    ]  # fmt: skip
    once = Counter((row.key, row.value) for row in before)
    streamed = Counter((row.key, row.value) for row in plain(cluster, topic))
    assert streamed.total() == COUNT + 100
    assert Counter((row.key, row.value) for row in plain(cluster, other_topic)) == once + streamed
