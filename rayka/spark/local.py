"""Settings with which a session of PySpark 4 in local mode starts sooner."""

from __future__ import annotations

import os
import shutil
import sys

from rayka.spark import worker
from rayka.spark.archive import archive_options
from rayka.spark.jars import class_path
from rayka.spark.java import PARALLEL_COLLECTOR, PATIENT_COMPILER

_SPARKS_PYTHON = "PYSPARK_PYTHON"
_OWN_PYTHON = "RAYKA_SPARK_PYTHON"
_PROGRAM = os.path.join(os.path.dirname(worker.__file__), "python")


def local_settings() -> dict[str, str]:
    """Spark's settings for local mode with PySpark 4: `SparkSession.builder.config(map=local_settings())`.

    Spark's Python processes load the installed PySpark with its bytecode, and workers are forked from one that has
    loaded the decoder. Java uses the archive of `python -m rayka.spark.archive`, if there is one, and compiles less
    while it starts. Call this before Spark starts: it also sets `PYSPARK_PYTHON` in the environment of this program,
    unless that names another Python.
    """
    if _is_ours(os.environ.get(_SPARKS_PYTHON, sys.executable)) and os.access(_PROGRAM, os.X_OK):
        os.environ |= {_SPARKS_PYTHON: _PROGRAM, _OWN_PYTHON: sys.executable}
    options = (archive_options(), PATIENT_COMPILER, PARALLEL_COLLECTOR)
    return {
        "spark.python.daemon.module": "rayka.spark.worker.daemon",
        "spark.driver.extraClassPath": os.pathsep.join(class_path()),
        "spark.driver.extraJavaOptions": " ".join(filter(None, options)),
    }


def _is_ours(python: str) -> bool:
    """Whether this is the Python of this program, or what an earlier call has set, here or in the program above."""
    return os.path.abspath(shutil.which(python) or python) in (sys.executable, _PROGRAM)
