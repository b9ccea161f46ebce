"""Writing the batches of a streaming query into topics, each at least once. Needs PySpark 4.1."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from rayka.spark.source.write import RowWriter


class TopicStreamWriter(RowWriter, DataSourceStreamArrowWriter):
    """Writes the tasks of a streaming query's batches."""
