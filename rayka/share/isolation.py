"""Which batches of the log hold records for a group, by its isolation level."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rayka.share.acquire import LogBatch
from rayka.types import AbortedTransaction


class BatchOutline(NamedTuple):
    """What the header of a batch says."""

    first_offset: int
    last_offset: int
    producer_id: int
    is_transactional: bool
    is_control: bool


def visible_batches(outlines: Iterable[BatchOutline], aborted: Sequence[AbortedTransaction]) -> Iterator[LogBatch]:
    """Say of each batch whether it holds records for the group: no control batch does, nor one that was aborted.

    `aborted` are the aborted transactions among them, by first offset; a group that reads uncommitted records has none.
    """
    waiting = list(reversed(aborted))
    aborting: set[int] = set()
    for outline in outlines:
        while waiting and waiting[-1].first_offset <= outline.last_offset:
            aborting.add(waiting.pop().producer_id)
        if outline.is_control:
            aborting.discard(outline.producer_id)
            is_visible = False
        else:
            is_visible = not (outline.is_transactional and outline.producer_id in aborting)
        yield LogBatch(outline.first_offset, outline.last_offset, is_visible)
