"""Requests that wait for partitions to make progress: Kafka's purgatory, without timers.

The owner reports the progress and keeps the clock. The requests that a method returns are complete and no longer
held here: the owner answers them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from rayka.errors import ErrorCode
from rayka.replica.partition import Appended
from rayka.types import AppendResult, FetchPartition, FetchResult, IsolationLevel, TopicPartition


@dataclass(slots=True, eq=False)
class DelayedFetch:
    """A fetch that waits for `missing_bytes` more. `key` identifies it for cancelling, `done` takes its results."""

    key: Hashable
    done: Callable[[list[FetchResult]], None]
    partitions: Sequence[FetchPartition]
    max_bytes: int
    isolation: IsolationLevel
    missing_bytes: int


@dataclass(slots=True, eq=False)
class DelayedProduce:
    """Appends that are in the log. `respond` takes their results, in order, when all of them are visible.

    `required_offsets` has the high watermark that each partition must still reach. A partition that fails, or is
    too late, gets an error of its own and holds up the others no longer.
    """

    respond: Callable[[list[AppendResult]], None]
    topic_partitions: Sequence[TopicPartition]
    results: list[AppendResult]
    required_offsets: dict[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        respond: Callable[[list[AppendResult]], None],
        topic_partitions: Sequence[TopicPartition],
        appended: Sequence[Appended],
    ) -> DelayedProduce:
        """The appends of one request, to these partitions."""
        required: dict[TopicPartition, int] = {}
        for topic_partition, one in zip(topic_partitions, appended, strict=True):
            if not one.is_visible:
                required[topic_partition] = max(one.required_offset, required.get(topic_partition, 0))
        return cls(respond, topic_partitions, [one.result for one in appended], required)

    def fail(self, topic_partition: TopicPartition, error: ErrorCode) -> None:
        """The partition's appends will not become visible in time."""
        del self.required_offsets[topic_partition]
        self.results = [
            AppendResult(int(error)) if name == topic_partition and not result.error else result
            for name, result in zip(self.topic_partitions, self.results, strict=True)
        ]

    def answer(self) -> None:
        """Respond."""
        self.respond(self.results)


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
        """Remove a fetch whose time is over or whose reader is gone. None if it is not held any more."""
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
        """Hold the answer to appends until every partition's high watermark is where it must be."""
        for topic_partition in produce.required_offsets:
            self._produces.setdefault(topic_partition, []).append(produce)

    def high_watermark_at(self, topic_partition: TopicPartition, offset: int) -> list[DelayedProduce]:
        """The partition's high watermark is at `offset`: the appends that may be answered now, in order."""
        waiting = self._produces.get(topic_partition)
        if not waiting:
            return []
        ready = []
        left = []
        for produce in waiting:
            if produce.required_offsets[topic_partition] > offset:
                left.append(produce)
                continue
            del produce.required_offsets[topic_partition]
            if not produce.required_offsets:
                ready.append(produce)
        self._keep(topic_partition, left)
        return ready

    def fail_produces_of(self, topic_partition: TopicPartition, error: ErrorCode) -> list[DelayedProduce]:
        """The partition's high watermark will not advance, since it failed or left: the appends to answer now.

        An append that also goes to other partitions keeps waiting for those.
        """
        failed = self._produces.pop(topic_partition, [])
        for produce in failed:
            produce.fail(topic_partition, error)
        return [produce for produce in failed if not produce.required_offsets]

    def time_out_produce(self, produce: DelayedProduce) -> None:
        """The client waits no longer: what is not visible yet gets REQUEST_TIMED_OUT. The caller answers it."""
        for topic_partition in list(produce.required_offsets):
            self._keep(topic_partition, [one for one in self._produces[topic_partition] if one is not produce])
            produce.fail(topic_partition, ErrorCode.REQUEST_TIMED_OUT)

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

    def validate_state(self) -> None:
        """Raise AssertionError if a request is held by a partition that it does not wait for, or by none."""
        for topic_partition, fetches in self._fetches_by_partition.items():
            assert fetches, f"an empty entry for {topic_partition}"
            for key, fetch in fetches.items():
                assert self._fetches[key] is fetch
                assert fetch.missing_bytes > 0
                assert topic_partition in (partition.topic_partition for partition in fetch.partitions)
        for topic_partition, produces in self._produces.items():
            assert produces, f"an empty entry for {topic_partition}"
            assert all(topic_partition in produce.required_offsets for produce in produces)
        for produce in {id(one): one for produces in self._produces.values() for one in produces}.values():
            assert all(produce in self._produces[topic_partition] for topic_partition in produce.required_offsets)
