"""The batch whose sink runs; a module of its own, so that sinks for PySpark 4 need nothing of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame

from rayka.ranges.plan import OffsetRange

Sink = Callable[[DataFrame, int], object]
"""Is given each batch of a stream, and its number."""


class KeepingSink(Protocol):
    """A sink that keeps something from one batch of a stream to the next."""

    def release(self, stream_id: str) -> None:
        """Close what was kept for a stream."""


class RunningBatch(NamedTuple):
    """The stream whose sink runs, what the batch has of each partition, and the sinks of topics that it has met."""

    stream_id: str
    ranges: tuple[OffsetRange, ...]
    sinks: dict[str, KeepingSink]


_running: ContextVar[RunningBatch | None] = ContextVar("running", default=None)


@contextmanager
def run_batch(batch: RunningBatch) -> Iterator[None]:
    """Let sinks that are called here know their batch."""
    token = _running.set(batch)
    try:
        yield
    finally:
        _running.reset(token)


def running_batch() -> RunningBatch | None:
    """For a sink: what it was given, None outside of a stream."""
    return _running.get()


def stream_id() -> str | None:
    """For a sink: the id of the stream whose batch it was given, None outside of a stream.

    A sink that recognises batches by their numbers should store the id beside the number: a stream with a new
    checkpoint begins again with batch 0, and has another id.
    """
    batch = running_batch()
    return None if batch is None else batch.stream_id
