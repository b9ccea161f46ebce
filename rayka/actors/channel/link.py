"""Requests to one partition actor: a protocol with three implementations.

`ReplicaServer` itself, when the actor is in this process; `ChannelLeaderClient`, when it is in another process of
this node; `ActorLeaderClient`, when it is on another node. Every request ends in a call of `done`, with the answer or
with a failure; only `ReplicaServer` may call it before the request returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeAlias

from rayka.actors.channel.requests import FetchParams, LeaderRequest
from rayka.actors.channel.socket import ChannelClosed
from rayka.errors import RaykaError
from rayka.types import AppendParams, AppendRequest, AppendResult, FetchResult

# An answer to a request that waits on the broker comes a little after the wait; more than that is a loss.
GRACE_S = 5.0
CALL_TIMEOUT_S = 30.0

Failed: TypeAlias = ChannelClosed | RaykaError
"""Why there is no answer: the leader is gone, or it refused the request as a whole."""
AppendDone: TypeAlias = Callable[[Sequence[AppendResult] | Failed], None]
FetchDone: TypeAlias = Callable[[Sequence[FetchResult] | Failed], None]
Done: TypeAlias = Callable[[Any], None]


class LeaderClient(Protocol):
    """Requests to one start of a partition actor."""

    @property
    def is_in_process(self) -> bool:
        """Whether the actor is in this process."""

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        """Append to partitions of this actor, in order; sent when this returns."""

    def fetch(self, params: FetchParams, done: FetchDone) -> Hashable:
        """Read from partitions of this actor; returns a key for `cancel`."""

    def cancel(self, key: Hashable) -> None:
        """The answer to a fetch is not wanted any more: `done` will not be called."""

    def ask(self, request: LeaderRequest, done: Done, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Send one of the rarer requests; `done` gets the answer that `OPERATIONS` names, or a failure."""

    def close(self) -> None:
        """Close the connection; requests under way end with a failure."""


def result_setter(future: asyncio.Future[Any]) -> Done:
    """A `done` that gives the answer, or the failure as a value, to a future that may have been cancelled."""

    def done(answer: Any) -> None:
        if not future.done():
            future.set_result(answer)

    return done
