"""The partition actors of one node, with a few spare ones kept started.

Creating a topic never waits for a process to start: its replicas go to running actors, spare ones first.
New spares are started afterwards, up to `partition.actors.per.node`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import ray
import ray.exceptions

from rayka.actors.background import BackgroundTasks
from rayka.actors.node.spec import NodeSpec
from rayka.actors.replica.actor import PartitionActor

logger = logging.getLogger(__name__)

_POLL_AFTER_LOSS_S = 0.2


class PartitionPool:
    """Starts partition actors and notices their death.

    `epoch(name)` is the epoch in which an actor registered last. `lost(name, epoch)` is called with the one that died
    if the actor has not registered again after `grace_s`; how long it then recovers does not matter.
    """

    def __init__(
        self,
        spec: NodeSpec,
        options: Callable[[NodeSpec, str], dict[str, Any]],
        epoch: Callable[[str], int],
        lost: Callable[[str, int], None],
        grace_s: float,
    ) -> None:
        self._spec = spec
        self._options = options
        self._epoch = epoch
        self._lost = lost
        self._grace_s = grace_s
        self._actor_class = ray.remote(PartitionActor)
        self.actors: dict[str, Any] = {}
        self._background = BackgroundTasks("partition pool")

    def ensure(self, indexes: Iterable[int]) -> None:
        """Start (or find) the actors with these indexes."""
        for index in indexes:
            name = self._spec.partition_actor_name(index)
            if name not in self.actors:
                actor = self._actor_class.options(**self._options(self._spec, name)).remote(self._spec, index)
                self.actors[name] = actor
                self._background.repeat(f"guard of {name}", functools.partial(self._guard, name, actor))

    def next_indexes(self, count: int) -> list[int]:
        """The lowest indexes without an actor."""
        taken = set(self.actors)
        free = (index for index in range(len(taken) + count) if self._spec.partition_actor_name(index) not in taken)
        return [index for index, _ in zip(free, range(count), strict=False)]

    async def ready(self) -> None:
        """Wait until every actor serves, also one that dies while it starts and is restarted by Ray."""
        await asyncio.gather(*(self._ready(actor) for actor in self.actors.values()))

    async def _ready(self, actor: Any) -> None:
        while True:
            try:
                await actor.ready.remote()
            except (ray.exceptions.ActorUnavailableError, ray.exceptions.ActorDiedError):
                await asyncio.sleep(_POLL_AFTER_LOSS_S)
            else:
                return

    def stop(self) -> None:
        """Stop watching the actors."""
        self._background.cancel()

    async def _guard(self, name: str, actor: Any) -> None:
        """Hold a call that never returns: Ray fails it when the actor's process dies."""
        try:
            await actor.lives.remote()
        except ray.exceptions.RayError as error:
            logger.warning("%s died (%s); Ray restarts it", name, type(error).__name__)
        epoch = self._epoch(name)
        if not await self._came_back(name, actor, epoch):
            self._lost(name, epoch)

    async def _came_back(self, name: str, actor: Any, epoch: int) -> bool:
        """Whether a new process registers, or the same one answers, within the grace period."""
        deadline = asyncio.get_running_loop().time() + self._grace_s
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                await asyncio.wait_for(actor.ready.remote(), min(left, _POLL_AFTER_LOSS_S))
                return True
            if self._epoch(name) != epoch:
                return True
            await asyncio.sleep(min(left, _POLL_AFTER_LOSS_S))
        return False
