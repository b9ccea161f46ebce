"""How dirty a log is: which part of it can be cleaned, and whether it should be cleaned now.

A log is dirty from the first offset that was never cleaned on. The active segment is not cleaned, nor what is newer
than `min.compaction.lag.ms`, lies at or above the last stable offset, or is not on the device yet.
Source: the log storage engine document, KIP-58, KIP-354.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from rayka.storage.cleaner.plan import CleaningPlan, SourceSegment
from rayka.storage.log.log import Log
from rayka.storage.segments.segment import Segment
from rayka.storage.segments.transaction_index import AbortedTxn


class Dirtiness(NamedTuple):
    """`segments` may be cleaned; they end at `uncleanable_offset`. Sizes are in bytes."""

    log: Log
    segments: tuple[Segment, ...]
    first_dirty_offset: int
    uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether a dirty record is older than `max.compaction.lag.ms`."""
    truncations: int
    """How often the log has been truncated until now."""

    @property
    def ratio(self) -> float:
        """The part of the bytes that is dirty."""
        size = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / size if size else 0.0

    @property
    def should_be_cleaned(self) -> bool:
        """Whether `min.cleanable.dirty.ratio` is exceeded, or a record is overdue."""
        if not self.dirty_bytes:
            return False
        return self.is_overdue or self.ratio > self.log.config.min_cleanable_dirty_ratio


def first_dirty_offset(log: Log, cleaned_offset: int | None) -> int:
    """Where the dirty part begins; `cleaned_offset` is the checkpoint, which the log may have left behind."""
    if cleaned_offset is None or not log.log_start_offset <= cleaned_offset <= log.log_end_offset:
        return log.log_start_offset
    return cleaned_offset


def measure(log: Log, cleaned_offset: int | None, now_ms: int) -> Dirtiness:
    """The dirtiness of a log. Reads a little of each dirty segment; any thread may call it. Raises OSError."""
    dirty_from, truncations = first_dirty_offset(log, cleaned_offset), log.truncations
    segments: list[Segment] = []
    dirty: list[Segment] = []
    ends = _ends(log)
    for segment, end_offset in ends:
        if end_offset > log.last_stable_offset or not segment.is_flushed(end_offset):
            break
        if end_offset > dirty_from:
            if _is_too_new(segment, log.config.min_compaction_lag_ms, now_ms):
                break
            dirty.append(segment)
        segments.append(segment)
    return Dirtiness(
        log,
        tuple(segments),
        dirty_from,
        max(dirty_from, ends[len(segments) - 1][1] if segments else 0),
        sum(segment.size for segment in segments) - sum(segment.size for segment in dirty),
        sum(segment.size for segment in dirty),
        any(_is_overdue(segment, log.config.max_compaction_lag_ms, now_ms) for segment in dirty),
        truncations,
    )


def _ends(log: Log) -> list[tuple[Segment, int]]:
    """Each closed segment and its exclusive end offset."""
    return [(one, following.base_offset) for one, following in pairwise(log.segments)]


def _is_too_new(segment: Segment, min_lag_ms: int, now_ms: int) -> bool:
    return min_lag_ms > 0 and segment.last_changed_ms() > now_ms - min_lag_ms


def _is_overdue(segment: Segment, max_lag_ms: int, now_ms: int) -> bool:
    first = segment.batch_at(0)
    return first is not None and 0 < first.max_timestamp < now_ms - max_lag_ms


def aborted_transactions(dirtiness: Dirtiness) -> tuple[AbortedTxn, ...]:
    """The aborted transactions that begin in what may be cleaned; their markers may lie behind it. Any thread may."""
    return tuple(
        aborted
        for segment in dirtiness.log.segments
        for aborted in segment.transaction_index.read()
        if aborted.first_offset < dirtiness.uncleanable_offset
    )


def plan_of(dirtiness: Dirtiness, aborted: tuple[AbortedTxn, ...], now_ms: int) -> CleaningPlan:
    """What the cleaner has to know, at this moment."""
    log = dirtiness.log
    chosen = set(dirtiness.segments)
    return CleaningPlan(
        directory=log.directory,
        segments=tuple(
            SourceSegment(segment.base_offset, end_offset, segment.size, segment.modified_ms())
            for segment, end_offset in _ends(log)
            if segment in chosen
        ),
        first_dirty_offset=dirtiness.first_dirty_offset,
        uncleanable_offset=dirtiness.uncleanable_offset,
        segment_size=log.config.segment_size,
        segment_index_bytes=log.config.segment_index_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        delete_retention_ms=log.config.delete_retention_ms,
        now_ms=now_ms,
        active_producers=log.active_producers,
        aborted=aborted,
    )
