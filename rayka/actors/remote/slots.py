"""Limits how many tasks of one kind run at the same time. The limit is a setting that may change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

MOST_THREADS: Final = 64
"""No pool has more threads, whatever its setting says."""


class Slots:
    """`async with slots:` waits for a free one."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._taken = 0
        self._freed = asyncio.Condition()
        self.waiting = 0
        """How many wait for a slot."""

    async def __aenter__(self) -> None:
        async with self._freed:
            self.waiting += 1
            try:
                await self._freed.wait_for(lambda: self._taken < min(self._limit(), MOST_THREADS))
            except asyncio.CancelledError:
                self._freed.notify()  # the slot that it was told of is for another one
                raise
            finally:
                self.waiting -= 1
            self._taken += 1

    async def __aexit__(self, *_: object) -> None:
        self._taken -= 1  # even if this is cancelled before it gets the lock
        async with self._freed:
            self._freed.notify()
