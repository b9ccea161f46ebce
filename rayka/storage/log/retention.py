"""Which segments of a log may be deleted: by time, by size, and below the log start offset.

Segments go from the oldest on and never past the high watermark; an empty active segment stays. With tiered storage
`local.retention.ms` and `local.retention.bytes` count, and only copied segments go (KIP-405); the limits of the whole
log are applied in the remote store, by `rayka.storage.remote.retention`.
Source: the log storage engine document and `retention.ms`, `retention.bytes`, `cleanup.policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rayka.config.log import LogConfig
from rayka.storage.log.segment import Segment
from rayka.types import NO_OFFSET

Predicate = Callable[[Segment, int], bool]
"""(segment, its exclusive end offset) -> whether it may go."""


def deletable(
    segments: tuple[Segment, ...],
    config: LogConfig,
    now_ms: int,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    copied_offset: int = NO_OFFSET,
) -> tuple[Segment, ...]:
    """The oldest segments that some rule allows to be deleted."""
    is_copied = config.is_copied
    rules = [_below(log_start_offset, segments[-1])]
    if "delete" in config.cleanup_policy:
        rules += [
            _older_than(config.effective_local_retention_ms if is_copied else config.retention_ms, now_ms),
            _beyond(
                config.effective_local_retention_bytes if is_copied else config.retention_bytes,
                sum(segment.size for segment in segments),
            ),
        ]
    limit = min(high_watermark, max(copied_offset + 1, log_start_offset)) if is_copied else high_watermark
    candidates = list(_candidates(segments, limit, log_end_offset))
    return max((_prefix(candidates, rule) for rule in rules), key=len)


def _candidates(segments: tuple[Segment, ...], limit: int, log_end_offset: int) -> Iterator[tuple[Segment, int]]:
    ends = [*(following.base_offset for following in segments[1:]), log_end_offset]
    for segment, end_offset in zip(segments, ends, strict=True):
        if limit < end_offset or (segment is segments[-1] and not segment.size):
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
