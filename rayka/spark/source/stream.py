"""A streaming query: Spark keeps the offsets in its checkpoint, as this source gives them.

The offset of a batch says where the batch ends and also where it begins, for each partition, with the topics' ids. So
a batch that Spark runs again after a crash has the same records, also the first one, whose beginning ("latest") would
be another one by then; and a topic that was deleted and created again is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.losses import Bounds, DataLoss
from rayka.ranges.plan import OffsetRange, log_bounds, plan_ranges, split
from rayka.spark.source.batch import fetch_settings, read_split
from rayka.spark.source.columns import columns_of
from rayka.spark.source.options import SourceOptions
from rayka.spark.source.stream_offsets import from_offset, keep_seen, next_ranges, raise_or_log, to_offset
from rayka.spark.source.topics import SourceTopics, ask
from rayka.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Offset = dict[str, Any]
T = TypeVar("T")
_PATIENCE_S = 3.0
"""How long a loss must be reported, or a topic be missing, before it counts: brokers learn of changes one by one."""
_RETRY_S = 0.1


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in the driver's Python process, and reads their splits in the workers."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._columns = columns_of(schema)
        self._options = options
        self._settings = fetch_settings(options)
        self._latest: Bounds | None = None
        self._is_bounded = False
        self._last_trigger_s: float | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """The offset at which a new query begins."""
        starting, nearest = self._options.starting, not self._options.fail_on_data_loss
        ranges = self._ask(lambda asked: plan_ranges(asked.topic_ids(), asked.list_offsets, starting, nearest=nearest))
        return to_offset(each.between(each.start_offset, each.start_offset) for each in ranges)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next batch; `start` itself where there is nothing new.

        Raises RaykaError where records were deleted before they were read, unless failOnDataLoss is false. Then the
        offset behind what was lost is another one, even without records, so that Spark keeps it.
        """
        max_offsets = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ranges, losses = self._next(start, max_offsets)
        raise_or_log(losses, self._options.fail_on_data_loss)
        if not losses and self._has_to_wait(sum(map(len, ranges))):
            return start
        self._last_trigger_s = time.monotonic()
        return keep_seen(to_offset(ranges), start, self._options.choice.names)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """maxOffsetsPerTrigger."""
        max_offsets = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if max_offsets is None else ReadMaxRows(max_offsets)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The ends of the partitions as they were last seen, for the progress of the query."""
        return None if self._latest is None else to_offset(self._latest.values())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the current end, and nothing newer."""
        self._is_bounded = True
        self._latest = self._bounds()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The splits of the batch that ends at `end`."""
        if start == end:
            return []
        options = self._options
        splits = split(from_offset(end), options.min_partitions or 1, options.max_records_per_partition)
        return [InputPartition(each) for each in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a split."""
        return read_split(self._settings, self._columns, self._schema, partition.value)

    def _has_to_wait(self, offsets: int) -> bool:
        """Whether a batch would be empty or too small."""
        if not offsets or self._is_bounded or self._last_trigger_s is None:
            return not offsets
        is_too_small = offsets < self._options.min_offsets_per_trigger
        return is_too_small and time.monotonic() - self._last_trigger_s < self._options.max_trigger_delay_s

    def _next(self, start: Offset, max_offsets: int | None) -> tuple[list[OffsetRange], list[DataLoss]]:
        """See `next_ranges`. An uncertain loss is accepted if it is still reported after some seconds."""
        last, deadline_s = from_offset(start), time.monotonic() + _PATIENCE_S
        if self._latest is None or not self._is_bounded:
            self._latest = self._bounds()
        while True:
            self._require_topics(start, self._latest)
            ranges, losses = next_ranges(last, self._latest, max_offsets, self._high_watermarks)
            if all(loss.is_certain for loss in losses) or time.monotonic() >= deadline_s:
                return ranges, losses
            time.sleep(_RETRY_S)
            self._latest = self._bounds()

    def _high_watermarks(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._ask(lambda asked: asked.high_watermarks(partitions))

    def _require_topics(self, start: Offset, bounds: Bounds) -> None:
        """Raise UNKNOWN_TOPIC_OR_PARTITION for a topic that the query asks for, and that it has never seen."""
        seen = {*start, *(each.topic for each in bounds.values())}
        for topic in sorted(self._options.choice.names - seen):
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")

    def _bounds(self) -> Bounds:
        """The offsets of all partitions. A topic under deletion may be listed although it has no leader any more."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._ask(lambda asked: log_bounds(asked.topic_ids(existing_only=True), asked.list_offsets))
            except RaykaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() >= deadline_s:
                    raise
            time.sleep(_RETRY_S)

    def _ask(self, question: Callable[[SourceTopics], T]) -> T:
        return ask(self._settings.bootstrap_servers, self._options, question)
