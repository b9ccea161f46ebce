"""The cleaner's input and output: the log to clean, and the segments that it has written.

Both travel between the process that serves the log and the one that cleans it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rayka.storage.segments.transaction_index import AbortedTxn


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """A segment that may be cleaned: its files do not change any more. `end_offset` is where the next one begins."""

    base_offset: int
    end_offset: int
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """One round of cleaning of one log, from its first segment up to `uncleanable_offset`.

    `segments` end there. The log is dirty from `first_dirty_offset` on. `active_producers` has for each producer id the
    last offset of its data, -1 if only a marker is known, and its epoch. `aborted` are the transactions that were
    aborted and began below the end, in the order of their markers.
    """

    directory: str
    segments: tuple[SourceSegment, ...]
    first_dirty_offset: int
    uncleanable_offset: int
    segment_size: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    now_ms: int
    active_producers: Mapping[int, tuple[int, int]]
    aborted: tuple[AbortedTxn, ...] = ()


@dataclass(frozen=True, slots=True)
class CleanerLimits:
    """What a cleaner may use: `log.cleaner.*`. `secret` seeds the hashes of keys."""

    dedupe_buffer_bytes: int = 128 << 20
    io_buffer_bytes: int = 512 << 10
    load_factor: float = 0.9
    max_bytes_per_second: float = float("inf")
    secret: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """The log is clean below `end_offset`, once its last cleaned segment is in place."""

    end_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
