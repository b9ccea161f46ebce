"""Requests from other processes, by local channel or actor call, carried out by the replica server."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from rayka.actors.background import BackgroundTasks, answered
from rayka.actors.channel.memory_file import MOST_REQUEST_BYTES, PeerMemory
from rayka.actors.channel.requests import (
    AppendFrame,
    AppendShared,
    CancelFetch,
    CheckRecords,
    Coordinate,
    DeleteRecords,
    DescribeLogDir,
    DescribeProducers,
    DescribeShareRecords,
    DrainJournals,
    EndShareSession,
    FetchParams,
    FindEpochEnds,
    ListOffsets,
    MeasureShareDepth,
    OpenJournal,
    ReturnShareRecords,
    SharedRecords,
    ShareFetch,
    ShareFetched,
    ShareMemory,
    WriteTxnMarkers,
    decode_request,
    encode_failure,
    encode_value,
)
from rayka.actors.replica.server import ReplicaServer
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.busy_poll import BusyPoll
from rayka.share.requests import ShareFetchResult
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.segments.reader import SegmentReader
from rayka.types import AppendRequest, FetchResult, FileSlice

R = TypeVar("R", FetchResult, ShareFetchResult)
_CACHE_LINE_BYTES = 64
_PLAIN_REQUESTS = (
    ListOffsets,
    FindEpochEnds,
    DeleteRecords,
    DescribeLogDir,
    CheckRecords,
    Coordinate,
    EndShareSession,
    ReturnShareRecords,
    MeasureShareDepth,
    DescribeShareRecords,
    WriteTxnMarkers,
    DescribeProducers,
    OpenJournal,
    DrainJournals,
)
"""Requests that carry no record bytes, and are answered by the replica server as they are."""


class ReceivedRequest(Protocol):
    """One request; `inline` asks for record bytes instead of their place in a file."""

    message: Any
    payload: memoryview
    inline: bool

    @property
    def memory(self) -> PeerMemory:
        """What the peer has shared. Raises INVALID_REQUEST if that is nothing."""

    def map_memory(self, descriptor: int) -> None:
        """Map the peer's memory file. Raises INVALID_REQUEST."""

    @property
    def key(self) -> Hashable:
        """What a later `CancelFetch` of the same peer names it by."""

    def key_of(self, correlation_id: int) -> Hashable:
        """The key of another request of the same peer."""

    def answer(self, value: Any) -> None:
        """Send the answer, or the RaykaError."""


class CallRequest:
    """A request by actor call. Raises INVALID_REQUEST."""

    # The caller is on another node and can't read our files.
    inline = True

    def __init__(self, number: int, control: bytes, payload: bytes) -> None:
        self.message = decode_request(number, memoryview(control))
        self.payload = memoryview(bytearray(payload))
        self.answered: asyncio.Future[tuple[bool, bytes]] = asyncio.get_running_loop().create_future()

    @property
    def memory(self) -> PeerMemory:
        """A caller on another node shares none."""
        raise RaykaError(ErrorCode.INVALID_REQUEST, "A caller by actor call shares no memory")

    def map_memory(self, descriptor: int) -> None:
        """As `memory`."""
        raise RaykaError(ErrorCode.INVALID_REQUEST, "A caller by actor call shares no memory")

    @property
    def key(self) -> Hashable:
        """A caller by actor call can't cancel, so each call stands for itself."""
        return self

    def key_of(self, correlation_id: int) -> Hashable:
        """No other request."""
        return None

    def answer(self, value: Any) -> None:
        """Give the answer to the call: whether it failed, and the bytes of the answer or of the error."""
        if not self.answered.done():
            failed = isinstance(value, RaykaError)
            self.answered.set_result((failed, encode_failure(value) if failed else encode_value(value)))


