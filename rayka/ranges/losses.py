"""Records that were deleted before a stream read them: what is left of a range, and what is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from rayka.errors import ErrorCode
from rayka.ranges.plan import OffsetRange
from rayka.types import TopicPartition

Bounds: TypeAlias = Mapping[TopicPartition, OffsetRange]
"""Every partition with all the offsets that it has."""
HighWatermarks: TypeAlias = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]
"""Looks up where the logs end for readers of uncommitted records."""


class DataLoss(NamedTuple):
    """Records that were gone before the stream had read them.

    Of `is_certain` losses the partition's leader has told; any other may be the word of a broker that has not heard of
    a change, or of a new leader that has to catch up.
    """

    offsets: OffsetRange
    code: ErrorCode
    reason: str
    is_certain: bool = False

    def __str__(self) -> str:
        return f"{self.offsets.topic_partition}: {self.reason}"


def survivors(planned: Iterable[OffsetRange], bounds: Bounds) -> tuple[list[OffsetRange], list[DataLoss]]:
    """What is left of ranges, and what is lost of them. A position is an empty range."""
    pairs = [_survivor(each, bounds.get(each.topic_partition)) for each in planned]
    return [left for left, _ in pairs if left is not None], [loss for _, losses in pairs for loss in losses]


def logged(planned: Iterable[OffsetRange], bounds: Bounds, high_watermarks: HighWatermarks) -> Bounds:
    """The bounds, up to the high watermark where a range goes beyond them.

    To a reader of committed records the log ends where an open transaction begins. A stream that read uncommitted
    records before may have come further, and those records are not lost.
    """
    ends = {each.topic_partition: each.end_offset for each in planned}
    beyond = [partition for partition, bound in bounds.items() if ends.get(partition, 0) > bound.end_offset]
    found = high_watermarks(beyond) if beyond else {}
    extended = {
        partition: bounds[partition].between(bounds[partition].start_offset, max(bounds[partition].end_offset, end))
        for partition, end in found.items()
    }
    return {**bounds, **extended}


def lost_beginnings(known: Iterable[OffsetRange], bounds: Bounds) -> Iterator[DataLoss]:
    """What is lost of the partitions in `bounds` that are new, and not in `known`."""
    seen = {each.topic_partition for each in known}
    for partition, bound in bounds.items():
        if partition not in seen and bound.start_offset > 0:
            reason = f"offsets 0 to {bound.start_offset - 1} of this new partition were deleted before they were read"
            yield DataLoss(bound.between(0, bound.start_offset), ErrorCode.OFFSET_OUT_OF_RANGE, reason, is_certain=True)


def deleted_meanwhile(read: Iterable[OffsetRange], bounds: Bounds) -> Iterator[DataLoss]:
    """What was deleted of ranges while they were read. Nobody knows which of these records were read before."""
    for each in read:
        bound, lost, code = bounds.get(each.topic_partition), each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if bound is not None and each.is_same_topic(bound):
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            left_from = min(max(each.start_offset, bound.start_offset), each.end_offset)
            lost = each.between(each.start_offset, left_from)
        elif bound is not None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        if len(lost):
            reason = f"offsets {lost.start_offset} to {lost.end_offset - 1} were deleted while they were read"
            yield DataLoss(lost, code, reason, is_certain=code is ErrorCode.OFFSET_OUT_OF_RANGE)


def _survivor(planned: OffsetRange, bound: OffsetRange | None) -> tuple[OffsetRange | None, list[DataLoss]]:
    if bound is None:
        reason = f"the partition was deleted; it had been read up to offset {planned.start_offset}"
        return None, [DataLoss(planned, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)]
    if not planned.is_same_topic(bound):
        reason = (
            f"the topic was deleted and created again (topic id {planned.topic_id}, now {bound.topic_id}); "
            f"it had been read up to offset {planned.start_offset}"
        )
        left = bound.between(bound.start_offset, bound.start_offset)
        return left, [DataLoss(planned, ErrorCode.UNKNOWN_TOPIC_ID, reason)]
    left = planned.between(_nearest(planned.start_offset, bound), _nearest(planned.end_offset, bound))
    return left, [*_deleted(planned, bound), *_cut_off(planned, bound)]


def _nearest(offset: int, bound: OffsetRange) -> int:
    return min(max(offset, bound.start_offset), bound.end_offset)


def _deleted(planned: OffsetRange, bound: OffsetRange) -> Iterator[DataLoss]:
    if planned.start_offset < bound.start_offset:
        lost = planned.between(planned.start_offset, bound.start_offset)
        reason = f"offsets {lost.start_offset} to {lost.end_offset - 1} were deleted before they were read"
        yield DataLoss(lost, ErrorCode.OFFSET_OUT_OF_RANGE, reason, is_certain=True)


def _cut_off(planned: OffsetRange, bound: OffsetRange) -> Iterator[DataLoss]:
    if planned.end_offset > bound.end_offset:
        reason = (
            f"the log ends at offset {bound.end_offset}, and {'was to be' if len(planned) else 'had been'} read up to "
            f"offset {planned.end_offset}; records that came since then may have offsets that count as read"
        )
        lost = planned.between(bound.end_offset, planned.end_offset)
        yield DataLoss(lost, ErrorCode.OFFSET_OUT_OF_RANGE, reason)
