"""The flags of Java of a session."""

from __future__ import annotations

import pytest

from rayka.spark.sessions import java_settings

DRIVER, EXECUTOR = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"


@pytest.mark.parametrize("process", [DRIVER, EXECUTOR])
def test_the_optimizing_compiler_waits(process):
    assert "-XX:Tier4InvocationThreshold=50000" in java_settings({})[process].split()


@pytest.mark.parametrize("process", [DRIVER, EXECUTOR])
def test_the_last_flag_counts_and_is_that_of_the_user(process):
    flags = java_settings({process: "-XX:Tier4InvocationThreshold=5000"})[process].split()
    assert [flag for flag in flags if "Tier4Invocation" in flag][-1] == "-XX:Tier4InvocationThreshold=5000"


def test_executors_keep_the_collector_that_the_user_chose():
    assert "-XX:+UseParallelGC" in java_settings({})[EXECUTOR].split()
    assert "UseParallelGC" not in java_settings({EXECUTOR: "-XX:+UseG1GC"})[EXECUTOR]