class FrameService:
    """Passes requests to the replica server; `serve` is given to the channel."""

    def __init__(self, server: ReplicaServer) -> None:
        self._server = server
        self._busy_poll = BusyPoll(asyncio.get_running_loop().call_soon)
        self._reader = SegmentReader()
        self._background = BackgroundTasks("records for other nodes")
        self._fetches: dict[Hashable, Hashable] = {}
        self._copied = memoryview(bytearray())
        self._dispatch: dict[type, Callable[[ReceivedRequest], None]] = {
            AppendFrame: self._append,
            AppendShared: self._append_shared,
            ShareMemory: self._map_memory,
            FetchParams: self._fetch,
            CancelFetch: self._cancel_fetch,
            ShareFetch: self._share_fetch,
            **dict.fromkeys(_PLAIN_REQUESTS, self._ask),
        }

    def serve(self, request: ReceivedRequest) -> None:
        """Carry out one request; its answer may come later. Raises INVALID_REQUEST."""
        self._dispatch[type(request.message)](request)

    def _append(self, request: ReceivedRequest) -> None:
        params, partitions = request.message
        requests = []
        start = 0
        for topic_partition, leader_epoch, size, topic_id in partitions:
            if not 0 <= size <= len(request.payload) - start:
                raise RaykaError(ErrorCode.INVALID_REQUEST, f"{size} bytes for {topic_partition} are not there")
            records = request.payload[start : start + size]
            requests.append(AppendRequest(topic_partition, records, leader_epoch, topic_id))
            start += size
        self._busy_poll.request_came(start)
        self._server.append(requests, params, partial(self._answer_append, request))

    def _map_memory(self, request: ReceivedRequest) -> None:
        request.map_memory(request.message.descriptor)
        request.answer(True)

    def _append_shared(self, request: ReceivedRequest) -> None:
        """As `_append`, of batches that are copied before anything is checked.

        A copy begins as far behind a cache line's begin as its place in the log: then it takes less time to write.
        """
        params, partitions = request.message
        room = self._room(partitions)
        requests = []
        end = 0
        for topic_partition, leader_epoch, header, position, size, topic_id in partitions:
            start = end + (self._server.append_position(topic_partition) - end) % _CACHE_LINE_BYTES
            end = start + size
            records = room[start:end]
            records[:RECORD_BATCH_OVERHEAD] = header
            request.memory.read(records[RECORD_BATCH_OVERHEAD:], position)
            requests.append(AppendRequest(topic_partition, records, leader_epoch, topic_id))
        self._busy_poll.request_came(end)
        self._server.append(requests, params, partial(self._answer_append, request))

    def _room(self, partitions: Sequence[SharedRecords]) -> memoryview:
        """Memory for a copy of these batches, which the next such request uses again. It begins with a page."""
        for each in partitions:
            if len(each.header) != RECORD_BATCH_OVERHEAD or each.size < RECORD_BATCH_OVERHEAD:
                raise RaykaError(ErrorCode.INVALID_REQUEST, f"the batch for {each.topic_partition} has no header")
        size = sum(each.size for each in partitions)
        if size > MOST_REQUEST_BYTES:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"{size} bytes in shared memory are too many for one request")
        size += len(partitions) * _CACHE_LINE_BYTES
        if len(self._copied) < size:
            self._copied = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return self._copied

    def _answer_append(self, request: ReceivedRequest, value: Any) -> None:
        request.answer(value)
        self._busy_poll.answered()

    def _fetch(self, request: ReceivedRequest) -> None:
        name = request.key

        def done(results: Any) -> None:
            self._fetches.pop(name, None)
            self._answer_records(request, results, results, lambda read: read)

        key = self._server.fetch(request.message, done)
        if key is not None:
            self._fetches[name] = key

    def _cancel_fetch(self, request: ReceivedRequest) -> None:
        key = self._fetches.pop(request.key_of(request.message.correlation_id), None)
        if key is not None:
            self._server.cancel(key)

    def _share_fetch(self, request: ReceivedRequest) -> None:
        def done(answer: Any) -> None:
            results = answer.results if isinstance(answer, ShareFetched) else ()
            self._answer_records(request, answer, results, lambda read: answer._replace(results=tuple(read)))

        self._server.ask(request.message, done)

    def _answer_records(
        self, request: ReceivedRequest, answer: Any, results: Sequence[R], with_records: Callable[[list[R]], Any]
    ) -> None:
        """Answer, after the records were read if the peer can't read our files.

        It may be called in the middle of an append that a fetch has waited for, so it neither waits nor raises.
        """
        if request.inline and any(isinstance(result.records, FileSlice) for result in results):
            self._background.start("read", self._read_and_answer(request, results, with_records))
        else:
            request.answer(answer)

    async def _read_and_answer(
        self, request: ReceivedRequest, results: Sequence[R], with_records: Callable[[list[R]], Any]
    ) -> None:
        read = await answered(asyncio.to_thread(self._with_bytes, results))
        if isinstance(read, RaykaError):
            request.answer(read)
            self._server.check_records([result.records for result in results])
        else:
            request.answer(with_records(read))

    def _with_bytes(self, results: Sequence[R]) -> list[R]:
        return [
            result._replace(records=self._reader.read(result.records))
            if isinstance(result.records, FileSlice)
            else result
            for result in results
        ]

    def _ask(self, request: ReceivedRequest) -> None:
        self._server.ask(request.message, request.answer)
