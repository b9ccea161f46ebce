"""Settings of the Python interpreter that keep a serving process from pausing."""

from __future__ import annotations

import gc
import sys

# Requests make few cycles. A full collection would walk everything that a process imported: tens of milliseconds.
_YOUNG, _MIDDLE, _OLD = 50_000, 20, 1_000
# How long a thread that works for the disk, or decodes, may keep the event loop from running. Python's default is 5 ms.
_SWITCH_INTERVAL_S = 0.0001


def tune_interpreter() -> None:
    """Let threads give way to the event loop soon, freeze the objects of start-up, and collect garbage rarely.

    Call it once the process is ready to serve.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
