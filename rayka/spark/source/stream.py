"""A streaming query: Spark keeps the offsets in its checkpoint, as this source gives them.

The offset of a batch says where the batch ends and also where it begins, for each partition, with the topics' ids. So
a batch that Spark runs again after a crash has the same records, also the first one, whose beginning ("latest") would
be another one by then; and a topic that was deleted and created again is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rayka.ranges.batches import Bounds
from rayka.ranges.plan import log_bounds, plan_ranges, split
from rayka.spark.source.batch import fetch_settings, read_split
from rayka.spark.source.columns import columns_of
from rayka.spark.source.options import SourceOptions
from rayka.spark.source.stream_offsets import from_offset, next_ranges, to_offset
from rayka.spark.source.topics import SourceTopics, ask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Offset = dict[str, Any]
T = TypeVar("T")


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in the driver's Python process, and reads their splits in the workers."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._columns = columns_of(schema)
        self._options = options
        self._settings = fetch_settings(options)
        self._target: Bounds | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new query begins."""
        ranges = self._ask(lambda topics: plan_ranges(topics.topic_ids(), topics.list_offsets, self._options.starting))
        return to_offset(each.between(each.start_offset, each.start_offset) for each in ranges)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next batch; `start` itself where there is nothing new.

        Raises RaykaError where records were deleted before they were read, unless failOnDataLoss is false.
        """
        bounds = self._bounds() if self._target is None else self._target
        max_offsets = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ranges = next_ranges(from_offset(start), bounds, max_offsets, self._options.fail_on_data_loss)
        return to_offset(ranges) if any(map(len, ranges)) else start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """maxOffsetsPerTrigger."""
        max_offsets = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if max_offsets is None else ReadMaxRows(max_offsets)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """The ends of the partitions, for the progress of the query."""
        return to_offset(self._bounds().values())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From here on there is nothing new."""
        self._target = self._bounds()

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

    def _bounds(self) -> Bounds:
        return self._ask(lambda topics: log_bounds(topics.topic_ids(), topics.list_offsets))

    def _ask(self, question: Callable[[SourceTopics], T]) -> T:
        return ask(self._settings.bootstrap_servers, self._options, question)
