"""The batch whose sink runs; a module of its own, so that sinks for PySpark 4 need nothing of Ray."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from pyspark.sql import DataFrame

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import NO_TOPIC_ID, OffsetRange
from rayka.spark.frames import Frames

Sink = Callable[[DataFrame, int], object]
"""A function that gets each batch of a stream, and the number of the batch."""


class KeepingSink(Protocol):
    """A sink that keeps something from one batch of a stream to the next."""

    def release(self, stream_id: str) -> None:
        """Close what was kept for a stream."""


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """The batch whose sink runs: its stream, its offsets, the sinks to release with the stream, and its frames."""

    stream_id: str
    ranges: tuple[OffsetRange, ...]
    sinks: set[KeepingSink] = field(default_factory=set)
    frames: Frames = field(default_factory=Frames)


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


NO_TOPIC_IDS: Final[Mapping[str, str]] = MappingProxyType({})


class BatchIdentity(NamedTuple):
    """How a sink recognises a batch that comes again: it stores this with the rows.

    `offsets` are those that the batch reads, for each partition where it starts and where it ends. A checkpoint that
    was copied or restored has batches of the same stream and numbers with other offsets. `topic_ids` are those of
    topics, as far as they are known.
    """

    stream_id: str
    batch_id: int
    offsets: Any
    topic_ids: Mapping[str, str] = NO_TOPIC_IDS

    def require_same(self, offsets: Any, place: object, topic_ids: Mapping[str, str] = NO_TOPIC_IDS) -> None:
        """Raises INVALID_REQUEST if a place has the batch with other offsets, unless records were lost since then."""
        known = {**self.topic_ids, **topic_ids}
        created_again = {topic for topic, topic_id in self.topic_ids.items() if known[topic] != topic_id}
        if not _contains(offsets, self.offsets, created_again):
            raise RaykaError(
                ErrorCode.INVALID_REQUEST,
                f"{place} has batch {self.batch_id} of stream {self.stream_id} with the offsets {json.dumps(offsets)},"
                f" but the checkpoint has it with {json.dumps(self.offsets)}: it was copied or restored. Use the"
                " checkpoint with which the stream went on, or a new one and another place",
            )


def _contains(written: Any, planned: Any, created_again: Collection[str]) -> bool:
    """Whether a batch was written with these offsets, or with more: it is planned again without those that are lost."""
    if not isinstance(written, dict) or not isinstance(planned, dict):
        return bool(written == planned)
    return all(
        _is_left(written.get(topic, {}).get(partition), offsets, is_created_again=topic in created_again)
        for topic, partitions in planned.items()
        for partition, offsets in partitions.items()
    )


def _is_left(written: list[int] | None, planned: list[int], *, is_created_again: bool) -> bool:
    """Whether this is what is left of a partition's offsets: nothing if the topic was created again.

    Retention takes the first ones, so the start moves.
    """
    if written is None:
        return False
    (written_start, written_end), (start, end) = written, planned
    if is_created_again:
        return start == end
    if start == written_start:
        return end == written_end
    return start == end or written_start < start < end <= written_end


def batch_of(df: DataFrame, batch_id: int) -> BatchIdentity | None:
    """The batch that a sink was given by `stream_topic` or by Structured Streaming, None outside of a stream."""
    running = running_batch()
    if running is not None:
        topic_ids = {each.topic: str(each.topic_id) for each in running.ranges if each.topic_id != NO_TOPIC_ID}
        return BatchIdentity(running.stream_id, batch_id, _offsets(running.ranges), topic_ids)
    query_id = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        return None
    planned = _query(df, query_id).offsetLog().get(batch_id).get().toString()
    return BatchIdentity(query_id, batch_id, _read(planned))


_lock = threading.Lock()
_frames: dict[str, tuple[tuple[str, int], Frames]] = {}
"""For each query of Structured Streaming that runs its last batch, by its run and number, with the frames of that."""


def frames_of(df: DataFrame, batch: BatchIdentity) -> Frames:
    """The frames of a batch that sinks have written since it began."""
    running = running_batch()
    if running is not None:
        return running.frames
    run = str(_query(df, batch.stream_id).runId()), batch.batch_id
    with _lock:
        if batch.stream_id not in _frames:
            for query_id in [known for known in _frames if _query(df, known) is None]:
                del _frames[query_id]
        if batch.stream_id not in _frames or _frames[batch.stream_id][0] != run:
            _frames[batch.stream_id] = run, Frames()
        return _frames[batch.stream_id][1]


def _query(df: DataFrame, query_id: str) -> Any:
    """Spark's object of a query that runs, None once it has ended."""
    session: Any = df.sparkSession
    key = session._jvm.java.util.UUID.fromString(query_id)
    return session._jsparkSession.sharedState().activeStreamingQueries().get(key)


def _offsets(ranges: tuple[OffsetRange, ...]) -> dict[str, dict[str, list[int]]]:
    offsets: dict[str, dict[str, list[int]]] = {}
    for each in ranges:
        offsets.setdefault(each.topic, {})[str(each.partition)] = [each.start_offset, each.end_offset]
    return offsets


def _read(planned: str) -> Any:
    """Spark's text of a batch's offsets, an array of what each source has written: as JSON if it is that."""
    try:
        return json.loads(planned)
    except ValueError:
        return planned


def stream_id() -> str | None:
    """For a sink: the id of the stream whose batch it gets; None outside of a stream.

    A sink that recognises batches by their numbers should store the id beside the number: a stream with a new
    checkpoint starts again with batch 0, and has another id.
    """
    batch = running_batch()
    return None if batch is None else batch.stream_id


def batch_offsets() -> str | None:
    """For a sink of `stream_topic`: the offsets that its batch reads, as `{"clicks": {"0": [500, 620]}}`; else None.

    A sink that recognises batches by their numbers should store these offsets beside the number. It should refuse a
    batch that comes again with other offsets, because its checkpoint was copied or restored.
    """
    batch = running_batch()
    return None if batch is None else json.dumps(_offsets(batch.ranges))
