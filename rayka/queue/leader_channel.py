"""A thread's own way to the leader of a queue.

A thread that waits for an item reads the leader's answer itself: a task starts that much earlier. Through the event
loop, the loop's thread would have to wake it, and continues to run Python for longer than the whole fetch takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rayka.actors.channel.blocking_channel import BlockingChannel
from rayka.actors.channel.link import GRACE_S
from rayka.actors.channel.requests import ShareFetch, ShareFetched
from rayka.actors.channel.socket import ChannelClosed
from rayka.client.loop import LoopThread
from rayka.gateway.ports import Broker
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult

_NOWHERE: Final = ""


class LeaderChannel:
    """Asks the leaders of a queue's partitions; for one thread at a time, and never for that of the event loop."""

    def __init__(self, broker: Broker, loop: LoopThread) -> None:
        self._broker = broker
        self._loop = loop
        self._path = _NOWHERE
        self._channel: BlockingChannel | None = None

    def fetch(
        self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]
    ) -> tuple[int, list[ShareFetchResult]]:
        """As `ShareLeaders.fetch`: by the thread's own connection if one other process of this node leads them all."""
        fetched = self._ask(params, partitions)
        if fetched is None:
            return self._loop.run(self._broker.share_leaders.fetch(params, partitions))
        return fetched.lock_duration_ms, list(fetched.results)

    def _ask(self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]) -> ShareFetched | None:
        """None if there is no such connection, or no answer by it."""
        channel = self._open(partitions)
        if channel is None:
            return None
        try:
            channel.request(ShareFetch(params, tuple(partitions)), b"")
            answer = channel.receive(params.max_wait_s + GRACE_S)
        except ChannelClosed:
            answer = None
        if isinstance(answer, ShareFetched):
            return answer
        self.close()  # A late answer must not be mistaken for that of the next request.
        return None

    def _open(self, partitions: Sequence[ShareFetchPartition]) -> BlockingChannel | None:
        found = {self._broker.partitions.channel_of(each.topic_partition) for each in partitions}
        leader = found.pop() if len(found) == 1 else None
        path = _NOWHERE if leader is None else leader[0]
        if path != self._path:
            self.close()
            self._path = path
        if self._channel is None and path:
            try:
                self._channel = BlockingChannel(path)
            except ChannelClosed:
                return None
        return self._channel

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
