"""The way to a partition actor on another node, by actor calls.

Record bytes travel as arguments and results: a fetch gets bytes instead of a place in a file.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import ray
import ray.exceptions

from rayka.actors.channel.channel_link import append_control, append_results, fetch_results
from rayka.actors.channel.frames import Operation
from rayka.actors.channel.link import CALL_TIMEOUT_S, GRACE_S, AppendDone, CallDone, FetchDone, FetchParams
from rayka.actors.channel.socket import ChannelClosed
from rayka.types import AppendParams, AppendRequest


class ActorLeaderClient:
    """Requests to one partition actor through its handle; calls start in the order in which they were made."""

    is_in_process = False

    def __init__(self, actor_name: str, namespace: str) -> None:
        self._actor_name = actor_name
        self._namespace = namespace
        self._handle: Any = None
        self._keys = itertools.count(1)
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        """As `LeaderClient.append`."""
        control, payload, _ = append_control(requests, params)
        timeout_s = params.timeout_ms / 1000 + GRACE_S
        self._submit(
            Operation.APPEND, control, b"".join(payload), lambda answer: done(append_results(answer)), timeout_s
        )

    def fetch(self, order: FetchParams, done: FetchDone) -> Hashable:
        """As `LeaderClient.fetch`; the results hold the records' bytes."""
        timeout_s = order.max_wait_s + GRACE_S
        return self._submit(Operation.FETCH, order, b"", lambda answer: done(fetch_results(answer)), timeout_s)

    def cancel(self, key: Hashable) -> None:
        """As `LeaderClient.cancel`; the leader's own wait ends by its time."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def call(self, method: str, arguments: Sequence[Any], done: CallDone, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """As `LeaderClient.call`."""
        self._submit(Operation.CALL, (method, tuple(arguments)), b"", done, timeout_s)

    def close(self) -> None:
        """As `LeaderClient.close`."""
        for task in list(self._tasks.values()):
            task.cancel()

    def _submit(self, operation: int, control: Any, payload: bytes, done: CallDone, timeout_s: float) -> Hashable:
        key = next(self._keys)
        try:
            if self._handle is None:
                self._handle = ray.get_actor(self._actor_name, namespace=self._namespace)
            reference = self._handle.serve.remote(operation, control, payload)
        except (ValueError, ray.exceptions.RayError) as error:
            asyncio.get_running_loop().call_soon(done, ChannelClosed(str(error), sent=False))
            return key
        task = asyncio.ensure_future(self._await(reference, done, timeout_s))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return key

    async def _await(self, reference: Any, done: CallDone, timeout_s: float) -> None:
        try:
            answer = await asyncio.wait_for(reference, timeout_s)
        except TimeoutError:
            answer = ChannelClosed(f"{self._actor_name} did not answer in time", sent=True)
        except ray.exceptions.RayError as error:
            self._handle = None
            answer = ChannelClosed(f"{self._actor_name}: {error}", sent=True)
        done(answer)
