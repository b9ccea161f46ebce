"""Writing a DataFrame into topics: at least once, as Spark's Kafka sink does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rayka.spark.source.options import invalid
from rayka.spark.source.sender import RowSender
from rayka.spark.source.topics import bootstrap_servers_of
from rayka.spark.source.write_options import SinkOptions, require_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class Written(WriterCommitMessage):
    """What a task has written."""

    records: int


class RowWriter:
    """Writes rows in a worker; made in the driver, where it checks options and columns."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        require_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options.topic)
        self._options = options
        self._bootstrap_servers = bootstrap_servers_of(options.bootstrap_servers)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of a task, and wait until all are acknowledged."""
        options = self._options
        with RowSender(self._bootstrap_servers, options.compression_type, options.timeout_ms / 1000) as sender:
            return Written(sum(sender.send(topic, rows) for batch in iterator for topic, rows in self._by_topic(batch)))

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The option goes before the column. Raises INVALID_REQUEST for a row without a topic."""
        if self._options.topic is not None:
            yield self._options.topic, batch
            return
        import pyarrow.compute as pc

        topics = batch.column("topic")
        for topic in pc.unique(topics).to_pylist():
            if topic is None:
                raise invalid("A row has no topic: its column topic is null")
            yield topic, batch.filter(pc.equal(topics, topic))


class TopicWriter(RowWriter, DataSourceArrowWriter):
    """Writes the tasks of a batch."""
