"""The thread in which a gateway converts old message formats (magic 0 and 1), so that its event loop does not wait.

One at a time: a message set may decompress to many times its size, and a client of these formats should not take the
processor from all others. On a new installation the first conversion compiles for some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Conversions:
    """Runs one function after the other. The thread starts with the first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "rayka-convert")

    def run(self, convert: Callable[[], T]) -> asyncio.Future[T]:
        """What `convert` returns or raises, later."""
        return self._loop.run_in_executor(self._thread, convert)

    def close(self) -> None:
        """Drop what has not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)
