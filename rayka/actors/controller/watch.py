"""Following the controller's image through one outstanding call.

`watch(position)` returns when there are newer changes; the next call tells the controller that they have been
applied. While the controller is away the last image stays in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import ray
import ray._private.auto_init_hook
import ray.exceptions

from rayka.actors.background import BackgroundTasks, StopLoop, in_daemon_thread
from rayka.actors.named import call, find_actor, joined_node
from rayka.actors.node.spec import CONTROLLER_NAME
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.controller import Changes, Position
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import RemoveTopicRecord

logger = logging.getLogger(__name__)

_OWN_THREADS = "rayka-"
_RETRY_S = 0.1
_MAX_RETRY_S = 2.0
_MOST_LOGGED = 20
"""Reasons in one outage: they may differ in a detail each time."""
_ADVICE = ". If the broker was started again, start this program again: its Ray has ended"
"""For programs. A process of the broker ends with its Ray."""


ImageChanged = Callable[[MetadataImage, MetadataImage, frozenset[uuid.UUID]], Awaitable[None] | None]


def _keep_ray_from_starting() -> None:
    """Let no thread of ours start Ray. A call to Ray starts a cluster in a process that is in none, also in one that
    has just left its own; then nothing in the process would find the broker any more.
    """
    hook: Any = ray._private.auto_init_hook
    start = hook.auto_init_ray

    def auto_init_ray() -> None:
        if not threading.current_thread().name.startswith(_OWN_THREADS):
            start()

    hook.auto_init_ray = auto_init_ray


_keep_ray_from_starting()


def find_controller(namespace: str) -> Any:
    """The controller's handle. Raises BROKER_NOT_AVAILABLE if no rayka runs in this namespace."""
    try:
        return ray.get_actor(CONTROLLER_NAME, namespace=namespace)
    except ValueError:
        raise RaykaError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"no rayka broker runs in namespace {namespace!r} of this Ray cluster"
        ) from None


class NamedController:
    """The handle of the controller that has the name now: another actor's after rayka was stopped and started again.

    Raises BROKER_NOT_AVAILABLE if no rayka runs in this namespace.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._handle = find_controller(namespace)
        self._node_id = joined_node()

    def __getattr__(self, method: str) -> Any:
        return getattr(self._handle, method)

    def find_again(self) -> None:
        """Look the name up, since the actor has died for good. While nobody has the name nothing changes."""
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            self._handle = find_actor(CONTROLLER_NAME, self._namespace, self._node_id)


class ImageWatch:
    """The newest image that this process knows. `changed(before, after, removed)` is called, and awaited if it is a
    coroutine, for each new one, before it shows; `removed` are the topics whose deletion was seen. Absence from an
    image alone is not a deletion.

    `deletions_version` is the version up to which an earlier process carried out the deletions of topics: what it
    deleted is not deleted once more, as somebody may have put it back.

    An image that is older than the present one, or of another cluster, is refused. If `changed` raises, the same image
    is tried again; with `die_after` the process ends after so many failures in a row, so that Ray restarts the actor.
    """

    def __init__(
        self,
        controller: Any,
        watcher: str,
        changed: ImageChanged | None = None,
        die_after: int | None = None,
        deletions_version: int = -1,
    ) -> None:
        self.image = MetadataImage()
        self.shown: list[Callable[[], None]] = []
        """Called after a new image shows."""
        self._controller = controller
        self._watcher = watcher
        self._changed = changed
        self._die_after = die_after
        self._deletions_version = deletions_version
        self._position = Position()
        self._news = asyncio.Condition()
        self._retry_s = _RETRY_S
        self._logged: set[str] = set()
        self._background = BackgroundTasks(watcher)

    async def start(self) -> None:
        """Get the current image and follow it."""
        await self.take(await self._controller.watch.remote(self._watcher, self._position))
        self._background.repeat("image watch", self._follow, die_after=self._die_after)

    async def stop(self) -> None:
        """Stop following."""
        await self._background.stop()

    async def wait_for(self, version: int, timeout_s: float) -> bool:
        """Wait until the image is at least at `version`; False if that took too long."""
        async with self._news:
            try:
                await asyncio.wait_for(self._news.wait_for(lambda: self.image.version >= version), timeout_s)
            except TimeoutError:
                return False
        return True

    async def _follow(self) -> None:
        if not ray.is_initialized():  # one more call would start another Ray in this process
            raise StopLoop
        try:
            changes = await call(self._controller.watch, self._watcher, self._position)
        except ray.exceptions.RayError as error:
            self._log_away(error)
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)
            has_died = isinstance(error, ray.exceptions.ActorDiedError) and isinstance(
                self._controller, NamedController
            )
            if has_died and ray.is_initialized():
                await in_daemon_thread(self._controller.find_again)  # for ever, where Ray has ended
            return
        self._retry_s = _RETRY_S
        if self._logged:
            self._logged.clear()
            logger.warning("the controller is available again")
        await self.take(changes)

    def _log_away(self, error: ray.exceptions.RayError) -> None:
        """Log that the controller does not answer: each reason once until it does.

        A controller that dies again and again has several, by turns.
        """
        reason = _reason(error)
        if reason not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(reason)
            advice = _ADVICE if self._die_after is None else ""
            logger.warning("the controller is unavailable (%s); the last metadata image stays in use%s", reason, advice)

    async def take(self, changes: Changes) -> None:
        """Make what the controller sent the image. Raises INCONSISTENT_CLUSTER_ID, or KAFKA_STORAGE_ERROR if it is
        older than what is known: a metadata log never goes back, unless it was damaged."""
        image = self.image if changes.snapshot is None else changes.snapshot
        for batch in changes.batches:
            image = image.apply_all(batch)
        self._check_newer(image)
        if image.version > self.image.version:
            if self._changed is not None:
                taken_in = self._changed(self.image, image, self._removed_topics(changes))
                if taken_in is not None:
                    await taken_in
            self.image, self._position = image, changes.position
            self._show()
        self._position = changes.position
        async with self._news:
            self._news.notify_all()

    def _removed_topics(self, changes: Changes) -> frozenset[uuid.UUID]:
        records = itertools.chain.from_iterable(changes.batches)
        seen = self._deletions_version if self._position.version < 0 else -1
        newly = (each.topic_id for each in changes.removed if each.version > seen)
        return frozenset(newly).union(each.topic_id for each in records if isinstance(each, RemoveTopicRecord))

    def _show(self) -> None:
        for notice in self.shown:
            try:
                notice()
            except Exception:
                logger.exception("%s: one that is told of each new image failed", self._watcher)

    def _check_newer(self, image: MetadataImage) -> None:
        if self.image.cluster_id and image.cluster_id != self.image.cluster_id:
            raise RaykaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"the controller sent metadata of cluster {image.cluster_id}, not of {self.image.cluster_id}",
            )
        if image.version < self.image.version:
            raise RaykaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the controller sent metadata of version {image.version}, but version {self.image.version} is known",
            )


def _reason(error: ray.exceptions.RayError) -> str:
    return str(error.cause) if isinstance(error, ray.exceptions.RayTaskError) else type(error).__name__
