"""The flags of Java of a session."""

from __future__ import annotations

from rayka.spark.sessions import java_settings

DRIVER, EXECUTOR = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"


def test_the_optimizing_compiler_waits_in_the_driver_only():
    settings = java_settings({})
    assert "-XX:Tier4InvocationThreshold=50000" in settings[DRIVER].split()
    assert "Tier4" not in settings[EXECUTOR]


def test_the_last_flag_counts_and_is_that_of_the_user():
    flags = java_settings({DRIVER: "-XX:Tier4InvocationThreshold=5000"})[DRIVER].split()
    assert [flag for flag in flags if "Tier4Invocation" in flag][-1] == "-XX:Tier4InvocationThreshold=5000"


def test_executors_keep_the_collector_that_the_user_chose():
    assert "-XX:+UseParallelGC" in java_settings({})[EXECUTOR].split()
    assert "UseParallelGC" not in java_settings({EXECUTOR: "-XX:+UseG1GC"})[EXECUTOR]
