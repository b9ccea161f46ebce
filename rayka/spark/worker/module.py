"""Runs a module of Spark's Python processes with the installed PySpark: `python -m rayka.spark.worker.module MODULE`.

To plan a query of a Python data source, Spark starts three daemons, whose module no setting changes.
"""

from __future__ import annotations

import runpy
import sys

from rayka.spark.worker.installed import prefer_installed


def run() -> None:
    """Run the module as `python -m` does."""
    prefer_installed()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run()
