"""An actor of a pool: processes one record after the other, and returns how to acknowledge each."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import ray

from rayka.client.share.processing import Retriable, is_retriable
from rayka.client.share.records import RecordAcknowledgement, ShareRecord, rejection_headers
from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import GROUP_BACKOFF
from rayka.share.record_state import AcknowledgeType

Process: TypeAlias = Callable[[ShareRecord], object]


class ProcessedRecords(NamedTuple):
    """The acknowledgements of the records of a call, in their order, and how long the processing took."""

    acknowledgements: Sequence[RecordAcknowledgement]
    seconds: float


class RecordActor:
    """Calls the function, or an instance of the class, with each record."""

    def __init__(self, fn: Process | type[Any], retriable: Retriable, delay_ms: int | None) -> None:
        self._process: Process = fn() if isinstance(fn, type) else fn
        self._retriable = retriable
        self._delay_ms = GROUP_BACKOFF if delay_ms is None else delay_ms

    def ready(self) -> None:
        """Answered once the constructor has run."""

    def process(self, records: Sequence[ShareRecord]) -> ProcessedRecords:
        """The acknowledgements of the records."""
        began = time.perf_counter()
        acknowledgements = [self._acknowledgement(record) for record in records]
        return ProcessedRecords(acknowledgements, time.perf_counter() - began)

    def _acknowledgement(self, record: ShareRecord) -> RecordAcknowledgement:
        try:
            self._process(record)
        except Exception as error:
            if is_retriable(error, self._retriable):
                return RecordAcknowledgement(AcknowledgeType.RELEASE, self._delay_ms)
            return RecordAcknowledgement(AcknowledgeType.REJECT, headers=rejection_headers(error))
        return RecordAcknowledgement(AcknowledgeType.ACCEPT)


class Worker:
    """A `RecordActor` as the pool sees it. `calls` counts those that are in progress."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.calls = 0

    async def ready(self) -> None:
        """Return when the actor can process records. Raises `ray.exceptions.RayError`."""
        await asyncio.wrap_future(self._actor.ready.remote().future())

    async def process(self, records: Sequence[ShareRecord]) -> ProcessedRecords:
        """As `RecordActor.process`. Raises `ray.exceptions.RayError` when the actor dies."""
        found: ProcessedRecords = await asyncio.wrap_future(self._actor.process.remote(records).future())
        return found

    def kill(self) -> None:
        """End the actor, and what it is at."""
        ray.kill(self._actor)


def spawner(
    fn: Process | type[Any], retriable: Retriable, delay_ms: int | None, options: Mapping[str, Any]
) -> Callable[[], Worker]:
    """What starts a worker. An actor that dies is not restarted by Ray: the pool starts another."""
    if not callable(fn) or inspect.iscoroutinefunction(fn):
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"fn must be a function of a record, or a class of such: {fn!r}")
    actor_class = ray.remote(RecordActor).options(**{**options, "max_restarts": 0, "max_concurrency": 1})
    return lambda: Worker(actor_class.remote(fn, retriable, delay_ms))
