"""Requests as frames, from the local channel or an actor call, carried out by the replica server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rayka.actors.channel.frames import Operation
from rayka.actors.channel.link import FetchParams
from rayka.actors.channel.socket import ChannelClosed
from rayka.actors.replica.server import ReplicaServer
from rayka.storage.log.reader import SegmentReader
from rayka.types import (
    AppendParams,
    AppendRequest,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    TopicPartition,
)


class Request(Protocol):
    """One request; `inline` asks for record bytes instead of their place in a file."""

    operation: int
    correlation_id: int
    control: Any
    payload: memoryview
    inline: bool

    @property
    def connection(self) -> object: ...

    def answer(self, control: Any) -> None: ...


class FrameService:
    """Reads requests out of frames; `serve` is given to the channel."""

    def __init__(self, server: ReplicaServer) -> None:
        self._server = server
        self._reader = SegmentReader()
        self._keys: dict[tuple[object, int], Any] = {}
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
        params, *rows = request.control
        requests = []
        start = 0
        for topic_partition, leader_epoch, size in rows:
            records = request.payload[start : start + size]
            start += size
            requests.append(AppendRequest(TopicPartition(*topic_partition), records, leader_epoch))
        self._server.append(requests, AppendParams(*params), request.answer)

    def _fetch(self, request: Request) -> None:
        rows, max_wait_s, min_bytes, max_bytes, isolation = request.control
        partitions = [FetchPartition(TopicPartition(*row[0]), *row[1:]) for row in rows]
        order = FetchParams(partitions, max_wait_s, min_bytes, max_bytes, IsolationLevel(isolation))
        name = (request.connection, request.correlation_id)

        def done(results: list[FetchResult] | ChannelClosed) -> None:
            self._keys.pop(name, None)
            assert not isinstance(results, ChannelClosed)
            request.answer(self._with_bytes(results) if request.inline else results)

        key = self._server.fetch(order, done)
        if key is not None:
            self._keys[name] = key

    def _cancel_fetch(self, request: Request) -> None:
        key = self._keys.pop((request.connection, request.control), None)
        if key is not None:
            self._server.cancel(key)

    def _with_bytes(self, results: list[FetchResult]) -> list[FetchResult]:
        return [
            result._replace(records=self._reader.read(result.records))
            if isinstance(result.records, FileSlice)
            else result
            for result in results
        ]

    def _call(self, request: Request) -> None:
        method, arguments = request.control
        self._server.call(method, arguments, request.answer)
