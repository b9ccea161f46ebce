"""How much a consumer fetches ahead: it depends on whether its program takes records, record batches or tables.

For records it is two answers of each partition. For tables and batches it is one, which may be larger: they are used
once and as a whole, and most of the work is for each answer. Of large batches for tables, which stay in their files, it
is two again: they take no memory until tables are made of them.
"""

from __future__ import annotations

from typing import NamedTuple

from rayka.client.consumer.positions import AssignedPartition

_FETCHES_AHEAD = 2
_TABLE_FACTOR = 4
"""So many times `max_partition_fetch_bytes` is in an answer for a table."""
_STORED_FACTOR = 24
"""The same if its batches will stay in their file, so that they take no memory."""


class ReadAhead(NamedTuple):
    """What is fetched ahead for a program that takes batches, and, if they `may_be_stored`, makes tables of them."""

    is_for_batches: bool
    may_be_stored: bool

    def wants_more(self, state: AssignedPartition) -> bool:
        """Whether another answer is to be fetched from a partition; none from a paused one."""
        ahead = 1 if self.is_for_batches and not self.stays_stored(state) else _FETCHES_AHEAD
        return not state.is_paused and len(state.completed_fetches) < ahead

    def factor(self, state: AssignedPartition) -> int:
        """So many times `max_partition_fetch_bytes` is asked for."""
        if not self.is_for_batches or state.must_check:
            return 1
        return _STORED_FACTOR if self.stays_stored(state) else _TABLE_FACTOR

    def stays_stored(self, state: AssignedPartition) -> bool:
        """Whether the next answer will probably stay in its file: the last one did."""
        return self.may_be_stored and state.has_large_batches and not state.must_check


FOR_RECORDS = ReadAhead(is_for_batches=False, may_be_stored=False)
FOR_BATCHES = ReadAhead(is_for_batches=True, may_be_stored=False)
FOR_TABLES = ReadAhead(is_for_batches=True, may_be_stored=True)
