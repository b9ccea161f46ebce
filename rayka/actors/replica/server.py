"""Serves the replicas of one process: the link to them that needs no wire.

The decisions are in `storage.replicas` and `storage.purgatory`; this is where the clock, the event loop
and the fsync thread come in. Everything but the fsync happens in the loop, so the loop is the lock.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from rayka.actors.channel.link import CALL_TIMEOUT_S, AppendDone, CallDone, FetchDone, FetchParams
from rayka.actors.replica.group_commit import GroupCommit
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.replica.purgatory import DelayedFetch, DelayedProduce, Purgatory
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.types import (
    AppendRequest,
    AppendResult,
    EpochQuery,
    IsolationLevel,
    OffsetQuery,
    TopicPartition,
)

logger = logging.getLogger(__name__)


class ReplicaServer:
    """Implements `LeaderClient`. `disk_failed` is called when an I/O error came up."""

    is_in_process = True

    def __init__(self, replicas: Replicas, directory: LogDirectory, disk_failed: Callable[[], None]) -> None:
        self._replicas = replicas
        self._directory = directory
        self._disk_failed = disk_failed
        self._purgatory = Purgatory()
        self._loop = asyncio.get_running_loop()
        self._keys = itertools.count()
        self._group_commit = GroupCommit(self._flushed, self._flush_failed)
        self._unflushed_bytes: dict[TopicPartition, int] = {}
        self._services: dict[str, Callable[..., None]] = {}

    def offer(self, method: str, service: Callable[..., None]) -> None:
        """Serve one more method by `call`: `service(*arguments, done)` may answer later."""
        self._services[method] = service

    def append(self, requests: Sequence[AppendRequest], timeout_ms: int, done: AppendDone) -> None:
        """Append; answers at once, or after the flush that a topic asks for. Then wakes who waits for records."""
        now_ms = time.time_ns() // 1_000_000
        results = []
        required: dict[TopicPartition, int] = {}
        for request in requests:
            result, needed = self._replicas.append(request, now_ms)
            results.append(result)
            if needed:
                self._await_flush(request, needed, required)
        if required:
            self._purgatory.add_produce(DelayedProduce(done, results, required))
            self._group_commit.flush(self._replicas.get(topic_partition) for topic_partition in required)
        else:
            done(results)
        for (topic_partition, records, _), result in zip(requests, results, strict=True):
            if not result.error:
                if topic_partition not in required:
                    self._more_bytes(topic_partition, len(records))
            elif result.error == ErrorCode.KAFKA_STORAGE_ERROR:
                self._disk_failed()

    def _await_flush(self, request: AppendRequest, needed: int, required: dict[TopicPartition, int]) -> None:
        topic_partition = request.topic_partition
        required[topic_partition] = max(needed, required.get(topic_partition, 0))
        unflushed = self._unflushed_bytes.get(topic_partition, 0)
        self._unflushed_bytes[topic_partition] = unflushed + len(request.records)

    def _more_bytes(self, topic_partition: TopicPartition, size: int) -> None:
        for fetch in self._purgatory.more_bytes(topic_partition, size):
            self._answer_fetch(fetch)

    def _flushed(self, partition: Partition) -> None:
        """A flush of the partition is done: what waited for it becomes visible and is answered."""
        topic_partition = partition.topic_partition
        partition.advance_high_watermark()
        for produce in self._purgatory.high_watermark_at(topic_partition, partition.log.high_watermark):
            produce.done(produce.results)
        self._more_bytes(topic_partition, self._unflushed_bytes.pop(topic_partition, 0))

    def _flush_failed(self, partition: Partition, error: RaykaError) -> None:
        logger.error("%s: %s", partition.topic_partition, error)
        self.release(partition.topic_partition, ErrorCode.KAFKA_STORAGE_ERROR)
        self._disk_failed()

    def append_own(self, partition: Partition, records: memoryview, now_ms: int) -> int:
        """Append batches of this process' own making; returns the base offset. Raises RaykaError."""
        result, required = partition.append(records, partition.leader_epoch, now_ms, origin_is_client=False)
        if partition.log.high_watermark < required:
            self._await_flush(AppendRequest(partition.topic_partition, records), required, {})
            self._group_commit.flush((partition,))
        else:
            self._more_bytes(partition.topic_partition, len(records))
        return result.base_offset

    def when_visible(self, partition: Partition, offset: int, done: Callable[[], None]) -> None:
        """Call `done` when the high watermark is at `offset`, at once if it is; not at all if the partition fails."""
        if partition.log.high_watermark >= offset:
            done()
        else:

            def visible(results: list[AppendResult]) -> None:
                if not results[0].error:
                    done()

            required = {partition.topic_partition: offset}
            self._purgatory.add_produce(DelayedProduce(visible, [AppendResult(0)], required))

    def delete_own(self, partition: Partition, offset: int) -> None:
        """Move the log start offset of a partition up, and let its old segments go."""
        partition.log.delete_records(offset)
        partition.log.delete_old_segments(time.time_ns() // 1_000_000)
        self._directory.write_log_start_offsets({partition.topic_partition: partition.log.log_start_offset})

    def fetch(self, order: FetchParams, done: FetchDone) -> Hashable:
        """Read; answers at once if there is enough, else when there is or the time is over (then returns its key)."""
        results = self._replicas.fetch(order.partitions, order.max_bytes, order.isolation)
        missing = order.min_bytes - sum(result.size for result in results)
        if missing <= 0 or order.max_wait_s <= 0 or any(result.error for result in results):
            done(results)
            return None
        key = next(self._keys)
        self._purgatory.add_fetch(DelayedFetch(key, done, order.partitions, order.max_bytes, order.isolation, missing))
        self._loop.call_later(order.max_wait_s, self._fetch_timed_out, key)
        return key

    def cancel(self, key: Hashable) -> None:
        """Nobody waits for this fetch any more."""
        self._purgatory.take_fetch(key)

    def _fetch_timed_out(self, key: Hashable) -> None:
        fetch = self._purgatory.take_fetch(key)
        if fetch is not None:
            self._answer_fetch(fetch)

    def _answer_fetch(self, fetch: DelayedFetch) -> None:
        fetch.done(self._replicas.fetch(fetch.partitions, fetch.max_bytes, fetch.isolation))

    def release(self, topic_partition: TopicPartition, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """The partition changed its role, left or failed: nobody waits for it any longer."""
        for produce in self._purgatory.take_produces_of(topic_partition):
            produce.done([AppendResult(int(error)) for _ in produce.results])
        for fetch in self._purgatory.take_fetches_of(topic_partition):
            self._answer_fetch(fetch)

    def flush(self, partitions: Iterable[Partition]) -> None:
        """Flush in the background."""
        self._group_commit.flush(partitions)

    async def stop(self) -> None:
        """Wait for the flush under way."""
        await self._group_commit.stop()

    def close(self) -> None:
        """Nothing: the replicas live as long as their process."""

    def call(self, method: str, arguments: Sequence[Any], done: CallDone, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Call one of the rarer methods by name."""
        if method in self._services:
            self._services[method](*arguments, done)
            return
        try:
            answer = _CALLS[method](self, *arguments)
        except RaykaError as error:
            answer = [[int(error.code)]]
        done(answer)

    def _list_offsets(self, rows: Any, isolation: int) -> Any:
        queries = [OffsetQuery(TopicPartition(*row[0]), *row[1:]) for row in rows]
        return self._replicas.list_offsets(queries, IsolationLevel(isolation))

    def _epoch_end_offsets(self, rows: Any) -> Any:
        return self._replicas.epoch_end_offsets([EpochQuery(TopicPartition(*row[0]), *row[1:]) for row in rows])

    def _delete_records(self, rows: Any) -> Any:
        queries = [(TopicPartition(*topic_partition), offset) for topic_partition, offset in rows]
        answers = self._replicas.delete_records(queries)
        self._directory.write_log_start_offsets(
            {partition.topic_partition: partition.log.log_start_offset for partition in self._replicas}
        )
        return answers

    def _describe_log_dir(self) -> Any:
        offline = self._directory.offline is not None
        sizes = [(partition.topic_partition, partition.log.size, 0, False) for partition in self._replicas]
        total, usable = (-1, -1) if offline else self._directory.space()
        error = ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NONE
        return int(error), str(self._directory.path), sizes, total, usable


_CALLS: dict[str, Callable[..., Any]] = {
    "list_offsets": ReplicaServer._list_offsets,
    "epoch_end_offsets": ReplicaServer._epoch_end_offsets,
    "delete_records": ReplicaServer._delete_records,
    "describe_log_dir": ReplicaServer._describe_log_dir,
}
