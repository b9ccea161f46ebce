"""A way to one partition actor. There are three, with the same requests.

`ReplicaServer` itself, when the actor is in this process; `ChannelLeaderClient`, when it is another process of
this node; `ActorLeaderClient`, when it is on another node. What they are asked ends in a call of `done`, with the
answer or with `ChannelClosed`; a link that is not the actor itself calls it after the request returned.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from rayka.actors.channel.socket import ChannelClosed
from rayka.types import AppendParams, AppendRequest, AppendResult, FetchPartition, FetchResult, IsolationLevel

# An answer to a request that waits on the broker comes a little after the wait; more than that is a loss.
GRACE_S = 5.0
CALL_TIMEOUT_S = 30.0

AppendDone: TypeAlias = Callable[[list[AppendResult] | ChannelClosed], None]
FetchDone: TypeAlias = Callable[[list[FetchResult] | ChannelClosed], None]
CallDone: TypeAlias = Callable[[Any], None]


class FetchParams(NamedTuple):
    """What a leader is to read: wait up to `max_wait_s` seconds until `min_bytes` are together."""

    partitions: Sequence[FetchPartition]
    max_wait_s: float
    min_bytes: int
    max_bytes: int
    isolation: IsolationLevel


class LeaderClient(Protocol):
    """Requests to one partition actor."""

    @property
    def is_in_process(self) -> bool:
        """Whether the actor is in this process, so that `call` hands over objects as they are."""

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        """Append to partitions of this actor, in order; sent when this returns."""

    def fetch(self, order: FetchParams, done: FetchDone) -> Hashable:
        """Read from partitions of this actor; the returned key is good for `cancel`."""

    def cancel(self, key: Hashable) -> None:
        """The answer to a fetch is not wanted any more: `done` will not be called."""

    def call(self, method: str, arguments: Sequence[Any], done: CallDone, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Call one of the rarer methods."""

    def close(self) -> None:
        """Let go; what is under way ends."""
