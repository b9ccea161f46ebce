"""The archive of Java's classes is used where there is one for this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayka.spark import archive


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(archive, "class_path", lambda: [f"{tmp_path}/jars/*"])
    return tmp_path


def test_an_archive_is_used_until_spark_changes(cache):
    assert archive.archive_options() == ""
    made = Path(archive.archive_path())
    made.parent.mkdir(parents=True)
    made.touch()
    assert f"-XX:SharedArchiveFile={made}" in archive.archive_options().split()
    (cache / "jars").mkdir()
    assert archive.archive_options() == ""


def test_an_archive_that_somebody_else_may_have_written_is_not_used(cache):
    archive.archive_path().parent.mkdir(parents=True)
    archive.archive_path().touch(mode=0o644)
    assert archive.archive_options()
    archive.archive_path().chmod(0o666)
    assert archive.archive_options() == ""


def test_a_cache_that_cannot_be_looked_into_has_no_archive(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + 300 * "x")
    assert archive.archive_options() == ""


def test_a_cache_that_cannot_be_written_is_named(cache, monkeypatch):
    java = cache / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(cache))
    monkeypatch.setenv("XDG_CACHE_HOME", str(java))
    with pytest.raises(SystemExit, match=f"No archive was made: .*{java}"):
        archive.main()


def test_classes_of_two_processes_are_listed_once():
    driver = "java/lang/Object id: 0\norg/apache/spark/A id: 1\nB id: 2 super: 0 source: jar\n@lambda-proxy C run\n"
    executor = "java/lang/Object id: 0\norg/apache/spark/D id: 1\n"
    assert archive.united([driver, executor]) == [
        "java/lang/Object",
        "org/apache/spark/A",
        "@lambda-proxy C run",
        "org/apache/spark/D",
    ]
