"""Compiled code that a process loads once it has enough records to make that worthwhile.

Loading NumPy and the compiled code takes 0.1 s of processor time and about 40 MB. A program that sends or reads few
records never loads them. For one with many records, a background thread loads them while plain Python continues.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

LOAD_AFTER_RECORDS = 20_000
THREAD_NAME = "rayka-compiled"


class Compiled:
    """A function of a module that needs compiled code. `warm_up` calls it once, so that this is loaded or compiled."""

    def __init__(self, module: str, name: str, warm_up: Callable[[Callable[..., Any]], object]) -> None:
        self._module = module
        self._name = name
        self._warm_up = warm_up
        self._records = 0
        self._asked_in: int | None = None  # the process: a thread that loads does not live on in a forked one
        self.function: Callable[..., Any] | None = None

    def count(self, records: int) -> None:
        """Count records that were handled without the function; begin to load it after `LOAD_AFTER_RECORDS`."""
        self._records += records
        if self._records >= LOAD_AFTER_RECORDS and self._asked_in != os.getpid():
            self._asked_in = os.getpid()
            try:
                threading.Thread(target=self.load, name=THREAD_NAME, daemon=True).start()
            except BaseException as error:  # no more threads, no memory, or Ctrl-C: later then, if need be once more
                self._asked_in, self._records = None, 0
                if not isinstance(error, RuntimeError):
                    raise

    def load(self) -> None:
        """Load it now. Where that fails plain Python is used permanently, and the log says why."""
        self._asked_in = os.getpid()
        try:
            function = getattr(importlib.import_module(self._module), self._name)
            self._warm_up(function)
        except Exception as error:
            logger.warning("compiled code is not available, records are handled by plain Python: %r", error)
        else:
            self.function = function
