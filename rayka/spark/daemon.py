"""Spark's Python daemon, with what readers import already loaded: the executor forks its workers from it.

Spark runs it as `python -m rayka.spark.daemon`, because `session` sets `spark.python.daemon.module`. Each worker would
otherwise import for a second by itself.
"""

from __future__ import annotations

import pyspark.daemon

import rayka.spark.executor  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]
