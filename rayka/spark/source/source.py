"""The data source that PySpark loads: creates the readers and writers of a query from its options.

What a query needs is imported when it asks for it: Spark starts a process to find this class and another one to make an
object of it, while the query waits. PySpark 4.0 has nothing for streaming, and 4.1 only a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from rayka.spark.source.batch import TopicReader
    from rayka.spark.source.stream import TopicStreamReader
    from rayka.spark.source.stream_write import TopicStreamWriter
    from rayka.spark.source.write import TopicWriter


class RaykaSource(DataSource):
    """`format("rayka")`: Kafka topics as DataFrames and DataFrames into Kafka topics."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rayka"

    def schema(self) -> str:
        """The columns of Spark's Kafka source; `headers` with includeHeaders=true."""
        from rayka.spark.source.columns import COLUMNS, HEADERS, ddl

        includes_headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        return ddl((*COLUMNS, HEADERS) if includes_headers else COLUMNS)

    def reader(self, schema: StructType) -> TopicReader:
        """The reader of a batch query."""
        from rayka.spark.source.batch import TopicReader
        from rayka.spark.source.options import parse_options

        return TopicReader(schema, parse_options(self.options, "batch"))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802
        """The reader of a streaming query."""
        from rayka.spark.source.options import parse_options

        with _needing("4.2", "A stream that reads topics"):
            from rayka.spark.source.stream import TopicStreamReader
        return TopicStreamReader(schema, parse_options(self.options, "streaming"))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """The writer of a batch. Raises INVALID_REQUEST for mode("overwrite")."""
        from rayka.spark.source.options import invalid
        from rayka.spark.source.write import TopicWriter
        from rayka.spark.source.write_options import parse_sink_options

        if overwrite:
            raise invalid('A topic is a log: records can be added, and never overwritten; use mode("append")')
        return TopicWriter(schema, parse_sink_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        """The writer of a streaming query. Output mode complete sends all rows of the result with each batch."""
        from rayka.spark.source.write_options import parse_sink_options

        with _needing("4.1", "A stream that writes topics"):
            from rayka.spark.source.stream_write import TopicStreamWriter
        return TopicStreamWriter(schema, parse_sink_options(self.options))


@contextmanager
def _needing(version: str, what: str) -> Iterator[None]:
    """Raise INVALID_REQUEST where an import fails because PySpark is too old."""
    try:
        yield
    except ImportError:
        from rayka.spark.source.options import invalid

        raise invalid(f"{what} needs PySpark {version} or later; this is {pyspark.__version__}") from None
