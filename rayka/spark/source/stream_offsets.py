"""The offset of a batch in Spark's checkpoint, as JSON, and what the next batch reads.

{"clicks": {"id": "6c6f...", "start": {"0": 100, "1": 80}, "end": {"0": 120, "1": 95}}}
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import Bounds, limit, pending, survivor
from rayka.ranges.plan import OffsetRange

logger = logging.getLogger(__name__)


def to_offset(ranges: Iterable[OffsetRange]) -> dict[str, Any]:
    """The offset of a batch with these ranges, which have every partition, also those without anything new."""
    topics: dict[str, Any] = {}
    for each in ranges:
        topic = topics.setdefault(each.topic, {"id": str(each.topic_id), "start": {}, "end": {}})
        topic["start"][str(each.partition)] = each.start_offset
        topic["end"][str(each.partition)] = each.end_offset
    return topics


def from_offset(offset: Mapping[str, Any]) -> list[OffsetRange]:
    """The ranges of a batch. Raises CORRUPT_MESSAGE if the checkpoint has something else there."""
    try:
        return [
            OffsetRange(topic, int(partition), int(held["start"][partition]), int(end), uuid.UUID(held["id"]))
            for topic, held in offset.items()
            for partition, end in held["end"].items()
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"the checkpoint is not one of the source rayka: {offset!r} ({error!r})"
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, message) from None


class Lost(NamedTuple):
    """Records that are gone before the query has read them. Of `is_certain` losses the partition's leader has told; any
    other may be the word of a broker that has not heard of a change, or of a new leader that has to catch up."""

    code: ErrorCode
    message: str
    is_certain: bool = False


def next_ranges(
    last: Iterable[OffsetRange], bounds: Bounds, max_offsets: int | None
) -> tuple[list[OffsetRange], list[Lost]]:
    """The ranges of the batch after `last`, up to the end of `bounds`, of at most `max_offsets` offsets; and what is
    lost before them."""
    positions = {each.topic_partition: each.between(each.end_offset, each.end_offset) for each in last}
    surviving, losses = [], [_unseen(bound) for at, bound in bounds.items() if at not in positions]
    for at, position in positions.items():
        left, loss = _survivor(position, bounds.get(at))
        losses.append(loss)
        if left is not None:
            surviving.append(left)
    return list(limit(list(pending(surviving, bounds)), max_offsets)), [loss for loss in losses if loss is not None]


def raise_or_log(losses: Sequence[Lost], fail_on_data_loss: bool) -> None:
    """Raise RaykaError with the code of the first loss, or log each if the query may go on."""
    if losses and fail_on_data_loss:
        lost = "; ".join(loss.message for loss in losses)
        raise RaykaError(losses[0].code, f"{lost}. With failOnDataLoss=false the query goes on with what is there")
    for loss in losses:
        logger.warning("%s; going on, because failOnDataLoss is false", loss.message)


def _survivor(position: OffsetRange, bound: OffsetRange | None) -> tuple[OffsetRange | None, Lost | None]:
    left, loss = survivor(position, bound)
    if loss is not None:
        return left, Lost(loss.code, str(loss), loss.code is ErrorCode.OFFSET_OUT_OF_RANGE)
    if bound is None or position.end_offset <= bound.end_offset:
        return left, None
    message = (
        f"{position.topic_partition}: the log ends at offset {bound.end_offset}, and had been read up to offset "
        f"{position.end_offset}; records that came since then may have offsets that count as read"
    )
    return bound.between(bound.end_offset, bound.end_offset), Lost(ErrorCode.OFFSET_OUT_OF_RANGE, message)


def _unseen(bound: OffsetRange) -> Lost | None:
    """A new partition whose first records were deleted before the query knew of it."""
    if bound.start_offset == 0:
        return None
    message = f"{bound.topic_partition}: offsets 0 to {bound.start_offset - 1} of this new partition were deleted"
    return Lost(ErrorCode.OFFSET_OUT_OF_RANGE, f"{message} before they were read", is_certain=True)
