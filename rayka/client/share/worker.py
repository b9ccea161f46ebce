"""An actor of a pool: processes one record after the other, and returns how to acknowledge each."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import os
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

import ray

from rayka.client.share.processing import Retriable, is_retriable
from rayka.client.share.record_socket import ProcessedRecord, RecordConnection, listen, serve
from rayka.client.share.records import RecordAcknowledgement, ShareRecord, rejection_headers
from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import GROUP_BACKOFF
from rayka.share.record_state import AcknowledgeType

logger = logging.getLogger(__name__)

_TOKEN_BYTES: Final = 16

Process: TypeAlias = Callable[[ShareRecord], object]


class RecordActor:
    """Calls the function, or an instance of the class, with each record."""

    def __init__(self, fn: Process | type[Any], retriable: Retriable, delay_ms: int | None) -> None:
        self._process: Process = fn() if isinstance(fn, type) else fn
        self._retriable = retriable
        self._delay_ms = GROUP_BACKOFF if delay_ms is None else delay_ms
        self._listener: socket.socket | None = None
        self._token = b""

    def listen(self, path: str | None, token: bytes) -> bool:
        """Listen for the pool; False without a path or on another machine. Answered once the constructor has run."""
        self._token = token
        self._listener = None if path is None else listen(path)
        return self._listener is not None

    def serve(self) -> None:
        """Process the records that come from the pool, until it is gone."""
        assert self._listener is not None
        serve(self._listener, self._token, self._processed)

    def process(self, records: Sequence[ShareRecord]) -> list[ProcessedRecord]:
        """Process records for a pool without a connection, for example on another machine."""
        return [self._processed(record) for record in records]

    def _processed(self, record: ShareRecord) -> ProcessedRecord:
        began = time.perf_counter()
        acknowledgement = self._acknowledgement(record)
        return ProcessedRecord(acknowledgement, time.perf_counter() - began)

    def _acknowledgement(self, record: ShareRecord) -> RecordAcknowledgement:
        try:
            self._process(record)
        except Exception as error:
            if is_retriable(error, self._retriable):
                return RecordAcknowledgement(AcknowledgeType.RELEASE, self._delay_ms)
            return RecordAcknowledgement(AcknowledgeType.REJECT, headers=rejection_headers(error))
        return RecordAcknowledgement(AcknowledgeType.ACCEPT)


OnProcessed: TypeAlias = Callable[["Worker", Sequence[ProcessedRecord]], None]
OnLost: TypeAlias = Callable[["Worker", int], None]
"""Takes a worker whose actor died, and how many of its first records the actor may have begun."""


class Worker:
    """A `RecordActor` as the pool sees it. `records` are those that it has and has not processed, in order.

    A worker with a connection sends each record there. One without calls the actor.
    """

    def __init__(self, actor: Any) -> None:
        self.records: deque[ShareRecord] = deque()
        self._actor = actor
        self._connection: RecordConnection | None = None
        self._calls: deque[asyncio.Future[list[ProcessedRecord]]] = deque()
        self._is_over = False
        self._on_processed: OnProcessed
        self._on_lost: OnLost

    async def ready(self, on_processed: OnProcessed, on_lost: OnLost) -> None:
        """Return when the actor can process records. Raises `ray.exceptions.RayError`."""
        self._on_processed, self._on_lost = on_processed, on_lost
        with _private_directory() as directory:
            path = None if directory is None else os.path.join(directory, "records")
            token = os.urandom(_TOKEN_BYTES)
            if await _answer(self._actor.listen.remote(path, token)) and path is not None:
                self._connection = await RecordConnection.connected(path, token, self._processed, self._disconnected)

    def serve(self) -> None:
        """Let the actor read from the connection; from now on the callbacks are called."""
        if self._connection is not None:
            _answer(self._actor.serve.remote()).add_done_callback(self._served)

    def give(self, records: Sequence[ShareRecord]) -> None:
        """Let the actor process the records after those that it has."""
        is_free = not self.records
        self.records.extend(records)
        if self._connection is not None:
            self._connection.send(records)
            return
        # Two calls: while the results of one are on their way, the actor has the other.
        count = math.ceil(len(records) / 2) if is_free else len(records)
        for part in filter(None, (records[:count], records[count:])):
            self._calls.append(_answer(self._actor.process.remote(part)))
            self._calls[-1].add_done_callback(self._returned)

    @property
    def begun(self) -> int:
        """How many of its first records the actor may have begun."""
        return min(1, len(self.records)) if self._connection is not None else len(self.records)

    def give_up(self) -> None:
        """Kill the actor, and treat it as one that died."""
        begun = self.begun
        self.kill()
        self._on_lost(self, begun)

    def kill(self) -> None:
        """Kill the actor, whatever it is doing. No callback is called any more."""
        self._is_over = True
        if self._connection is not None:
            self._connection.close()
        ray.kill(self._actor)

    def _processed(self, processed: Sequence[ProcessedRecord]) -> None:
        self._on_processed(self, processed)

    def _disconnected(self) -> None:
        self._on_lost(self, 1)

    def _served(self, served: asyncio.Future[None]) -> None:
        """Ray noticed that the actor died. The connection stays open if a child process of the actor has it too."""
        if not served.cancelled():
            self._failed(served.exception())

    def _returned(self, returned: asyncio.Future[list[ProcessedRecord]]) -> None:
        """Take results in the order of the calls: Ray fetches a large one later than a small one behind it."""
        if not returned.cancelled() and (error := returned.exception()) is not None:
            self._failed(error)
        while not self._is_over and self._calls and _has_result(self._calls[0]):
            self._on_processed(self, self._calls.popleft().result())

    def _failed(self, error: BaseException | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        logger.warning("an actor of the pool died, another takes its place: %s", error)
        if self._connection is not None:
            self._connection.close()
        self._on_lost(self, len(self.records))


def _private_directory() -> AbstractContextManager[str | None]:
    """A directory that only this user may enter; None where none can be made, as on a full disk."""
    try:
        return tempfile.TemporaryDirectory(prefix="rayka-", ignore_cleanup_errors=True)
    except OSError:
        return contextlib.nullcontext()


def _has_result(call: asyncio.Future[Any]) -> bool:
    return call.done() and not call.cancelled() and call.exception() is None


def _answer(ref: Any) -> asyncio.Future[Any]:
    """The answer to a call of an actor, for the loop that runs."""
    return asyncio.wrap_future(ref.future())


def spawner(
    fn: Process | type[Any], retriable: Retriable, delay_ms: int | None, options: Mapping[str, Any]
) -> Callable[[], Worker]:
    """A function that starts a worker. Ray does not restart an actor that dies: the pool starts another."""
    if not callable(fn) or inspect.iscoroutinefunction(fn):
        message = f"fn must be a function that takes a record, or a class whose instances take one, not {fn!r}"
        raise RaykaError(ErrorCode.INVALID_REQUEST, message)
    actor_class = ray.remote(RecordActor).options(**{**options, "max_restarts": 0, "max_concurrency": 1})
    return lambda: Worker(actor_class.remote(fn, retriable, delay_ms))
