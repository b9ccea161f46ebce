"""The processes that follow the metadata image, and the version that each has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence


class Watchers:
    """The version that each follower has applied, as its `watch` call says."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._taken_in = asyncio.Condition()
        """Apart from the other one: those that wait for an image are many, and each is here after each change."""

    async def has(self, watcher: str, version: int) -> None:
        """Note that the watcher has applied this version."""
        self._versions[watcher] = version
        async with self._taken_in:
            self._taken_in.notify_all()

    async def notify(self) -> None:
        """Wake all that wait for a change of the image."""
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the image is as it should be; False if that took too long."""
        return await _holds(self._changed, condition, timeout_s)

    async def settled(self, names: Sequence[str], version: int, timeout_s: float) -> bool:
        """Wait until these watchers have applied `version`."""

        def have_it() -> bool:
            return all(self._versions.get(name, -1) >= version for name in names)

        return await _holds(self._taken_in, have_it, timeout_s)


async def _holds(changed: asyncio.Condition, condition: Callable[[], bool], timeout_s: float) -> bool:
    async with changed:
        try:
            await asyncio.wait_for(changed.wait_for(condition), timeout_s)
        except TimeoutError:
            return False
    return True
