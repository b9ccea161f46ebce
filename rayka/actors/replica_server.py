"""Serves requests to the replicas of one process: what comes over the local channel or by actor call.

The decisions are in `storage.replicas` and `storage.purgatory`; this is where the clock, the event loop
and the fsync thread come in. Everything but the fsync happens in the loop, so the loop is the lock.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from rayka.actors.frames import Operation
from rayka.actors.group_commit import GroupCommit
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.log_directory import LogDirectory
from rayka.storage.partition import Partition
from rayka.storage.purgatory import DelayedFetch, DelayedProduce, Purgatory
from rayka.storage.reader import SegmentReader
from rayka.storage.replicas import Replicas
from rayka.types import (
    AppendRequest,
    AppendResult,
    EpochQuery,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    OffsetQuery,
    TopicPartition,
)

logger = logging.getLogger(__name__)


class Request(Protocol):
    """What the channel and the actor call have in common."""

    operation: int
    correlation_id: int
    control: Any
    payload: memoryview

    @property
    def connection(self) -> object: ...

    def answer(self, control: Any) -> None: ...


class ReplicaServer:
    """Dispatches requests; `serve` is given to the channel. `disk_failed` is called once an I/O error came up."""

    def __init__(self, replicas: Replicas, directory: LogDirectory, disk_failed: Callable[[], None]) -> None:
        self._replicas = replicas
        self._directory = directory
        self._purgatory = Purgatory()
        self._loop = asyncio.get_running_loop()
        self._keys = itertools.count()
        self._reader = SegmentReader()
        self._disk_failed = disk_failed
        self._group_commit = GroupCommit(self._flushed, self._flush_failed)
        self._unflushed_bytes: dict[TopicPartition, int] = {}
        self._dispatch: dict[int, Callable[[Request], None]] = {
            Operation.APPEND: self._append,
            Operation.FETCH: self._fetch,
            Operation.CANCEL_FETCH: self._cancel_fetch,
            Operation.CALL: self._call,
        }

    def serve(self, request: Request) -> None:
        """Carry out one request; its answer may come later."""
        self._dispatch[request.operation](request)

    def _append(self, request: Request) -> None:
        _, _, entries = request.control
        now_ms = time.time_ns() // 1_000_000
        results = []
        required: dict[TopicPartition, int] = {}
        appended: list[tuple[TopicPartition, int]] = []
        start = 0
        for topic, partition, leader_epoch, size in entries:
            topic_partition = TopicPartition(topic, partition)
            records = request.payload[start : start + size]
            start += size
            result, needed = self._replicas.append(AppendRequest(topic_partition, records, leader_epoch), now_ms)
            results.append(result)
            if needed:
                required[topic_partition] = needed
                self._unflushed_bytes[topic_partition] = self._unflushed_bytes.get(topic_partition, 0) + size
            elif result.error == ErrorCode.KAFKA_STORAGE_ERROR:
                self._disk_failed()
            elif not result.error:
                appended.append((topic_partition, size))
        if required:
            self._purgatory.add_produce(DelayedProduce(request, results, required))
            self._group_commit.flush(self._replicas.get(topic_partition) for topic_partition in required)
        else:
            request.answer(results)
        for topic_partition, size in appended:
            self._more_bytes(topic_partition, size)

    def _more_bytes(self, topic_partition: TopicPartition, size: int) -> None:
        for fetch in self._purgatory.more_bytes(topic_partition, size):
            self._answer_fetch(fetch)

    def _flushed(self, partition: Partition) -> None:
        """A flush of the partition is done: what waited for it becomes visible and is answered."""
        topic_partition = partition.topic_partition
        partition.advance_high_watermark()
        for produce in self._purgatory.high_watermark_at(topic_partition, partition.log.high_watermark):
            produce.request.answer(produce.results)
        self._more_bytes(topic_partition, self._unflushed_bytes.pop(topic_partition, 0))

    def _flush_failed(self, partition: Partition, error: RaykaError) -> None:
        logger.error("%s: %s", partition.topic_partition, error)
        self.release(partition.topic_partition, ErrorCode.KAFKA_STORAGE_ERROR)
        self._disk_failed()

    def _fetch(self, request: Request) -> None:
        max_wait_ms, min_bytes, max_bytes, isolation, inline, rows = request.control
        partitions = [FetchPartition(TopicPartition(*row[0]), *row[1:]) for row in rows]
        results = self._replicas.fetch(partitions, max_bytes, IsolationLevel(isolation))
        missing = min_bytes - sum(result.size for result in results)
        if missing <= 0 or max_wait_ms <= 0 or any(result.error for result in results):
            request.answer(self._rows(results, inline))
            return
        key = (request.connection, request.correlation_id or next(self._keys))
        self._purgatory.add_fetch(
            DelayedFetch(key, request, partitions, max_bytes, IsolationLevel(isolation), inline, missing)
        )
        self._loop.call_later(max_wait_ms / 1000, self._fetch_timed_out, key)

    def _fetch_timed_out(self, key: object) -> None:
        fetch = self._purgatory.take_fetch(key)
        if fetch is not None:
            self._answer_fetch(fetch)

    def _cancel_fetch(self, request: Request) -> None:
        self._purgatory.take_fetch((request.connection, request.control))

    def _answer_fetch(self, fetch: DelayedFetch) -> None:
        results = self._replicas.fetch(fetch.partitions, fetch.max_bytes, fetch.isolation)
        fetch.request.answer(self._rows(results, fetch.inline))

    def _rows(self, results: list[FetchResult], inline: bool) -> list[FetchResult]:
        """For a reader on another node the bytes themselves take the place of their place in the file."""
        if not inline:
            return results
        return [
            result._replace(records=self._reader.read(result.records))
            if isinstance(result.records, FileSlice)
            else result
            for result in results
        ]

    def release(self, topic_partition: TopicPartition, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """The partition changed its role, left or failed: nobody waits for it any longer."""
        for produce in self._purgatory.take_produces_of(topic_partition):
            produce.request.answer([AppendResult(int(error)) for _ in produce.results])
        for fetch in self._purgatory.take_fetches_of(topic_partition):
            self._answer_fetch(fetch)

    def flush(self, partitions: Iterable[Partition]) -> None:
        """Flush in the background."""
        self._group_commit.flush(partitions)

    async def stop(self) -> None:
        """Wait for the flush under way."""
        await self._group_commit.stop()

    def _call(self, request: Request) -> None:
        method, arguments = request.control
        try:
            answer = _CALLS[method](self, *arguments)
        except RaykaError as error:
            answer = [[int(error.code)]]
        request.answer(answer)

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
