"""The processes that read for Spark: what they import, and what they leave to later tasks."""

from __future__ import annotations

import subprocess
import sys

from tests.spark4.reading import fill

COUNT = 3_000
READING = """
import gc, sys
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, StructField, StructType
from rayka.spark.source.source import RaykaSource

options = CaseInsensitiveDict({"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]})
reader = RaykaSource(options).reader(StructType([StructField("value", BinaryType())]))
rows = [sum(batch.num_rows for batch in reader.read(partition)) for partition in reader.partitions()]
print(sum(rows), gc.get_freeze_count() > 0)
"""
WITH_DAEMON = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.python.daemon.module", "rayka.spark.worker.daemon").getOrCreate()
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}

def imported_from(batches):
    import pyarrow, pyspark
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"file": [pyspark.__file__]})

count = spark.read.format("rayka").options(**options).load().count()
file = spark.range(1).mapInArrow(imported_from, "file string").collect()[0][0]
print(count, "pyspark.zip" in file)
spark.stop()
"""


def answer(program, cluster, topic):
    """The last line that a new process prints."""
    command = [sys.executable, "-c", program, cluster.bootstrap_servers, topic]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


def test_a_process_that_has_read_collects_none_of_its_imports_again(cluster, topic):
    fill(cluster, topic, COUNT)
    assert answer(READING, cluster, topic) == f"{COUNT} True"


def test_workers_of_raykas_daemon_have_the_installed_pyspark(cluster, topic, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    fill(cluster, topic, COUNT)
    assert answer(WITH_DAEMON, cluster, topic) == f"{COUNT} False"
