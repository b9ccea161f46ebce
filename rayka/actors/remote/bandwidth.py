"""Limits the rate of uploads to the remote store, or of downloads from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rayka.storage.cleaner.throttle import Throttle


class Bandwidth:
    """Called in any thread with a number of bytes, sleeps as long as the rate asks for. The rate may change."""

    def __init__(self, bytes_per_second: Callable[[], float]) -> None:
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._rate = 0.0
        self._throttle: Throttle | None = None
        self._stopped = threading.Event()

    def __call__(self, size: int) -> None:
        """Take `size` bytes into account. Raises OSError once the actor stops."""
        with self._lock:
            rate = self._bytes_per_second()
            if self._throttle is None or rate != self._rate:
                self._rate, self._throttle = rate, Throttle(rate, time.monotonic, self._stopped.wait)
            throttle = self._throttle
        throttle(size)
        if self._stopped.is_set():
            raise OSError("the actor stops")

    def stop(self) -> None:
        """End every sleep. Later calls raise OSError."""
        self._stopped.set()
