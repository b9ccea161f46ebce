"""Combines the state batches of a share-partition: sorted, without overlap, as few as possible.

Where batches disagree about an offset, the higher delivery count holds, and of two equal ones the higher delivery
state (Kafka's PersisterStateBatchCombiner), and then the longer delay. So the outcome does not depend on the order in
which writes arrive, and one that comes late or twice can't take an acknowledgement back.

A write touches few of the batches that a share-partition has, so only those are combined.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter

from rayka.coordinator.shares.requests import StateBatch

Batches = tuple[StateBatch, ...]

_FIRST_OFFSET = attrgetter("first_offset")
_LAST_OFFSET = attrgetter("last_offset")
_TERMINAL = frozenset({2, 4})
"""Acknowledged and archived."""


def combine(current: Batches, new: Iterable[StateBatch], start_offset: int) -> Batches:
    """`current`, which is combined already, with new batches; nothing stays that is below the start offset."""
    current = _from_offset(current, start_offset)
    added = _from_offset(sorted(new), start_offset)
    if not added:
        return current
    low = bisect_left(current, added[0].first_offset - 1, key=_LAST_OFFSET)
    high = bisect_left(current, max(batch.last_offset for batch in added) + 2, key=_FIRST_OFFSET)
    return (*current[:low], *_flatten((*current[low:high], *added)), *current[high:])


def join_terminal(batches: Batches) -> Batches:
    """Fewer batches: neighbours whose records are all done become one, in the strongest state of them."""
    joined: list[StateBatch] = []
    for batch in batches:
        last = joined[-1] if joined else None
        is_next = last is not None and last.last_offset + 1 == batch.first_offset
        if last is not None and is_next and {last.delivery_state, batch.delivery_state} <= _TERMINAL:
            state = max(last.delivery_state, batch.delivery_state)
            count = max(last.delivery_count, batch.delivery_count)
            joined[-1] = StateBatch(last.first_offset, batch.last_offset, state, count)
        else:
            joined.append(batch)
    return tuple(joined)


def _from_offset(batches: Sequence[StateBatch], start_offset: int) -> Batches:
    """What lies at or above the start offset."""
    if not batches or batches[0].first_offset >= start_offset:
        return tuple(batches)
    kept = (batch for batch in batches if batch.last_offset >= start_offset)
    return tuple(batch._replace(first_offset=max(batch.first_offset, start_offset)) for batch in kept)


def _flatten(batches: Iterable[StateBatch]) -> list[StateBatch]:
    """Sweep over all boundaries; between two of them the strongest batch counts."""
    waiting = sorted(batches)
    boundaries = sorted({edge for batch in waiting for edge in (batch.first_offset, batch.last_offset + 1)})
    active: list[tuple[int, int, int, int]] = []
    result: list[StateBatch] = []
    position = 0
    for offset, following in itertools.pairwise(boundaries):
        while position < len(waiting) and waiting[position].first_offset <= offset:
            batch = waiting[position]
            strength = (-batch.delivery_count, -batch.delivery_state, -batch.available_at)
            heapq.heappush(active, (*strength, batch.last_offset))
            position += 1
        while active and active[0][-1] < offset:
            heapq.heappop(active)
        if active:
            delivery_count, delivery_state, available_at, _ = active[0]
            _extend(result, StateBatch(offset, following - 1, -delivery_state, -delivery_count, -available_at))
    return result


def _extend(result: list[StateBatch], batch: StateBatch) -> None:
    """Append a batch, as one with the last if that ends where this begins and is alike."""
    last = result[-1] if result else None
    if last is not None and last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
        result[-1] = last._replace(last_offset=batch.last_offset)
    else:
        result.append(batch)
