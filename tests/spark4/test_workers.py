"""Spark's processes: what they import, what they leave to later tasks, and how they start with `local_settings`."""

from __future__ import annotations

import subprocess
import sys

from tests.spark4.reading import fill
from tests.support.readme import ROOT, blocks

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
(SETTINGS,) = [
    block.text for block in blocks(ROOT / "docs" / "spark.md") if block.test == "tests/spark4/test_workers.py"
]
WITH_SETTINGS = """
import os, sys
from pathlib import Path
from pyspark.sql.datasource import DataSource, DataSourceReader

class Planned(DataSourceReader):
    def __init__(self):
        import pyspark
        self._planned = pyspark.__file__

    def read(self, partition):
        import pyspark
        yield self._planned, pyspark.__file__

class Files(DataSource):
    @classmethod
    def name(cls):
        return "files"

    def schema(self):
        return "planned string, read string"

    def reader(self, schema):
        return Planned()

options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}
count = spark.read.format("rayka").options(**options).load().count()
spark.dataSource.register(Files)
files = spark.read.format("files").load().collect()[0]
mapped = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
print(count, *["pyspark.zip" in file for file in files], os.environ["XDG_CACHE_HOME"] in mapped)
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


def test_processes_that_plan_have_the_installed_pyspark_with_local_settings(cluster, topic, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    fill(cluster, topic, COUNT)
    assert answer(SETTINGS + WITH_SETTINGS, cluster, topic) == f"{COUNT} False False False"


def test_java_maps_an_archive_that_was_made_before(cluster, topic, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    fill(cluster, topic, COUNT)
    subprocess.run([sys.executable, "-m", "rayka.spark.archive"], capture_output=True, text=True, check=True)
    assert answer(SETTINGS + WITH_SETTINGS, cluster, topic) == f"{COUNT} False False True"
