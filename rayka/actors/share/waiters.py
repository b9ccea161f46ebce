"""Share fetches that wait for records, by partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rayka.types import TopicPartition


class Waiter:
    """One fetch that waits: `woken` is done when it should look again, or give up if it was `superseded`."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self.partitions = partitions
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.superseded = False

    def wake(self) -> None:
        """Look again."""
        if not self.woken.done():
            self.woken.set_result(None)


class Waiters:
    """At most one fetch of each member waits: a later one ends the wait of the one before."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, dict[Waiter, None]] = {}
        self._by_member: dict[tuple[str, str], Waiter] = {}
        self._loop = asyncio.get_running_loop()

    def wake(self, topic_partition: TopicPartition) -> None:
        """Something has changed in a partition."""
        for waiter in list(self._by_partition.get(topic_partition, ())):
            waiter.wake()

    def supersede(self, member: tuple[str, str]) -> None:
        """A member no longer waits for the answer to its fetch."""
        waiter = self._by_member.get(member)
        if waiter is not None:
            waiter.superseded = True
            waiter.wake()

    async def wait(self, member: tuple[str, str], partitions: Sequence[TopicPartition], until: float) -> bool:
        """Wait for a change in one of the partitions, at most until a time of the loop's clock.

        Tells whether it is worth looking again: not if the wait was superseded.
        """
        self.supersede(member)
        waiter = self._by_member[member] = Waiter(partitions)
        for topic_partition in partitions:
            self._by_partition.setdefault(topic_partition, {})[waiter] = None
        timer = self._loop.call_at(until, waiter.wake)
        try:
            await waiter.woken
        finally:
            timer.cancel()
            self._forget(member, waiter)
        return not waiter.superseded

    def _forget(self, member: tuple[str, str], waiter: Waiter) -> None:
        if self._by_member.get(member) is waiter:
            del self._by_member[member]
        for topic_partition in waiter.partitions:
            waiters = self._by_partition[topic_partition]
            del waiters[waiter]
            if not waiters:
                del self._by_partition[topic_partition]
