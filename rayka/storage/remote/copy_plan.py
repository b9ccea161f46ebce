"""What a log knows of its copies, and which segments to copy next (KIP-405, KIP-1241)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rayka.config.log import LogConfig
from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.log.log import Log
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.segments.segment import Segment


class CopyableSegment(NamedTuple):
    """A closed segment whose records are below `end_offset`."""

    segment: Segment
    end_offset: int


def take_up(log: Log, remote: RemotePartition) -> range:
    """Tell a log which of its offsets are in the store: it serves and retains accordingly.

    Returns the offsets that should be in the store and that the metadata does not name: the log keeps them.
    """
    known = log.leader_epochs
    if known and known[0].start_offset > log.log_start_offset and (lost := remote.epochs_below(known[0])):
        log.restore_epochs(lost)
    epochs, local_start = log.leader_epochs, log.local_log_start_offset
    missing = remote.missing_offsets(epochs, log.log_start_offset, local_start)
    first = log.log_start_offset
    if not missing:
        first = min([local_start, *(segment.start_offset for segment in remote.lineage(epochs)[:1])])
    log.take_up_remote(first, remote.highest_offset(epochs, local_start))
    return missing


def copyable_segments(
    segments: Sequence[Segment], config: LogConfig, now_ms: int, *, copied_offset: int, safe_offset: int
) -> Iterator[CopyableSegment]:
    """The closed segments with records above `copied_offset`, oldest first, up to one that is to wait.

    `safe_offset` is the last stable offset or, where that is lower, the recovery point: what is above may still be
    decided otherwise, or be lost by a crash.
    """
    newer_bytes = sum(segment.size for segment in segments)
    for segment, following in itertools.pairwise(segments):
        newer_bytes -= segment.size
        if following.base_offset - 1 <= copied_offset:
            continue
        if following.base_offset > safe_offset or not _is_due(segment, newer_bytes, config, now_ms):
            return
        yield CopyableSegment(segment, following.base_offset)


def next_copyable(log: Log, now_ms: int) -> CopyableSegment | None:
    """The closed segment that is to be copied next; the producers' state at its end is in a file then."""
    safe_offset = min(log.last_stable_offset, log.recovery_point)
    done_offset = max(log.copied_offset, log.log_start_offset - 1)
    plan = copyable_segments(log.segments, log.config, now_ms, copied_offset=done_offset, safe_offset=safe_offset)
    found = next(plan, None)
    if found is not None and log.has_unwritten_snapshots:
        log.write_snapshots()
    return found


def _is_due(segment: Segment, newer_bytes: int, config: LogConfig, now_ms: int) -> bool:
    """Whether the copy has waited for as long, or for as many newer bytes, as `remote.copy.lag.*` ask for."""
    lag_ms = config.remote_copy_lag_ms if config.remote_copy_lag_ms >= 0 else config.effective_local_retention_ms
    lag_bytes = config.remote_copy_lag_bytes
    if lag_bytes < 0:
        lag_bytes = config.effective_local_retention_bytes
    if lag_ms == 0 or lag_bytes == 0 or 0 < lag_bytes <= newer_bytes:
        return True
    if lag_ms < 0:
        return lag_bytes < 0
    return now_ms - segment.last_changed_ms() >= lag_ms


def epochs_of(epochs: Sequence[EpochEntry], start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
    """The leader epochs of the records from `start_offset` up to `end_offset`, the first one at `start_offset`."""
    before = [entry for entry in epochs if entry.start_offset <= start_offset]
    within = [entry for entry in epochs if start_offset < entry.start_offset < end_offset]
    first = [EpochEntry(before[-1].epoch, start_offset)] if before else []
    return (*first, *within)
