"""Sessions go on from a Java that was killed, which PySpark itself does not notice."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from rayka.spark.driver import forget_java, java_has_ended


@pytest.fixture
def process(monkeypatch):
    """A process in place of Java."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        gateway = SimpleNamespace(proc=process, close=lambda: None)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        monkeypatch.setattr(SparkContext, "_jvm", None)
        yield process
        process.kill()


def test_java_that_was_killed_is_started_again(process):
    assert not java_has_ended()
    process.kill()
    process.wait()
    assert java_has_ended()
    forget_java()
    assert SparkContext._gateway is None
    assert not java_has_ended()
