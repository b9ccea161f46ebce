"""A topic without an end, cut into batches: each is planned on disk, processed, and committed, one after the other.

A batch that was planned and not committed comes again after a restart, with the same number and offsets. Records that
are gone before they were read (retention, a topic that was deleted or created again) are never skipped silently:
`on_data_loss` says whether the stream fails or continues behind them and reports what was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.checkpoint import Checkpoint, PlannedBatch
from rayka.ranges.losses import Bounds, DataLoss, deleted_meanwhile, logged, lost_beginnings, survivors
from rayka.ranges.plan import OffsetRange, Positions, TopicIds, log_bounds, plan_ranges
from rayka.types import TopicPartition

OnDataLoss: TypeAlias = Literal["fail", "skip"]
Ranges: TypeAlias = Sequence[OffsetRange]


class StreamOffsets(Protocol):
    """The partitions that a stream reads, and their offsets."""

    def topic_ids(self, *, existing_only: bool = False) -> TopicIds:
        """The partitions that there are now, new ones included.

        Raises UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist, unless `existing_only`.
        """

    def list_offsets(self, timestamps: Mapping[TopicPartition, int], /) -> Mapping[TopicPartition, int]:
        """See `plan.ListOffsets`."""

    def high_watermarks(self, partitions: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """See `losses.HighWatermarks`."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """`starting` is where a new stream begins; `max_offsets` bounds each batch.

    Raises INVALID_REQUEST for a bad value.
    """

    starting: Positions = "earliest"
    max_offsets: int | None = None
    on_data_loss: OnDataLoss = "fail"

    def __post_init__(self) -> None:
        if self.on_data_loss not in ("fail", "skip"):
            message = f'on_data_loss must be "fail" or "skip", not {self.on_data_loss!r}'
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)


class MicroBatches:
    """The batches of one checkpoint directory, which this process holds until `close`.

    A new stream stores where it starts when it is made, so that `"latest"` means the end as it is then. `new_id` is
    the id of the stream, if it is new. `losses` has what was lost, of the batch that `next` gave last.
    """

    def __init__(self, offsets: StreamOffsets, checkpoint: Checkpoint, settings: StreamSettings, new_id: str) -> None:
        self._offsets = offsets
        self._checkpoint = checkpoint
        self._settings = settings
        self.losses: tuple[DataLoss, ...] = ()
        try:
            self._last = checkpoint.last()
            self.stream_id = checkpoint.stream_id() or self._begin(new_id)
        except BaseException:
            checkpoint.close()
            raise

    def bounds(self, only: Collection[TopicPartition] | None = None) -> Bounds:
        """All the offsets that there are now, of topics and partitions that are new too, or `only` of these partitions.

        Raises UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist, unless losses are to be skipped.
        """
        topic_ids = self._topic_ids(only)
        while True:
            try:
                return log_bounds(topic_ids, self._offsets.list_offsets)
            except RaykaError as error:
                before, topic_ids = topic_ids, self._topic_ids(only)
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or topic_ids == before:
                    raise

    def _topic_ids(self, only: Collection[TopicPartition] | None) -> TopicIds:
        found = self._offsets.topic_ids(existing_only=self._settings.on_data_loss == "skip")
        return {each: topic_id for each, topic_id in found.items() if only is None or each in only}

    def doubts(self, bounds: Bounds) -> bool:
        """Whether `next` would find losses in `bounds` that are not certain: better look the bounds up again first."""
        last = self._last
        planned = self._positions() if last is None or self._checkpoint.is_done(last) else last.ranges
        return not all(loss.is_certain for loss in self._survivors(planned, bounds)[1])

    def next(self, bounds: Bounds, fit: Callable[[Ranges], Ranges] = tuple) -> PlannedBatch | None:
        """The batch that was left undone, else a new one up to the end of `bounds`; None if there is nothing new.

        What is skipped is kept with a batch at once, even one without records: later the log may look complete. `fit`
        may shorten the ranges of a new batch at their ends. Raises OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION or
        UNKNOWN_TOPIC_ID for records that were lost, unless they are to be skipped.
        """
        last = self._last
        if last is not None and not self._checkpoint.is_done(last):
            return self._repeat(last, bounds)
        positions = self._positions()
        surviving = self._surviving(positions, bounds, lost_beginnings(positions, bounds))
        proposed = tuple(limit(list(pending(surviving, bounds)), self._settings.max_offsets))
        fitting = tuple(fit(proposed)) if any(map(len, proposed)) else proposed
        if not self.losses and not any(map(len, fitting)):
            return None
        return self._plan(PlannedBatch(0 if last is None else last.batch_id + 1, fitting))

    def deleted_since(self, planned: Ranges) -> tuple[DataLoss, ...]:
        """What was deleted of ranges since they were planned, and may not have been read.

        A stream that skips nothing fails where it reads, so it loses nothing.
        """
        if self._settings.on_data_loss == "fail":
            return ()
        return tuple(deleted_meanwhile(planned, self.bounds({each.topic_partition for each in planned if len(each)})))

    def commit(self, batch: PlannedBatch) -> None:
        """The batch is done."""
        self._checkpoint.commit(batch)

    def close(self) -> None:
        """Let another process have the checkpoint."""
        self._checkpoint.close()

    def _begin(self, stream_id: str) -> str:
        positions: Ranges = ()
        if self._last is None:
            planned = plan_ranges(self._offsets.topic_ids(), self._offsets.list_offsets, self._settings.starting)
            positions = [each.between(each.start_offset, each.start_offset) for each in planned]
        self._checkpoint.begin(stream_id, positions)
        return stream_id

    def _repeat(self, batch: PlannedBatch, bounds: Bounds) -> PlannedBatch:
        """The same batch again, without what is lost by now."""
        surviving = self._surviving(batch.ranges, bounds)
        return self._plan(PlannedBatch(batch.batch_id, tuple(surviving))) if self.losses else batch

    def _plan(self, batch: PlannedBatch) -> PlannedBatch:
        self._checkpoint.plan(batch)
        self._last = batch
        return batch

    def _positions(self) -> Ranges:
        """Where the stream is in every partition that it knows: empty ranges."""
        if self._last is None:
            return self._checkpoint.starting_positions()
        return [each.between(each.end_offset, each.end_offset) for each in self._last.ranges]

    def _surviving(self, ranges: Ranges, bounds: Bounds, others: Iterable[DataLoss] = ()) -> Ranges:
        """The ranges without offsets that are lost; sets `losses`, which include `others`."""
        left, losses = self._survivors(ranges, bounds)
        self.losses = (*losses, *others)
        if self.losses and self._settings.on_data_loss == "fail":
            raise _failure(self.losses)
        return left

    def _survivors(self, ranges: Ranges, bounds: Bounds) -> tuple[Ranges, list[DataLoss]]:
        return survivors(ranges, logged(ranges, bounds, self._offsets.high_watermarks))


def behind(batch: PlannedBatch, bounds: Bounds) -> int:
    """How many offsets there are after a batch, up to the end of `bounds`."""
    done = {each.topic_partition: each.end_offset for each in batch.ranges}
    left = (each.end_offset - done.get(partition, each.start_offset) for partition, each in bounds.items())
    return sum(max(0, offsets) for offsets in left)


def up_to(first: Bounds, bounds: Bounds) -> Bounds:
    """Newer bounds without what has come since the first ones, nor what was lost of it."""
    return {partition: _capped(bound, first[partition]) for partition, bound in bounds.items() if partition in first}


def _capped(bound: OffsetRange, first: OffsetRange) -> OffsetRange:
    end = first.end_offset if bound.is_same_topic(first) else 0
    return bound.between(min(bound.start_offset, end), min(bound.end_offset, end))


def _failure(losses: Sequence[DataLoss]) -> RaykaError:
    lost = "; ".join(map(str, losses))
    return RaykaError(
        losses[0].code,
        f'{lost}. Set on_data_loss="skip" to report the loss and continue with the records that are left',
    )


def pending(positions: Ranges, bounds: Bounds) -> Iterator[OffsetRange]:
    """From the positions to the ends; a partition that is new is read from its beginning."""
    known = {each.topic_partition: each for each in positions}
    for partition, bound in bounds.items():
        start = known[partition].end_offset if partition in known else bound.start_offset
        yield bound.between(start, max(start, bound.end_offset))


def limit(ranges: Ranges, max_offsets: int | None) -> Iterator[OffsetRange]:
    """At most `max_offsets` in all (but at least one, if there are any), in proportion to what each partition has."""
    total = sum(map(len, ranges))
    left = total if max_offsets is None else min(max(max_offsets, 1), total)
    for each in ranges:
        part = -(-left * len(each) // total) if total else 0
        total -= len(each)
        left -= part
        yield each.between(each.start_offset, each.start_offset + part)
