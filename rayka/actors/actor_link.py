"""The way to a partition actor by actor calls: for callers on other nodes, who have no local channel.

It takes the same requests as `LocalChannel`. Record bytes travel as arguments and results, so a fetch
asks for bytes instead of a place in a file.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import ray
import ray.exceptions

from rayka.actors.channel import DEFAULT_TIMEOUT_S, ChannelClosed, Done


class ActorLink:
    """Requests to one partition actor through its handle; answers may come in any order."""

    def __init__(self, actor_name: str, namespace: str) -> None:
        self._actor_name = actor_name
        self._namespace = namespace
        self._handle: Any = None
        self._correlation_ids = itertools.count(1)
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def request(
        self,
        operation: int,
        control: Any,
        done: Done,
        *,
        payload: Sequence[memoryview] = (),
        payload_size: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> int:
        """As `LocalChannel.request`. The call has been submitted when this returns, so calls keep their order."""
        correlation_id = next(self._correlation_ids)
        try:
            handle = self._actor()
            reference = handle.serve.remote(operation, control, b"".join(payload))
        except (ValueError, ray.exceptions.RayError) as error:
            asyncio.get_running_loop().call_soon(done, ChannelClosed(str(error), sent=False))
            return correlation_id
        task = asyncio.ensure_future(self._await(reference, done, timeout_s))
        self._tasks[correlation_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(correlation_id, None))
        return correlation_id

    def cancel(self, correlation_id: int) -> None:
        """The answer is not wanted any more; the leader's own wait ends by its time."""
        task = self._tasks.pop(correlation_id, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Give up on what is under way."""
        for task in list(self._tasks.values()):
            task.cancel()

    def _actor(self) -> Any:
        if self._handle is None:
            self._handle = ray.get_actor(self._actor_name, namespace=self._namespace)
        return self._handle

    async def _await(self, reference: Any, done: Done, timeout_s: float) -> None:
        try:
            answer = await asyncio.wait_for(reference, timeout_s)
        except TimeoutError:
            answer = ChannelClosed(f"{self._actor_name} did not answer in time", sent=True)
        except ray.exceptions.RayError as error:
            self._handle = None
            answer = ChannelClosed(f"{self._actor_name}: {error}", sent=True)
        done(answer)
