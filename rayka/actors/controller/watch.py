"""Following the controller's image through one outstanding call.

`watch(version)` returns when there is something newer; the next call tells the controller that it has
been taken in. While the controller is away the last image stays good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions

from rayka.actors.node.spec import CONTROLLER_NAME
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.controller import Changes
from rayka.metadata.image import MetadataImage

logger = logging.getLogger(__name__)

_RETRY_S = 0.1
_MAX_RETRY_S = 2.0


def find_controller(namespace: str) -> Any:
    """The controller's handle. Raises BROKER_NOT_AVAILABLE if no rayka runs in this namespace."""
    try:
        return ray.get_actor(CONTROLLER_NAME, namespace=namespace)
    except ValueError:
        raise RaykaError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"no rayka runs in namespace {namespace!r} of this Ray cluster"
        ) from None


class ImageWatch:
    """The newest image that this process knows. `changed(before, after)` is called for each new one."""

    def __init__(
        self, controller: Any, watcher: str, changed: Callable[[MetadataImage, MetadataImage], None] | None = None
    ) -> None:
        self.image = MetadataImage()
        self._controller = controller
        self._watcher = watcher
        self._changed = changed
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Get the present image and go on following."""
        await self._take(await self._controller.watch.remote(self._watcher, -1))
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def wait_for(self, version: int, timeout_s: float) -> bool:
        """Wait until the image is at least at `version`; False if that took too long."""
        async with self._news:
            try:
                await asyncio.wait_for(self._news.wait_for(lambda: self.image.version >= version), timeout_s)
            except TimeoutError:
                return False
        return True

    async def _follow(self) -> None:
        delay = _RETRY_S
        # When Ray has ended in this process, one more call would start another Ray.
        while ray.is_initialized():
            try:
                await self._take(await self._controller.watch.remote(self._watcher, self.image.version))
                delay = _RETRY_S
            except ray.exceptions.RayError as error:
                logger.warning("the controller is away (%s); the last image stays", type(error).__name__)
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_RETRY_S)

    async def _take(self, changes: Changes) -> None:
        image = self.image if changes.snapshot is None else changes.snapshot
        for batch in changes.batches:
            image = image.apply_all(batch)
        if image is self.image:
            return
        before, self.image = self.image, image
        if self._changed is not None:
            self._changed(before, image)
        async with self._news:
            self._news.notify_all()
