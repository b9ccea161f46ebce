"""Requests that wait for a partition to get on: Kafka's purgatory, without timers.

The owner tells how far partitions have come and keeps the clock; what is returned is ready to be
answered and is no longer held here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from rayka.types import AppendResult, FetchPartition, FetchResult, IsolationLevel, TopicPartition


@dataclass(slots=True, eq=False)
class DelayedFetch:
    """A fetch that waits for `missing_bytes` more. `key` names it for cancelling, `done` takes its results."""

    key: Hashable
    done: Callable[[list[FetchResult]], None]
    partitions: Sequence[FetchPartition]
    max_bytes: int
    isolation: IsolationLevel
    missing_bytes: int


@dataclass(slots=True, eq=False)
class DelayedProduce:
    """An append that is done but may not be answered before high watermarks reach `required`."""

    done: Callable[[list[AppendResult]], None]
    results: list[AppendResult]
    required: dict[TopicPartition, int] = field(default_factory=dict)


class Purgatory:
    """Holds delayed fetches and produces by partition."""

    def __init__(self) -> None:
        self._fetches: dict[Hashable, DelayedFetch] = {}
        self._fetches_by_partition: dict[TopicPartition, dict[Hashable, DelayedFetch]] = {}
        self._produces: dict[TopicPartition, list[DelayedProduce]] = {}

    def add_fetch(self, fetch: DelayedFetch) -> None:
        """Hold a fetch until it is ready, taken or cancelled."""
        self._fetches[fetch.key] = fetch
        for partition in fetch.partitions:
            self._fetches_by_partition.setdefault(partition.topic_partition, {})[fetch.key] = fetch

    def take_fetch(self, key: Hashable) -> DelayedFetch | None:
        """Let go of a fetch: its time is over or its reader is gone. None if it is not held any more."""
        fetch = self._fetches.pop(key, None)
        if fetch is not None:
            for partition in fetch.partitions:
                self._drop(partition.topic_partition, key)
        return fetch

    def more_bytes(self, topic_partition: TopicPartition, size: int) -> list[DelayedFetch]:
        """`size` more bytes can be read from the partition: the fetches that now have enough."""
        waiting = self._fetches_by_partition.get(topic_partition)
        if not waiting:
            return []
        ready = []
        for fetch in list(waiting.values()):
            fetch.missing_bytes -= size
            if fetch.missing_bytes <= 0:
                self.take_fetch(fetch.key)
                ready.append(fetch)
        return ready

    def take_fetches_of(self, topic_partition: TopicPartition) -> list[DelayedFetch]:
        """The fetches that wait for a partition that changed its role or went away."""
        waiting = list(self._fetches_by_partition.get(topic_partition, {}))
        return [fetch for key in waiting if (fetch := self.take_fetch(key)) is not None]

    def add_produce(self, produce: DelayedProduce) -> None:
        """Hold the answer to an append until every partition's high watermark is where it must be."""
        for topic_partition in produce.required:
            self._produces.setdefault(topic_partition, []).append(produce)

    def high_watermark_at(self, topic_partition: TopicPartition, offset: int) -> list[DelayedProduce]:
        """The partition's high watermark is at `offset`: the appends that may be answered now, in order."""
        waiting = self._produces.get(topic_partition)
        if not waiting:
            return []
        ready = []
        left = []
        for produce in waiting:
            if produce.required[topic_partition] > offset:
                left.append(produce)
                continue
            del produce.required[topic_partition]
            if not produce.required:
                ready.append(produce)
        self._keep(topic_partition, left)
        return ready

    def take_produces_of(self, topic_partition: TopicPartition) -> list[DelayedProduce]:
        """The appends that wait for a partition whose high watermark will not come: it failed, or left."""
        taken = self._produces.pop(topic_partition, [])
        for produce in taken:
            for other in produce.required:
                if other != topic_partition:
                    self._keep(other, [one for one in self._produces[other] if one is not produce])
        return taken

    def _keep(self, topic_partition: TopicPartition, left: list[DelayedProduce]) -> None:
        if left:
            self._produces[topic_partition] = left
        else:
            del self._produces[topic_partition]

    def _drop(self, topic_partition: TopicPartition, key: Hashable) -> None:
        waiting = self._fetches_by_partition.get(topic_partition)
        if waiting is not None:
            waiting.pop(key, None)
            if not waiting:
                del self._fetches_by_partition[topic_partition]
