"""What keeps a serving process from pausing."""

from __future__ import annotations

import gc

# Requests make few cycles. A full collection would walk everything that a process imported: tens of milliseconds.
_YOUNG, _MIDDLE, _OLD = 50_000, 20, 1_000


def tune_garbage_collection() -> None:
    """Set aside what start-up left for good, and collect seldom. Called once the process is ready to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
