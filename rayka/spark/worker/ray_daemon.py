"""Spark's Python daemon for workers that map tables: it has loaded Ray too."""

from __future__ import annotations

import rayka.client.joined  # noqa: F401
from rayka.spark.worker.daemon import run

if __name__ == "__main__":
    run()
