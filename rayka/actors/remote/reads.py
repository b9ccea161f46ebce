"""Serves fetches and searches by time from the remote store, in threads, as part of the ordinary response.

A fetch waits up to `remote.fetch.max.wait.ms`. What comes later than that is in the cache when the client asks again,
which it does at once. Behind each read the next chunks are fetched ahead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar, cast

from rayka.actors.background import BackgroundTasks
from rayka.actors.channel.link import Done
from rayka.actors.channel.requests import FetchParams
from rayka.actors.remote.bandwidth import Bandwidth
from rayka.actors.remote.slots import MOST_THREADS, Slots
from rayka.actors.replica.remote_tier import IN_REMOTE_STORE
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.replica.partition import Partition
from rayka.replica.purgatory import DelayedFetch
from rayka.replica.replicas import Replicas
from rayka.storage.files import RealFiles, storage_error
from rayka.storage.remote.reader import NextChunk, ReaderLimits, RemoteLogReader, RemoteRead
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.remote.remote_range import RemoteRange, locate, without_gap
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata
from rayka.storage.remote.store import RemoteStore
from rayka.storage.segments.transaction_index import AbortedTxn
from rayka.types import (
    AbortedTransaction,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    OffsetAnswer,
    OffsetQuery,
)

logger = logging.getLogger(__name__)

R = TypeVar("R")

REMOTE_CACHE: Final = "remote-log-index-cache"
"""The directory below the log directory in which chunks and indexes are kept; Kafka knows it and passes over it."""
_AHEAD: Final = 2
"""So many chunks are fetched ahead of a reader."""


class _TooManyReads(RaykaError):
    """All threads are busy and the queue of waiting reads is full."""


class RemoteReads:
    """The reads of one actor."""

    def __init__(self, replicas: Replicas, broker: Broker, store: RemoteStore, path: str) -> None:
        self.known: Callable[[Partition], Awaitable[RemotePartition]]
        """What is in the store of a partition; set before the first read."""
        self._replicas = replicas
        self._broker = broker
        config = broker.config
        limits = ReaderLimits(
            config["rsm.config.chunk.size"],
            config["rsm.config.fetch.chunk.cache.size"],
            lambda: broker.config["remote.log.index.file.cache.total.size.bytes"],
        )
        self._bandwidth = Bandwidth(lambda: broker.config["remote.log.manager.fetch.max.bytes.per.second"])
        self._reader = RemoteLogReader(RealFiles(), path, store, limits, self._bandwidth)
        self._slots = Slots(lambda: broker.config["remote.log.reader.threads"])
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="rayka-remote-read")
        self._ahead: set[NextChunk] = set()
        self._running: set[asyncio.Task[Any]] = set()
        self._background = BackgroundTasks("remote reads")

    async def stop(self) -> None:
        """Stop answering."""
        self._bandwidth.stop()
        await self._background.stop()
        for running in self._running:
            running.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def forget(self, segment: RemoteLogSegmentMetadata) -> None:
        """A segment was deleted in the store."""
        self._reader.forget(segment)

    # -- fetching -------------------------------------------------------------------------------

    def fetch(
        self, fetch: FetchParams | DelayedFetch, results: list[FetchResult], done: Callable[[list[FetchResult]], None]
    ) -> None:
        """Fill in the results whose records are in the remote store, and call `done`."""
        self._background.start("remote fetch", self._fetch(fetch, results, done))

    async def _fetch(
        self, fetch: FetchParams | DelayedFetch, results: list[FetchResult], done: Callable[[list[FetchResult]], None]
    ) -> None:
        left = fetch.max_bytes - sum(result.size for result in results)
        reads: dict[int, asyncio.Task[FetchResult]] = {}
        for index, (request, result) in enumerate(zip(fetch.partitions, results, strict=True)):
            if result.error == IN_REMOTE_STORE:
                size = min(left, request.max_bytes)
                if size > 0 or not reads:
                    reads[index] = asyncio.ensure_future(self._read(request, result, size, fetch.isolation, not reads))
                left -= size
        clock = asyncio.get_running_loop().time
        until = clock() + self._broker.config["remote.fetch.max.wait.ms"] / 1000
        await asyncio.wait(reads.values(), timeout=until - clock())
        found = [_settled(result, reads.get(index), fetch.isolation) for index, result in enumerate(results)]
        if not any(result.records or result.error for result in found):  # the reader asks again at once
            await asyncio.sleep(until - clock())
        done(found)

    async def _read(
        self, request: FetchPartition, result: FetchResult, max_bytes: int, isolation: IsolationLevel, is_first: bool
    ) -> FetchResult:
        """The result with records, or with an error."""
        try:
            partition = self._replicas.get(request.topic_partition)
            records, aborted = await self.read(partition, request.fetch_offset, max_bytes, isolation, is_first)
        except _TooManyReads:
            await asyncio.sleep(self._broker.config["remote.fetch.max.wait.ms"] / 1000)
            return _without_records(result, isolation)
        except RaykaError as error:
            logger.warning("cannot read %s at %d: %s", request.topic_partition, request.fetch_offset, error)
            return result._replace(error=int(error.code))
        has_more = records is not None  # the local log at least
        return result._replace(error=0, records=records, aborted_transactions=aborted, has_more=has_more)

    async def read(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int,
        isolation: IsolationLevel,
        min_one_message: bool = True,
    ) -> tuple[FileSlice | None, tuple[AbortedTransaction, ...] | None]:
        """Records from `offset` on, and for a reader of committed ones the aborted transactions that it may meet.

        Raises RaykaError: OFFSET_OUT_OF_RANGE below the log start, KAFKA_STORAGE_ERROR if the store fails or is not
        known to have them.
        """
        try:
            segments = await self._segments(partition, offset)
            local = _aborted_here(partition, segments, isolation)
            readable = without_gap(segments)
            read = await self._in_thread(partial(self._reader.read, readable, offset, max_bytes, min_one_message))
            if not read.end_offset:
                next_offset = readable[-1].end_offset + 1
                return await self._read_on(partition, next_offset, max_bytes, isolation, min_one_message)
            if read.records is None:
                return None, () if isolation is IsolationLevel.READ_COMMITTED else None
            aborted = await self._aborted(segments, offset, read, isolation, local)
        except OSError as error:
            raise storage_error("The remote store", error) from error
        self._fetch_ahead(read.following)
        return read.records, aborted

    async def _read_on(
        self, partition: Partition, offset: int, max_bytes: int, isolation: IsolationLevel, min_one_message: bool
    ) -> tuple[FileSlice | None, tuple[AbortedTransaction, ...] | None]:
        """Read behind the segments of the store, the last of which compaction had left with a gap at its end.

        What follows is in the local log, or in segments that came into the store meanwhile.
        """
        local_start_offset = partition.log.local_log_start_offset
        if offset < local_start_offset:
            return await self.read(partition, offset, max_bytes, isolation, min_one_message)
        request = FetchPartition(partition.topic_partition, local_start_offset, max_bytes)
        found = partition.fetch(request, max_bytes, isolation, min_one_message)
        return cast(FileSlice | None, found.records), found.aborted_transactions

    async def _segments(self, partition: Partition, offset: int) -> tuple[RemoteLogSegmentMetadata, ...]:
        try:
            remote = await self.known(partition)
        except RaykaError as error:  # its code is about another topic, and would mislead a client
            message = f"what the remote store has of {partition.topic_partition} is not known: {error}"
            raise RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        segments = remote.from_offset(partition.log.leader_epochs, offset)
        if not segments or segments[0].start_offset > offset:
            raise _no_offset(partition, offset)
        return segments

    async def _aborted(
        self,
        segments: Sequence[RemoteLogSegmentMetadata],
        offset: int,
        read: RemoteRead,
        isolation: IsolationLevel,
        local: Sequence[AbortedTxn],
    ) -> tuple[AbortedTransaction, ...] | None:
        if isolation is not IsolationLevel.READ_COMMITTED:
            return None
        work = partial(self._reader.aborted_before, segments, offset, read.end_offset, local)
        if all(segment.is_transaction_index_empty for segment in segments):
            return work()
        return await self._in_thread(work)

    async def locate(
        self, partition: Partition, offset: int, end_offset: int, isolation: IsolationLevel
    ) -> RemoteRange | None:
        """Where the records from `offset` on are that are only in the store, for a reader that fetches them itself.

        None if it had better not. Raises RaykaError as `read`.
        """
        segments = await self._segments(partition, offset)
        is_committed = isolation is IsolationLevel.READ_COMMITTED
        aborted = _aborted_here(partition, segments, isolation) if is_committed else None
        end_offset = min(end_offset, partition.log.local_log_start_offset)
        return locate(partition.topic_partition, segments, offset, end_offset, aborted)

    # -- fetching ahead -------------------------------------------------------------------------

    def _fetch_ahead(self, following: NextChunk | None) -> None:
        if following is not None and following not in self._ahead and not self._slots.waiting:
            self._ahead.add(following)
            self._background.start("prefetch", self._prefetch(following))

    async def _prefetch(self, following: NextChunk) -> None:
        upcoming: NextChunk | None = following
        try:
            for _ in range(_AHEAD):
                if upcoming is not None:
                    upcoming = await self._in_thread(partial(self._reader.prefetch, upcoming))
        except (OSError, RaykaError) as error:
            logger.debug("cannot fetch ahead: %s", error)
        finally:
            self._ahead.discard(following)

    async def _in_thread(self, work: Callable[[], R]) -> R:
        """Raises _TooManyReads if too many reads wait already."""
        if self._slots.waiting >= self._broker.config["remote.log.reader.max.pending.tasks"]:
            raise _TooManyReads(ErrorCode.KAFKA_STORAGE_ERROR, "too many reads from the remote store wait")
        running = asyncio.ensure_future(self._in_slot(work))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return cast(R, await asyncio.shield(running))

    async def _in_slot(self, work: Callable[[], R]) -> R:
        """A thread that hangs keeps its slot, even if its request has timed out."""
        async with self._slots:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # -- searching by time ----------------------------------------------------------------------

    def list_offsets(
        self, queries: Sequence[OffsetQuery], isolation: IsolationLevel, answers: list[OffsetAnswer], done: Done
    ) -> None:
        """Fill in the answers whose offsets are in the remote store, and call `done`."""
        self._background.start("remote offsets", self._list_offsets(queries, isolation, answers, done))

    async def _list_offsets(
        self, queries: Sequence[OffsetQuery], isolation: IsolationLevel, answers: list[OffsetAnswer], done: Done
    ) -> None:
        timeout_s = self._broker.config["remote.list.offsets.request.timeout.ms"] / 1000

        async def settle(query: OffsetQuery, answer: OffsetAnswer) -> OffsetAnswer:
            if answer.error != IN_REMOTE_STORE:
                return answer
            try:
                return await asyncio.wait_for(self.find_offset(query, isolation), timeout_s)
            except TimeoutError:
                return OffsetAnswer(int(ErrorCode.REQUEST_TIMED_OUT))
            except RaykaError as error:
                logger.warning("cannot search %s by time: %s", query.topic_partition, error)
                return OffsetAnswer(int(error.code))

        pairs = zip(queries, answers, strict=True)
        found = await asyncio.gather(*(settle(query, answer) for query, answer in pairs), return_exceptions=True)
        done([_searched(each) for each in found])

    async def find_offset(self, query: OffsetQuery, isolation: IsolationLevel) -> OffsetAnswer:
        """The first record at or after a time, in the store or here. Raises RaykaError."""
        partition = self._replicas.get(query.topic_partition)
        log = partition.log
        segments = without_gap(await self._segments(partition, log.log_start_offset))
        # asked for now: later, a local segment that is not among the remote ones may be gone
        local_start_offset, local = log.local_log_start_offset, partition.find_offset(query, isolation, is_local=True)
        end_offset = max(segments[-1].end_offset + 1, log.log_start_offset)  # which may have risen meanwhile
        work: Any = partial(self._reader.offset_for_timestamp, segments, query.timestamp, log.log_start_offset)
        try:
            found: OffsetAnswer | None = await self._in_thread(work)
        except OSError as error:
            raise storage_error("The remote store", error) from error
        if found is None and end_offset < local_start_offset:
            raise _no_offset(partition, end_offset)
        return local if found is None or found.offset >= local_start_offset else found


def _no_offset(partition: Partition, offset: int) -> RaykaError:
    """What is below the log start was deleted; what is not is lost, and a reader must not pass over it."""
    is_deleted = offset < partition.log.log_start_offset
    code = ErrorCode.OFFSET_OUT_OF_RANGE if is_deleted else ErrorCode.KAFKA_STORAGE_ERROR
    return RaykaError(code, f"the remote store is not known to have offset {offset} of {partition.topic_partition}")


def _settled(result: FetchResult, read: asyncio.Task[FetchResult] | None, isolation: IsolationLevel) -> FetchResult:
    """The result so far. A read that is not done continues, and the next fetch finds its records in the cache."""
    if result.error != IN_REMOTE_STORE:
        return result
    if read is None or not read.done():
        return _without_records(result, isolation)
    error = read.exception()
    if error is None:
        return read.result()
    logger.error("a read from the remote store failed", exc_info=error)
    return result._replace(error=int(ErrorCode.UNKNOWN_SERVER_ERROR))


def _searched(found: OffsetAnswer | BaseException) -> OffsetAnswer:
    if isinstance(found, OffsetAnswer):
        return found
    logger.error("a search in the remote store failed", exc_info=found)
    return OffsetAnswer(int(ErrorCode.UNKNOWN_SERVER_ERROR))


def _aborted_here(
    partition: Partition, segments: Sequence[RemoteLogSegmentMetadata], isolation: IsolationLevel
) -> tuple[AbortedTxn, ...]:
    """What the local segments say of transactions that began in remote ones.

    It is asked for when the remote segments are chosen: later, a local segment that is not among them may be gone.
    """
    is_asked = isolation is IsolationLevel.READ_COMMITTED
    return partition.log.aborted_before(segments[-1].end_offset + 1) if is_asked else ()


def _without_records(result: FetchResult, isolation: IsolationLevel) -> FetchResult:
    aborted = () if isolation is IsolationLevel.READ_COMMITTED else None
    return result._replace(error=0, aborted_transactions=aborted)
