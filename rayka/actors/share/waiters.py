"""Share fetches that wait for records, by partition and group.

Records that come are worth one fetch, so one is woken, the one that has waited longest. When it has looked, and some
records are left, it passes the wake on to the next. A fetch that took nothing, say because it wants more bytes, passes
it on only to those that have not looked since records last came or were taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from rayka.types import TopicPartition


class GroupPartition(NamedTuple):
    """A partition as one share group sees it."""

    group_id: str
    topic_partition: TopicPartition


class Waiter:
    """One fetch that waits: `woken` is done when it should look again, or give up if it was `superseded`.

    It has looked after `seen` changes, and lets records gather for `gather_s`.
    """

    def __init__(self, keys: Sequence[GroupPartition], seen: int, gather_s: float) -> None:
        self.keys = keys
        self.seen = seen
        self.gather_s = gather_s
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.superseded = False

    def wake(self) -> None:
        """Look again."""
        if not self.woken.done():
            self.woken.set_result(None)


class Waiters:
    """At most one fetch of each member waits: a later one ends the wait of the one before."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, dict[str, dict[Waiter, None]]] = {}
        self._by_member: dict[tuple[str, str], Waiter] = {}
        self._changes = 0
        self._loop = asyncio.get_running_loop()

    def keys(self, topic_partition: TopicPartition) -> list[GroupPartition]:
        """The share-partitions of a partition for which fetches wait."""
        groups = self._by_partition.get(topic_partition)
        return [GroupPartition(group_id, topic_partition) for group_id in groups] if groups else []

    def gather_s(self, key: GroupPartition) -> float:
        """How long records may gather for the fetch that has waited longest; 0 if none waits."""
        waiters = self._by_partition.get(key.topic_partition, {}).get(key.group_id, ())
        return next((waiter.gather_s for waiter in waiters), 0.0)

    def has_waiters(self, key: GroupPartition) -> bool:
        """Whether a fetch waits for records of this share-partition."""
        return key.group_id in self._by_partition.get(key.topic_partition, ())

    def has_group(self, group_id: str) -> bool:
        """Whether a fetch of the group waits, wherever."""
        return any(waiting == group_id for waiting, _ in self._by_member)

    def wake_all(self, topic_partition: TopicPartition) -> None:
        """Wake all fetches that wait for a partition, because its leader has changed."""
        for waiters in self._by_partition.get(topic_partition, {}).values():
            for waiter in waiters:
                waiter.wake()

    def wake(self, key: GroupPartition) -> None:
        """Records have come, have become available again, or were taken and some are left: wake one fetch."""
        self._changes += 1
        self.pass_on(key)

    def pass_on(self, key: GroupPartition) -> None:
        """Wake one fetch that has not looked since the last change, unless one is about to look."""
        waiters = self._by_partition.get(key.topic_partition, {}).get(key.group_id, ())
        following = None
        for waiter in waiters:
            if waiter.woken.done():
                return
            if following is None and waiter.seen < self._changes:
                following = waiter
        if following is not None:
            following.wake()

    def supersede(self, member: tuple[str, str]) -> None:
        """A member no longer waits for the answer to its fetch."""
        waiter = self._by_member.get(member)
        if waiter is not None:
            waiter.superseded = True
            waiter.wake()

    async def wait(
        self, member: tuple[str, str], keys: Sequence[GroupPartition], until: float, gather_s: float = 0.0
    ) -> bool:
        """Wait for a change in one of the share-partitions, at most until a time of the loop's clock.

        Returns whether it is worth looking again: not if the wait was superseded.
        """
        self.supersede(member)
        waiter = self._by_member[member] = Waiter(keys, self._changes, gather_s)
        for group_id, topic_partition in keys:
            self._by_partition.setdefault(topic_partition, {}).setdefault(group_id, {})[waiter] = None
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
        for group_id, topic_partition in waiter.keys:
            groups = self._by_partition[topic_partition]
            del groups[group_id][waiter]
            if not groups[group_id]:
                del groups[group_id]
            if not groups:
                del self._by_partition[topic_partition]
