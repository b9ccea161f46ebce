"""The processes that follow the metadata image, and the version that each has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence


class Watchers:
    """The version that each follower has applied, as its `watch` call says."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._changed = asyncio.Condition()

    async def has(self, watcher: str, version: int) -> None:
        """Note that the watcher has applied this version."""
        self._versions[watcher] = version
        await self.notify()

    async def notify(self) -> None:
        """Wake all that wait for a version."""
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds; False if that took too long."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(condition), timeout_s)
            except TimeoutError:
                return False
        return True

    async def settled(self, names: Sequence[str], version: int, timeout_s: float) -> bool:
        """Wait until these watchers have applied `version`."""
        return await self.wait(lambda: all(self._versions.get(name, -1) >= version for name in names), timeout_s)
