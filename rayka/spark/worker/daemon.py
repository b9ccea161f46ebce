"""Spark's Python daemon, with what readers need already loaded: the executor forks its workers from it.

Spark runs it as `python -m rayka.spark.worker.daemon`, because `session` sets `spark.python.daemon.module`. Each worker
would otherwise import for a second by itself.
"""

from __future__ import annotations

import gc

from rayka.spark.worker.installed import prefer_installed


def run() -> None:
    """Load the decoder and run the daemon. Workers collect garbage after each task, but not what they share."""
    prefer_installed()
    import pyspark.daemon

    from rayka.spark.worker.splits import load_decoder

    load_decoder()
    gc.freeze()
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    run()
