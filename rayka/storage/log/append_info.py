"""The outcome of an append."""

from __future__ import annotations

from typing import NamedTuple

from rayka.types import NO_TIMESTAMP


class AppendInfo(NamedTuple):
    """Offsets of the first and last record that were appended, or of the earlier append of a duplicate.

    `log_append_time_ms` is -1 unless the log sets the timestamps.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = 0
    is_duplicate: bool = False
