"""The order of the batches of a log, by which a damaged offset is noticed: CRCs do not cover the offset of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from rayka.errors import RaykaError
from rayka.storage.format.batch import BatchHeader
from rayka.storage.format.records import corrupt_batch

PositionedHeader = tuple[int, BatchHeader]


def in_order(
    batches: Iterable[PositionedHeader], first_offset: int, end_offset: float = inf, *, check_counts: bool = True
) -> Iterator[PositionedHeader]:
    """Pass on batches that were read from `first_offset` on, while they are in order and end before `end_offset`.

    Raises CORRUPT_MESSAGE behind the last of them, and what `batches` raises. If two batches are not in order, either
    may have the wrong offset, so neither is passed on. But if the first of them begins where the one before it ends and
    has as many records as offsets, it is right; then it is passed on if whoever continues behind it will find that the
    other one is not. With `check_counts` a batch with more records than offsets is not passed on if a gap follows: the
    missing offsets may be its own. For all that a batch is passed on when the next one has been read.
    """
    last: PositionedHeader | None = None
    is_certain = False
    least_offset = first_offset
    try:
        for batch in batches:
            header = batch[1]
            base_offset, next_offset = header.base_offset, header.next_offset
            if (next_offset - 1 if last is None else base_offset) < least_offset:
                is_right = is_certain and next_offset <= least_offset
                wrong, last = (batch, last) if is_right else (last or batch, None)
                raise corrupt_batch(wrong[1], f"is not in order: offset {least_offset} is expected")
            if base_offset > least_offset and last is not None and check_counts and _lacks_offsets(last[1]):
                (_, wrong_header), last = last, None
                raise corrupt_batch(wrong_header, f"has {wrong_header.record_count} records in fewer offsets")
            if header.last_offset_delta < 0:
                raise corrupt_batch(header, f"ends at offset {header.last_offset}")
            if next_offset > end_offset:
                raise corrupt_batch(header, f"is not in order: its partition ends at offset {end_offset}")
            if last is not None:
                yield last
            is_certain = (
                last is not None and base_offset == least_offset and header.record_count == header.last_offset_delta + 1
            )
            last, least_offset = batch, next_offset
    except RaykaError:
        if last is not None:
            yield last
        raise
    if last is not None:
        yield last


def _lacks_offsets(header: BatchHeader) -> bool:
    """Whether a batch counts more records than it has offsets, by damage. Compaction leaves fewer records."""
    return header.record_count > header.last_offset_delta + 1
