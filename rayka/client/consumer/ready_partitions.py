"""The partitions from which a consumer can give the program something, in turn.

One from which records came last comes last at the next call. While the program works with a
table, parts of the next two are made of the large answers that these will get.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from itertools import islice

from rayka.client.consumer.completed_fetch import CompletedFetch
from rayka.client.consumer.positions import AssignedPartition
from rayka.client.consumer.stored import BeginPart, StoredFetch
from rayka.gateway.server.segment_files import SegmentFiles

_PARTS_AHEAD = 2
"""So many parts of the next tables are made at the same time: with two, the threads have no break. They come before the
second half of a table that was not begun ahead, which its caller then makes too."""
_LEAST_PART_BYTES = 8 << 20
"""Smaller answers are better in one part of a table with others."""
_MOST_PART_BYTES = 64 << 20
"""Larger answers are not made ahead: the parts would take as much memory."""


class ReadyPartitions:
    """Those that have completed fetches, or an error. Paused ones keep their turn."""

    def __init__(self) -> None:
        self._states: dict[AssignedPartition, None] = {}

    def add(self, state: AssignedPartition) -> None:
        """The partition has something; if it had before, its turn stays."""
        self._states.setdefault(state)

    def readable(self) -> list[AssignedPartition]:
        """The partitions that have something and are not paused, in turn."""
        for state in [state for state in self._states if not state.completed_fetches and state.error is None]:
            del self._states[state]
        return [state for state in self._states if not state.is_paused]

    def end_turn(self, state: AssignedPartition) -> None:
        """The others come first at the next call."""
        self._states[state] = self._states.pop(state)

    @property
    def buffered_bytes(self) -> int:
        """How many bytes are held in memory. Those of paused partitions do not count: they must not keep the others
        from being read.
        """
        return sum(state.buffered_bytes for state in self._states if not state.is_paused)

    def begin_parts(self, begin_part: BeginPart, files: SegmentFiles, table_bytes: float) -> None:
        """Let parts of the next tables, of `table_bytes` each, be made of the large answers that these will get
        first.
        """
        following = (fetch for fetch in self._following(table_bytes) if isinstance(fetch, StoredFetch))
        large = (fetch for fetch in following if _LEAST_PART_BYTES <= fetch.size <= _MOST_PART_BYTES)
        for fetch in islice(large, _PARTS_AHEAD):
            with contextlib.suppress(Exception):  # who takes it finds out; what was taken before must not be lost
                fetch.begin(begin_part, files)

    def _following(self, table_bytes: float) -> Iterator[CompletedFetch | StoredFetch]:
        """What is read ahead, in the order in which the next tables take it: the partition with which one ends comes
        last in the next one. Only of partitions from which the program goes on taking.
        """
        turns = deque(
            iter(state.completed_fetches)
            for state in self._states
            if not state.tables_before_ahead and not state.is_paused
        )
        left_bytes = table_bytes
        while turns:
            for fetch in turns[0]:
                yield fetch
                left_bytes -= fetch.size
                if left_bytes <= 0:
                    left_bytes = table_bytes
                    turns.rotate(-1)
                    break
            else:
                turns.popleft()
