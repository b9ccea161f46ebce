"""The offsets of a batch in Spark's checkpoint, as JSON, and the offsets that the next batch reads.

{"clicks": {"id": "6c6f...", "start": {"0": 100, "1": 80}, "end": {"0": 120, "1": 95}}}
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import limit, pending
from rayka.ranges.losses import Bounds, DataLoss, HighWatermarks, logged, lost_beginnings, survivors
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
            OffsetRange(topic, int(partition), int(written["start"][partition]), int(end), uuid.UUID(written["id"]))
            for topic, written in offset.items()
            for partition, end in written["end"].items()
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"the checkpoint is not one of the source rayka: {offset!r} ({error!r})"
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, message) from None


def keep_seen(following: Mapping[str, Any], last: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The following offset, with those of the named topics that the last one has and that are gone: no partitions.

    So a query that goes on without a topic knows it from one that never existed.
    """
    gone = {name: last[name] | {"start": {}, "end": {}} for name in last if name in names and name not in following}
    return {**following, **gone}


def next_ranges(
    last: Iterable[OffsetRange], bounds: Bounds, max_offsets: int | None, high_watermarks: HighWatermarks
) -> tuple[list[OffsetRange], list[DataLoss]]:
    """The ranges of the batch after `last`, up to the end of `bounds`, of at most `max_offsets` offsets; and what is
    lost before them."""
    positions = [each.between(each.end_offset, each.end_offset) for each in last]
    surviving, losses = survivors(positions, logged(positions, bounds, high_watermarks))
    ranges = list(limit(list(pending(surviving, bounds)), max_offsets))
    return ranges, [*losses, *lost_beginnings(positions, bounds)]


def raise_or_log(losses: Sequence[DataLoss], fail_on_data_loss: bool) -> None:
    """Raise RaykaError with the code of the first loss, or log each if the query may continue."""
    if losses and fail_on_data_loss:
        lost = "; ".join(map(str, losses))
        raise RaykaError(losses[0].code, f"{lost}. Set failOnDataLoss=false to continue with the records that are left")
    for loss in losses:
        logger.warning("%s; continuing, because failOnDataLoss is false", loss)
