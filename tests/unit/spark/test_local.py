"""The settings of a session of PySpark 4 in local mode."""

from __future__ import annotations

import os
import sys

import pytest

from rayka.spark.local import local_settings


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """An environment that is as before after the test, without an archive of Java's classes."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    for name in ("PYSPARK_PYTHON", "RAYKA_SPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_optimizing_compiler_waits_and_the_collector_keeps_to_a_part_of_the_heap():
    flags = local_settings()["spark.driver.extraJavaOptions"].split()
    assert {"-XX:Tier4InvocationThreshold=50000", "-XX:+UseParallelGC"} <= set(flags)


@pytest.mark.parametrize("given", [None, sys.executable, os.path.relpath(sys.executable)])
def test_spark_starts_our_program_as_python(monkeypatch, given):
    if given is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", given)
    local_settings()
    assert os.access(os.environ["PYSPARK_PYTHON"], os.X_OK)
    assert os.environ["PYSPARK_PYTHON"] != sys.executable
    assert os.environ["RAYKA_SPARK_PYTHON"] == sys.executable


def test_another_python_that_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python/bin/python3")
    local_settings()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python/bin/python3"


def test_a_program_that_another_one_started_has_its_own_python(monkeypatch):
    first = local_settings()
    monkeypatch.setenv("RAYKA_SPARK_PYTHON", "/opt/python/bin/python3")
    assert local_settings() == first
    assert os.environ["RAYKA_SPARK_PYTHON"] == sys.executable
