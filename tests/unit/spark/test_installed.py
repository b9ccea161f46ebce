"""Python's processes import PySpark from where its bytecode is kept."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayka.spark.worker.installed import without_archives

_PYSPARK = Path(str(importlib.util.find_spec("pyspark").origin)).parent
_ARCHIVES = sorted(map(str, _PYSPARK.glob("python/lib/*.zip")))


def test_archives_of_the_installed_pyspark_are_left_out():
    assert len(_ARCHIVES) == 2
    assert without_archives([*_ARCHIVES, *sys.path]) == sys.path


@pytest.mark.parametrize("missing", ["pyspark", "py4j"])
def test_archives_stay_where_a_package_is_not_installed(tmp_path, missing):
    lib = tmp_path / "pyspark" / "python" / "lib"
    lib.mkdir(parents=True)
    for name in {"pyspark", "py4j"} - {missing}:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").touch()
    path = [str(lib / "pyspark.zip"), str(lib / "py4j-src.zip"), str(tmp_path)]
    assert without_archives(path) == path


def test_archives_of_another_pyspark_stay(tmp_path):
    path = [str(tmp_path / "python" / "lib" / "pyspark.zip"), *sys.path]
    assert without_archives(path) == path


def test_daemon_imports_the_installed_pyspark():
    code = (
        "from rayka.spark.worker.installed import prefer_installed; prefer_installed();"
        " import pyspark, py4j; print(pyspark.__file__); print(py4j.__file__)"
    )
    path = os.pathsep.join([*_ARCHIVES, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ".zip" not in done.stdout
    assert str(_PYSPARK / "__init__.py") in done.stdout
