"""Bringing the producers of a log up to its end: the last snapshot, then the batches after it."""

from __future__ import annotations

from rayka.storage.producer_state import ProducerState
from rayka.storage.scan import iter_batches
from rayka.storage.segment import Segment
from rayka.storage.segments import Segments


def reload(producers: ProducerState, segments: Segments, limit: int, now_ms: int) -> None:
    """Begin from the last snapshot at or below `limit` and take in every batch from there on.

    Batches below the log start offset count too: a producer may still send them again. Snapshots at the base
    offsets of segments that are missing are taken on the way.
    """
    known_up_to = producers.load_snapshot(limit, now_ms)
    start = segments.all[0].base_offset if known_up_to is None else known_up_to
    for segment in segments.from_offset(start):
        if segment.base_offset > start:
            producers.take_snapshot(segment.base_offset)
        _replay(producers, segment, start)
    producers.remove_expired(now_ms)


def _replay(producers: ProducerState, segment: Segment, start: int) -> None:
    found = segment.find(start)
    if found is None:
        return
    for batch in iter_batches(segment.read, found.position, segment.size):
        if batch.header.producer_id >= 0:
            aborted = producers.append(batch.header, batch.header.base_offset, batch.data, batch.start)
            if aborted is not None:
                segment.transaction_index.append(aborted)
