"""A batch query: offsets are looked up once, when Spark plans it, and each split is a partition of the DataFrame.

What only the workers need, or only the plan, is imported there: a query waits for these processes to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rayka.ranges.plan import OffsetRange, plan_ranges, split
from rayka.spark.source.columns import arrow_schema, columns_of, pieces
from rayka.spark.source.options import FetchSettings, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rayka.spark.source.topics import SourceTopics


class TopicReader(DataSourceReader):
    """Plans a batch query in the driver, and reads its splits in the workers."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._columns = columns_of(schema)
        self._options = options
        self._settings = fetch_settings(options)

    def partitions(self) -> list[InputPartition]:
        """The splits; one without a range where there is nothing to read, since Spark wants one at least."""
        from rayka.spark.source.topics import ask

        options = self._options
        ranges = ask(self._settings.bootstrap_servers, options, self._plan)
        splits = split(ranges, options.min_partitions or 1, options.max_records_per_partition)
        return [InputPartition(each) for each in splits] or [InputPartition(None)]

    def _plan(self, topics: SourceTopics) -> list[OffsetRange]:
        places = (self._options.starting, self._options.ending)
        nearest = not self._options.fail_on_data_loss
        return plan_ranges(topics.topic_ids(), topics.list_offsets, *places, nearest=nearest)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a split."""
        return read_split(self._settings, self._columns, self._schema, partition.value)


def fetch_settings(options: SourceOptions) -> FetchSettings:
    """What the workers need of the options."""
    from rayka.spark.source.topics import bootstrap_servers_of

    return FetchSettings(
        bootstrap_servers_of(options.bootstrap_servers),
        options.isolation,
        options.fail_on_data_loss,
        options.poll_timeout_ms / 1000,
        options.fetch_bytes,
    )


def read_split(
    settings: FetchSettings, columns: tuple[str, ...], schema: StructType, offsets: OffsetRange | None
) -> Iterator[pa.RecordBatch]:
    """The records of a range in Spark's types; none without a range."""
    if offsets is None:
        return iter(())
    from rayka.spark.source.fetcher import RangeFetcher

    return pieces(RangeFetcher(settings, columns).read(offsets), arrow_schema(schema))
