"""Garbage collection settings that keep a serving process from pausing."""

from __future__ import annotations

import gc

# Requests make few cycles. A full collection would walk everything that a process imported: tens of milliseconds.
_YOUNG, _MIDDLE, _OLD = 50_000, 20, 1_000


def tune_garbage_collection() -> None:
    """Freeze the objects of start-up and collect rarely. Call it once the process is ready to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
