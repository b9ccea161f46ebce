"""The data source as PySpark finds it: makes the readers and writers of a query from its options."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from rayka.spark.source.batch import TopicReader
from rayka.spark.source.columns import COLUMNS, HEADERS, ddl
from rayka.spark.source.options import invalid, parse_options
from rayka.spark.source.stream import TopicStreamReader
from rayka.spark.source.write import TopicStreamWriter, TopicWriter
from rayka.spark.source.write_options import parse_sink_options


class RaykaSource(DataSource):
    """`format("rayka")`: Kafka topics as DataFrames and DataFrames into Kafka topics."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rayka"

    def schema(self) -> str:
        """The columns of Spark's Kafka source; `headers` with includeHeaders=true."""
        includes_headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        return ddl((*COLUMNS, HEADERS) if includes_headers else COLUMNS)

    def reader(self, schema: StructType) -> TopicReader:
        """The reader of a batch query."""
        return TopicReader(schema, parse_options(self.options, "batch"))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802
        """The reader of a streaming query."""
        return TopicStreamReader(schema, parse_options(self.options, "streaming"))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """The writer of a batch. Raises INVALID_REQUEST for mode("overwrite")."""
        if overwrite:
            raise invalid('A topic is a log: records can be added, and never overwritten; use mode("append")')
        return TopicWriter(schema, parse_sink_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        """The writer of a streaming query. Output mode complete sends all rows of the result with each batch."""
        return TopicStreamWriter(schema, parse_sink_options(self.options))
