"""Restores the producers of a log up to its end: the last snapshot, then the batches after it."""

from __future__ import annotations

from collections import deque

from rayka.storage.format.batch import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_frame,
)
from rayka.storage.producers.entry import RETAINED_BATCHES
from rayka.storage.producers.state import ProducerState
from rayka.storage.segments.scan import ScannedBatch, iter_batches
from rayka.storage.segments.segment import Segment
from rayka.storage.segments.segments import Segments

_OF_A_TRANSACTION = CONTROL_FLAG | TRANSACTIONAL_FLAG


class ProducerReplay:
    """Begins from the last snapshot at or below `limit` and takes in every batch from there on, in order.

    Recovery hands over the batches that it reads (`begin`, `take`); the others are read here. Batches below the
    log start offset count too: a producer may still send them again. Snapshots at the base offsets of segments
    that are missing are taken on the way. They are written at once, because the batches below them are settled: kept
    until the end, they would be a copy of all producers for each segment. A producer counts as seen when the log set
    the time of its batch, or else when its segment was last written.
    """

    def __init__(self, producers: ProducerState, segments: Segments, limit: int, now_ms: int) -> None:
        self._producers = producers
        self._now_ms = now_ms
        known_up_to = producers.load_snapshot(limit, now_ms)
        self._start = segments.all[0].base_offset if known_up_to is None else known_up_to
        self._segment: Segment | None = None
        self._latest: dict[int, deque[BatchHeader]] = {}
        self._seen_ms = now_ms

    def begin(self, segments: Segments, segment: Segment) -> None:
        """The batches of `segment` come next, from its start on; those before it are read now."""
        for earlier in self._unread(segments):
            if earlier is segment:
                break
            self._read(earlier)
        self._enter(segment)

    def take(self, batch: ScannedBatch) -> None:
        """Take in the next batch. Of those outside of transactions only a producer's last few will count."""
        header = batch.header
        producer_id = header.producer_id
        if producer_id < 0:
            return
        if header.attributes & _OF_A_TRANSACTION:
            self._take_at_once(batch)
            return
        latest = self._latest.get(producer_id)
        if latest is None:
            latest = self._latest[producer_id] = deque(maxlen=RETAINED_BATCHES)
        latest.append(header)

    def finish(self, segments: Segments) -> None:
        """Read what was not taken in; the producers are up to date then."""
        for segment in self._unread(segments):
            self._read(segment)
        self._settle()
        self._producers.remove_expired(self._now_ms)

    def _unread(self, segments: Segments) -> tuple[Segment, ...]:
        if self._segment is None:
            return segments.from_offset(self._start)
        last = self._segment.base_offset
        return tuple(segment for segment in segments.from_offset(last) if segment.base_offset > last)

    def _read(self, segment: Segment) -> None:
        self._enter(segment)
        found = segment.find(self._start)
        if found is not None:
            check_frame(found.position, found.header)  # behind it there may be producers that nobody would know
            for batch in iter_batches(segment.read, found.position, segment.size):
                self.take(batch)

    def _enter(self, segment: Segment) -> None:
        self._settle()
        if segment.base_offset > self._start:
            self._producers.take_snapshot(segment.base_offset)
            self._producers.write_snapshots()
        self._segment = segment
        self._seen_ms = min(self._now_ms, segment.modified_ms())

    def _take_at_once(self, batch: ScannedBatch) -> None:
        self._settle()
        header = batch.header
        aborted = self._producers.append(header, header.base_offset, batch.data, batch.start, self._time_of(header))
        if aborted is not None and self._segment is not None:
            self._segment.transaction_index.append(aborted)
            self._segment.transaction_index.write()

    def _settle(self) -> None:
        latest, self._latest = self._latest, {}
        for headers in latest.values():
            for header in headers:
                self._producers.append(header, header.base_offset, b"", 0, self._time_of(header))

    def _time_of(self, header: BatchHeader) -> int:
        is_known = header.attributes & LOG_APPEND_TIME_FLAG
        return min(self._now_ms, header.max_timestamp) if is_known else self._seen_ms
