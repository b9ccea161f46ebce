"""Which segments a log may give up: by time, by size, and below the log start offset.

Segments go from the oldest on and never past the high watermark; an empty active segment stays.
Source: the log storage engine document and `retention.ms`, `retention.bytes`, `cleanup.policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rayka.config.log import LogConfig
from rayka.storage.log.segment import Segment
from rayka.storage.log.segments import Segments

Predicate = Callable[[Segment, int], bool]
"""(segment, its exclusive end offset) -> whether it may go."""


def deletable(
    segments: Segments,
    config: LogConfig,
    now_ms: int,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
) -> tuple[Segment, ...]:
    """The oldest segments that some rule gives up."""
    rules = [_below(log_start_offset, segments.active)]
    if "delete" in config.cleanup_policy:
        rules += [_older_than(config.retention_ms, now_ms), _beyond(config.retention_bytes, segments.size)]
    candidates = list(_candidates(segments, high_watermark, log_end_offset))
    return max((_prefix(candidates, rule) for rule in rules), key=len)


def _candidates(segments: Segments, high_watermark: int, log_end_offset: int) -> Iterator[tuple[Segment, int]]:
    for segment in segments:
        following = segments.after(segment)
        end_offset = following.base_offset if following else log_end_offset
        if high_watermark < end_offset or (following is None and not segment.size):
            return
        yield segment, end_offset


def _prefix(candidates: list[tuple[Segment, int]], may_go: Predicate) -> tuple[Segment, ...]:
    gone = []
    for segment, end_offset in candidates:
        if not may_go(segment, end_offset):
            break
        gone.append(segment)
    return tuple(gone)


def _below(log_start_offset: int, active: Segment) -> Predicate:
    return lambda segment, end_offset: end_offset <= log_start_offset and segment is not active


def _older_than(retention_ms: int, now_ms: int) -> Predicate:
    return lambda segment, _: 0 <= retention_ms < now_ms - segment.last_changed_ms()


def _beyond(retention_bytes: int, size: int) -> Predicate:
    surplus = size - retention_bytes if retention_bytes >= 0 else -1

    def may_go(segment: Segment, _: int) -> bool:
        nonlocal surplus
        surplus -= segment.size
        return surplus >= 0

    return may_go
